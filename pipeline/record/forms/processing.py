"""What several forms say of how the data was processed: languages, cleaning by step and purpose, what was removed, and
which runs have read it."""

from __future__ import annotations

from typing import Final

from pipeline.record.forms.form import FormFacts, listed
from stages.steps.catalogue import CATALOGUE

_MOST_LANGUAGES: Final = 30


def languages(facts: FormFacts) -> str | None:
    """The share of each language in the tokens, of the largest."""
    rows = facts.figures.tables["languages"]
    total = sum(row["tokens"] for row in rows)
    if not total:
        return None
    weighed = [(row, row["tokens"] / total) for row in rows[:_MOST_LANGUAGES]]
    lines = [f"{row['language']}: {row['tokens']:,} tokens ({share:.1%})" for row, share in weighed]
    if len(rows) > _MOST_LANGUAGES:
        rest = sum(row["tokens"] for row in rows[_MOST_LANGUAGES:])
        lines.append(f"{len(rows) - _MOST_LANGUAGES} more: {rest:,} tokens")
    return "By the language that was recognised in each document (ISO 639 codes):\n" + listed(lines)


def cleaning(facts: FormFacts) -> str | None:
    """Each step: what came in, what it removed and why; personal data by kind; purges."""
    lines = [
        f"{row['stage']}: {row['num_rejected']:,} of {row['num_in']:,} documents removed ({_purpose(row['stage'])})"
        for row in facts.figures.tables["steps"]
    ]
    lines += [
        f"pii: {row['num']:,} × {row['kind']} replaced" for row in facts.figures.tables["personal_data"]
    ]
    lines += [
        f"purge {row['purge_id']} of {row['at']}: {row['num_documents']:,} documents deleted"
        for row in facts.figures.tables["purges"]
    ]
    return listed(lines) if lines else None


def _purpose(stage: str) -> str:
    return CATALOGUE[stage].purpose if stage in CATALOGUE else "a step of the user"


def removed(facts: FormFacts) -> str | None:
    """What address lists and classifiers have removed; None where neither has: lineage tells of no other measure."""
    lines = [
        f"{row['rule']}: {row['num']:,} documents removed"
        for row in facts.figures.tables["rules"]
        if row["stage"] == "classifier" or row["rule"].startswith("url.block")
    ]
    return listed(lines) if lines else None


def runs(facts: FormFacts) -> str:
    """The checkpoints whose readings are counted, with their roots."""
    if not facts.runs:
        return "None: the record is of the data after pre-processing, whatever a training reads of it."
    return listed([
        f"{row['checkpoint']} of run {row['run']}"
        + (f", from whose weights {row['begun_by']} began" if row["begun_by"] else "")
        + (f"; commitment {row['root']}" if row["root"] else "")
        for row in facts.runs
    ])  # fmt: skip
