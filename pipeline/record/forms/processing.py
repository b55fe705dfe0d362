"""What several forms say of how the data was processed: languages, cleaning by step and purpose, what was removed, and
which runs have read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.record.forms.form import FormFacts, listed
from stages.quality.languages import language_code
from stages.steps.catalogue import CATALOGUE

_PERSONAL_DATA: Final[Mapping[str, str]] = {
    "email": "e-mail addresses",
    "phone": "telephone numbers",
    "ip": "IP addresses",
    "credit_card": "payment card numbers",
    "iban": "bank account numbers (IBAN)",
    "us_ssn": "US Social Security numbers",
    "secret": "passwords and access keys",
}
_MOST_LANGUAGES: Final = 30


def languages(facts: FormFacts) -> str | None:
    """The share of each language in the tokens, of the largest."""
    rows = facts.figures.tables["languages"]
    total = sum(row["tokens"] for row in rows)
    if not total:
        return None
    weighed = [(row, row["tokens"] / total) for row in rows[:_MOST_LANGUAGES]]
    lines = [
        f"{language_name(row['language'])}: {row['tokens']:,} tokens"
        f" ({'less than 0.1%' if share < 0.001 else f'{share:.1%}'})"
        for row, share in weighed
    ]
    if len(rows) > _MOST_LANGUAGES:
        rest = sum(row["tokens"] for row in rows[_MOST_LANGUAGES:])
        lines.append(f"{len(rows) - _MOST_LANGUAGES} more: {rest:,} tokens")
    return "By the language that was recognised in each document (ISO 639 codes):\n" + listed(lines)


def language_name(label: str) -> str:
    """The English name of a language with its label, the label alone where it has no name."""
    from babel.core import Locale

    if label == "und":
        return "not recognised (und)"
    names, code = Locale("en").languages, language_code(label)
    name = names.get(label) or names.get(code) or names.get(code.split("-")[0])
    return label if name is None else f"{name} ({label})"


def personal_data(facts: FormFacts) -> list[str]:
    """The personal data that was replaced, a line for each kind."""
    rows = facts.figures.tables["personal_data"]
    return [f"{_PERSONAL_DATA.get(row['kind'], row['kind'])}: {row['num']:,} replaced" for row in rows]


def cleaning(facts: FormFacts) -> str | None:
    """Each step: what came in, what it removed and why; personal data by kind; purges."""
    lines = [
        f"step {row['stage']} {_purpose(row['stage'])}:"
        f" {row['num_rejected']:,} of {row['num_in']:,} documents removed{_rule_sets(facts, row['stage'])}"
        for row in facts.figures.tables["steps"]
    ]
    lines += personal_data(facts)
    lines += [
        f"purge {row['purge_id']} of {row['at']}: {row['num_documents']:,} documents deleted"
        for row in facts.figures.tables["purges"]
    ]
    return listed(lines) if lines else None


def _purpose(stage: str) -> str:
    if stage == "purged":
        return "removes documents that were deleted from an earlier output, so that they stay deleted"
    return CATALOGUE[stage].purpose if stage in CATALOGUE else "is of the provider, who can tell its purpose"


def _rule_sets(facts: FormFacts, stage: str) -> str:
    """The sets of published rules that removed documents in a step."""
    found = {row["rule"].split(".")[0] for row in facts.figures.tables["rules"] if row["stage"] == stage}
    return f", by rules of {', '.join(sorted(found))}" if stage == "quality" and found else ""


def removed(facts: FormFacts) -> str | None:
    """What address lists and classifiers have removed; None where neither has: lineage tells of no other measure."""
    lines = [
        f"{row['rule']}: {row['num']:,} documents removed"
        for row in facts.figures.tables["rules"]
        if row["stage"] == "classifier" or row["rule"].startswith("url.block")
    ]
    return listed(lines) if lines else None


def runs(facts: FormFacts) -> str:
    """The checkpoints of which it is counted what they have read, with their roots."""
    if not facts.runs:
        return "None: the record is of all data after pre-processing, and no training is counted."
    return listed([
        f"run {row['run']} up to step {row['step']:,} (checkpoint {row['checkpoint']})"
        + (f", from whose weights {row['begun_by']} began" if row["begun_by"] else "")
        + (f"; commitment {row['root']}" if row["root"] else "")
        for row in facts.runs
    ])  # fmt: skip
