"""What several forms say of how the data was processed: languages, cleaning by step and purpose, what was removed, and
which runs have read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.record.forms.form import FormFacts, listed
from stages.quality.languages import language_code

PURPOSES: Final[Mapping[str, str]] = {
    "url": "removes pages whose address is on a block list, and records that are too long or not whole, to keep"
    " unwanted sites and broken pages out",
    "prefilter": "removes pages in languages that are not wanted before their text is taken out, to save work",
    "parse": "takes the main text out of each page and removes pages without one, to keep menus and the like out",
    "language": "removes texts in languages that are not wanted or not recognised with certainty, to have the wanted"
    " languages alone",
    "quality": "removes texts that are no running prose by published rules, to keep lists, spam and damaged text out",
    "classifier": "removes texts that a classifier scores below or above a threshold, to have the texts that it is for",
    "decontaminate": "removes texts that hold test questions of benchmarks, so that tests of the model stay valid",
    "pii": "replaces personal data and secrets by placeholders, or removes what holds them, so that the model does not"
    " learn them",
    "identity": "removes records that came in twice, so that none counts twice",
    "dedup.url": "removes further copies of a page, so that none counts twice",
    "dedup.exact": "removes texts that equal another, so that none is learnt by heart",
    "dedup.near": "removes texts that nearly equal another, so that none is learnt by heart",
    "purged": "removes documents that were deleted from an earlier output, so that they stay deleted",
}
"""What each step does, and what for. A step of the user's own has none."""
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
        f"step {row['stage']} {PURPOSES.get(row['stage'], 'is of the provider, who can tell its purpose')}:"
        f" {row['num_rejected']:,} of {row['num_in']:,} documents removed{_rule_sets(facts, row['stage'])}"
        for row in facts.figures.tables["steps"]
    ]
    lines += personal_data(facts)
    lines += [
        f"purge {row['purge_id']} of {row['at']}: {row['num_documents']:,} documents deleted"
        for row in facts.figures.tables["purges"]
    ]
    return listed(lines) if lines else None


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
