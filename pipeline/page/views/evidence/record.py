"""The figures of a record as a page shows them: each with its SQL, and where the views of one output answer it, as a
SELECT that a person may run and change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = "eu-summary"
_MOST_DOMAINS: Final = 20
_MOST_LISTED: Final = 200
# What only the tables of a record have (`pipeline.record.tables`): bytes of texts, and readings.
_RECORDS_OWN: Final = re.compile(r"\b(num_bytes|readings|read_tokens)\b")
_COUNTED: Final = re.compile(r"SELECT count\(\*\) FROM (?=used\b|documents\b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFigure:
    """A figure, None where nothing gives it. `asked` is its SELECT over the output's views, `listed` one of its
    documents; None where these views do not answer it, as `command` does."""

    unit: str
    value: int | None
    sql: str
    asked: str | None
    listed: str | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """The figures, the largest domains with their documents and bytes, and the fields that nothing answers. `used`:
    what the SQL calls the documents that the record is of."""

    figures: tuple[ShownFigure, ...]
    domains: tuple[tuple[str, int, int], ...]
    num_domains: int
    open: tuple[str, ...]
    used: str
    command: str


def call_of(out: str, run_outputs: Sequence[str]) -> list[str]:
    """The arguments of `sluice` for a record of an output, weighted by what these runs have read."""
    return ["record", out, "--format", FORMAT, *(f"--run={output}" for output in run_outputs)]


def shown_record(row: Mapping[str, Any], out: str, run_outputs: Sequence[str]) -> ShownRecord:
    """What `sluice record --json` prints, as the page shows it."""
    command = shlex.join(["sluice", *call_of(out, run_outputs)])
    figures = []
    for figure in row["figures"]:
        sql = figure["sql"]
        asked = _over_views(sql, row["used"], is_weighted=bool(run_outputs))
        can_list = asked is not None and _COUNTED.match(sql)
        figures.append(
            ShownFigure(
                unit=figure["unit"],
                value=figure["value"],
                sql=sql,
                asked=asked,
                listed=_documents(asked) if asked is not None and can_list else None,
                command=f"{command} --sql {shlex.quote(sql)}",
            )
        )
    domains = row["domains"]
    return ShownRecord(
        figures=tuple(figures),
        domains=tuple((each["domain"], each["documents"], each["bytes"]) for each in domains[:_MOST_DOMAINS]),
        num_domains=next(figure["value"] for figure in row["figures"] if figure["name"] == "domains"),
        open=tuple(row["open"]),
        used=row["used"],
        command=command,
    )


def _over_views(sql: str, used: str, *, is_weighted: bool) -> str | None:
    """The same SELECT over the views of one output; None where these have not what it needs."""
    if _RECORDS_OWN.search(sql) or (is_weighted and re.search(r"\bused\b", sql)):
        return None
    kept = f"(SELECT * FROM documents WHERE {used.rpartition(' WHERE ')[2]}) AS used"
    return re.sub(r"\b(FROM|JOIN) used\b", rf"\1 {kept}", sql).replace("(out, doc_id)", "(doc_id)")


def _documents(asked: str) -> str:
    """The documents that a SELECT counts."""
    columns = "SELECT doc_id, url, status, language, num_tokens"
    return f"{asked.replace('SELECT count(*)', columns, 1)} LIMIT {_MOST_LISTED}"
