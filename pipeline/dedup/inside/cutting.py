"""From what is repeated in the documents of a piece to their cuts, and to those that keep too little."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lineage.store.column_names import INSIDE
from pipeline.dedup.inside.pieces import InsideContext, PieceOfCorpus, as_texts, text_of
from pipeline.dedup.rows import PartitionResult, ints, routed
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.inside.anchors import I64, Texts
from stages.dedup.inside.cuts import (
    Cut,
    Cuts,
    TooLittle,
    at_borders,
    gaps,
    joined,
    left_of,
    regions,
    too_little,
    without_overlap,
)

CUT_ROWS: Final = pa.schema([
    ("node", pa.int64()), ("start", pa.int64()), ("end", pa.int64()), ("twin", pa.int64()), ("twin_start", pa.int64()),
    ("rule", pa.string()), ("value", pa.float64()), ("threshold", pa.float64()),
])  # fmt: skip
"""A cut of a document; or, where there is a `rule`, that a document is rejected by it."""


CUT_STATE: Final = 2
"""What is decided of a paragraph that is cut."""


class Marks(NamedTuple):
    """Repeated text of a piece: `cuts.document` is a row of `documents`. `decides`: documents that keep too little are
    rejected. Once they are, the cuts of all others are found without them: these only shrink."""

    documents: pa.Table
    texts: Texts
    cuts: Cuts
    decides: bool


def cut_rows(context: InsideContext, marks: Marks) -> pa.Table:
    """The rows of CUT_ROWS of a piece, by slice."""
    cuts = without_overlap(joined(marks.cuts))
    node = ints(marks.documents, "node")
    columns = [array.tolist() for array in cuts]
    found = _Rows()
    for begin, end in _stretches(cuts.document):
        document = columns[0][begin]
        text = text_of(marks.texts, document)
        repeated = [
            Cut(*values) for values in zip(*(column[begin:end] for column in columns[1:]), strict=True)
        ]
        chosen = at_borders(text, repeated, context.table)
        taken = regions(chosen)
        between = gaps(text, taken, context.table.max_gap) if context.table.max_gap else []
        reason = decided(text, [*chosen, *between], context) if marks.decides else None
        found.add(int(node[document]), [*chosen, *between], reason)
    return found.table(context)


def cut_rows_of_lines(
    context: InsideContext,
    documents: pa.Table,
    piece: PieceOfCorpus,
    cuts_of: Callable[[str, Sequence[tuple[int, int, int]]], list[Cut]],
    reason_of: Callable[[str, str, int], TooLittle | None] | None = None,
) -> pa.Table:
    """The rows of CUT_ROWS of a piece whose marks (node, start, twin, twin_start) name lines by number in `start`. Only
    those with the `state` that says so are cut, where marks have one; `num` is then what they count, and `reason_of`
    gets its sum."""
    found = _Rows()
    marks = piece.rows(context, "marks")
    if marks is None or not len(marks):
        return found.table(context)
    texts, nodes = as_texts(documents), ints(documents, "node")
    node, line, twin, twin_start = (ints(marks, name) for name in ("node", "start", "twin", "twin_start"))
    is_cut = (
        ints(marks, "state") == CUT_STATE if "state" in marks.column_names else np.ones(len(marks), np.bool_)
    )
    order = np.argsort(nodes)
    for begin, end in _stretches(node):
        document = int(order[np.searchsorted(nodes, node[begin], sorter=order)])
        text = text_of(texts, document)
        gone = begin + np.flatnonzero(is_cut[begin:end])
        cuts = cuts_of(
            text, list(zip(*(each[gone].tolist() for each in (line, twin, twin_start)), strict=True))
        )
        reason = None
        if reason_of is not None:
            num = int(ints(marks, "num")[begin:end].sum())
            reason = reason_of(text, left_of(text, regions(cuts)), num)
        elif not piece.has("rejected"):
            reason = decided(text, cuts, context)
        found.add(int(node[begin]), cuts, reason)
    return found.table(context)


def decided(text: str, cuts: list[Cut], context: InsideContext) -> TooLittle | None:
    """The rule by which a document with these cuts is rejected; None if it stays."""
    if not cuts:
        return None
    return too_little(text, left_of(text, regions(sorted(cuts))), context.table)


def _stretches(values: I64) -> list[tuple[int, int]]:
    """The ranges of equal values."""
    changes = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return list(itertools.pairwise([0, *changes, len(values)])) if len(values) else []


class _Rows:
    """Rows of CUT_ROWS."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in CUT_ROWS.names}

    def add(self, node: int, cuts: list[Cut], reason: TooLittle | None) -> None:
        """What becomes of a document."""
        if reason is not None:
            self._add(node, 0, 0, node, 0, *reason)
            return
        for cut in cuts:
            self._add(node, *cut, None, None, None)

    def _add(self, *values: Any) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def table(self, context: InsideContext) -> pa.Table:
        """The rows, by slice."""
        rows = pa.table(self._columns, schema=CUT_ROWS)
        return routed(context.slice_of(ints(rows, "node")), rows)


def cuts_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's rows of CUT_ROWS in order of document and place."""
    rows = rows.sort_by([("node", "ascending"), ("start", "ascending")])
    num_rejected = len(rows) - rows["rule"].null_count
    return PartitionResult(rows, DedupCounts(dropped={INSIDE: num_rejected} if num_rejected else {}))


def marks_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's marks in order of document and place."""
    return PartitionResult(rows.sort_by([("node", "ascending"), ("start", "ascending")]))
