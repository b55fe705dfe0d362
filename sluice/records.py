"""The record of outputs and of the runs that read them, in a form of law or of a catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lineage.recipe import RecipeError
from pipeline.record.record import FORMS, make_record
from pipeline.record.render import check_target, publish_record
from sluice.messages import in_python


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """A record: `row` is its JSON, `figures` are its numbers by name, `fields` the form's answers by field, `open` the
    fields that neither lineage nor a statement answers."""

    row: Mapping[str, Any]
    figures: Mapping[str, int | None]
    fields: Mapping[str, str]
    open: tuple[str, ...]


@in_python
def record(
    outs: str | Sequence[str],
    format: str,
    *,
    runs: str | Sequence[str] = (),
    statements: str | None = None,
    against: str | None = None,
    to: str | None = None,
) -> DataRecord:
    """The record of one or several outputs as `sluice record` makes it: `format` is "eu-summary", "ab2013" or
    "croissant". With `runs` it is of what those training runs have read, as often as they did; `statements` is a TOML
    file of what the provider states, `against` an earlier record. With `to` it is written there, by its ending .json,
    .md, .html or .jsonld.

    RecipeError where the call or the statements are wrong, NotFinishedError where an output is not finished."""
    if format not in FORMS:
        raise RecipeError(f"format {format!r}: expected one of {', '.join(FORMS)}")
    if to is not None:
        check_target(format, to)
    made = make_record(
        [outs] if isinstance(outs, str) else outs,
        format,
        runs=[runs] if isinstance(runs, str) else runs,
        statements=statements,
        against=against,
        to=to,
    )
    if to is not None:
        publish_record(made, to)
    return DataRecord(
        row=made.row,
        figures={figure.name: figure.value for figure in made.figures},
        fields={answer.field: answer.value for _, answers in made.fields for answer in answers},
        open=tuple(made.open),
    )
