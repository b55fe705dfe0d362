"""A SELECT's answer as people look at it: a table, a plot of its figures, a CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineage.json_record import Json
from lineage.store.queries.query import Limits, QueryResult
from lineage.store.queries.views import COLUMNS
from pipeline.terminal import without_formula

LIMITS: Final = Limits(seconds=60.0, memory_gib=2.0, values=2_000_000, answer_mib=256)
"""What a question from the page may use: the server holds the answer."""
VIEWS: Final = COLUMNS
_MOST_PLOTTED: Final = 200
_ID_COLUMNS: Final = ("doc_id", "duplicate_of")
_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotBar:
    """A row of a plot: what it is of, its figure and where that lies from the least of 0 and all figures to
    the highest, 0 to 1."""

    label: str
    value: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The first column as labels and the first column of figures as bars."""

    label: str
    figure: str
    bars: tuple[PlotBar, ...]
    num_left_out: int


def plot_of(found: QueryResult) -> Plot | None:
    """A plot of an answer that has a column of labels and one of figures; else None. A list of documents has
    none: a bar for each would set the value of one rule beside that of another."""
    if _is_list(found.columns):
        return None
    figures = [
        number
        for number in range(len(found.columns))
        if found.rows
        and all(_is_figure(row[number]) for row in found.rows)
        and any(row[number] for row in found.rows)
    ]
    if len(found.columns) < 2 or not figures:
        return None
    figure = next((number for number in figures if number > 0), figures[0])
    label = 0 if figure else 1
    rows = found.rows[:_MOST_PLOTTED]
    values = [float(row[figure] or 0) for row in rows]  # type: ignore[arg-type]
    low, high = min(0.0, *values), max(0.0, *values)
    width = high - low or 1.0
    bars = tuple(
        PlotBar(
            label="null" if row[label] is None else str(row[label])[:80],
            value=value,
            begin=(min(0.0, value) - low) / width,
            end=(max(0.0, value) - low) / width,
        )
        for row, value in zip(rows, values, strict=True)
    )
    return Plot(
        label=found.columns[label],
        figure=found.columns[figure],
        bars=bars,
        num_left_out=len(found.rows) - len(rows),
    )


def _is_list(columns: Sequence[str]) -> bool:
    """Whether the rows are documents with several things of each."""
    return len(columns) > 2 and any(name in _ID_COLUMNS for name in columns)


def _is_figure(value: Json) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def doc_ids_of(found: QueryResult) -> list[bytes]:
    """The documents that an answer lists, in its order."""
    at = next((found.columns.index(name) for name in _ID_COLUMNS if name in found.columns), None)
    if at is None:
        return []
    values = (row[at] for row in found.rows)
    return [bytes.fromhex(value) for value in values if isinstance(value, str) and _ID.fullmatch(value)]


def csv_of(columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> bytes:
    """The answer for a spreadsheet: an apostrophe stands before each text that it would take for a
    formula."""
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow([without_formula(name) for name in columns])
    writer.writerows(
        [without_formula(value) if isinstance(value, str) else value for value in row] for row in rows
    )
    return sink.getvalue().encode("utf-8", "replace")
