"""Where the text of each cut stays: a twin that was cut there itself is replaced by the twin of that cut.

A twin lies before its cut in the order of the corpus, so this ends. Each round holds twins against the twins of the
round before, which doubles the way that it goes: of a line of 500 dots each dot's twin is the dot before it. What is
left then stays in its twin, and each place is told as one of the texts that are published."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.inputs import ID
from pipeline.dedup.inside.pieces import InsideContext, open_piece, rows_between
from pipeline.dedup.rows import PartitionResult, ints, routed
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.bands import I64
from stages.dedup.inside.cuts import NO_TWIN

_CUT: Final = ("node", "start", "end", "twin", "twin_start")
FOUND: Final = pa.schema([
    *((name, pa.int64()) for name in _CUT), ("twin_id", ID), ("twin_place", pa.int64()),
])  # fmt: skip
"""A cut and where its text stays: document `twin_id`, from character `twin_place` on of its text without cuts. Both are
null for text between two cuts."""


def twin_rows(context: InsideContext, name: str) -> pa.Table:
    """Cuts of a file, of CUT_ROWS or of FOUND in the round before: by slice of their twin, and what twins are held
    against, by slice of their document."""
    rows = context.read(name)
    if "rule" in rows.column_names:
        rows = rows.filter(pc.is_null(rows["rule"]))
    rows = rows.select(_CUT)
    of_twins = rows.filter(pc.not_equal(rows["twin"], NO_TWIN))
    return pa.concat_tables(
        [
            _labelled(of_twins, context.slice_of(ints(of_twins, "twin")), is_own=False),
            _labelled(rows, context.slice_of(ints(rows, "node")), is_own=True),
        ]
    )


def _labelled(rows: pa.Table, slices: I64, *, is_own: bool) -> pa.Table:
    return routed(slices, rows.append_column("is_own", pa.array(np.full(len(rows), is_own))))


def twins(context: InsideContext, number: int, rows: pa.Table) -> PartitionResult:
    """The cuts whose twins are in this slice, each in as many pieces as it has twins; `num_open` counts those whose
    twin was another one before. With them the text between cuts of this slice's documents that nothing relies on."""
    is_own = rows["is_own"].to_numpy()
    own = _Own(rows.filter(pa.array(is_own)))
    asked = rows.filter(pa.array(~is_own)).select(_CUT)
    start = ints(asked, "twin_start")
    meets = own.meets(ints(asked, "twin"), start, start + ints(asked, "end") - ints(asked, "start"))
    if context.table.method != "substring":
        meets[:] = False  # a twin is a paragraph or a line that is kept, and no longer than that
    moved = [
        piece
        for row in zip(*(column.to_pylist() for column in asked.filter(pa.array(meets)).columns), strict=True)
        for piece in own.moved(*row)
    ]
    there = asked.filter(pa.array(~meets))
    columns = {
        name: np.concatenate((ints(there, name), np.array([row[n] for row in moved], np.int64)))
        for n, name in enumerate(_CUT)
    }
    # A twin that is not in this slice any more is found in the next round.
    is_here = context.slice_of(columns["twin"]) == number
    between = own.unused_gaps(columns)
    place = np.where(is_here, own.place_of(columns["twin"], columns["twin_start"], between), NO_TWIN)
    ids = _ids(context, number, np.unique(columns["twin"][is_here]))
    at = np.searchsorted(ids.node, columns["twin"])
    found = {
        **columns,
        "twin_id": ids.doc_id.take(pa.array(at, mask=~is_here)),
        "twin_place": pa.array(place, mask=~is_here),
    }
    tables = [pa.table(found, schema=FOUND), between.append_column("twin_id", pa.nulls(len(between), ID))]
    tables[1] = tables[1].append_column("twin_place", pa.nulls(len(between), pa.int64()))
    num_moved = len({row[:2] for row in moved})
    return PartitionResult(pa.concat_tables(tables), DedupCounts(num_open=num_moved))


class _Own:
    """The cuts of a slice's documents: those with a twin, and the gaps between them."""

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.select(_CUT).sort_by([("node", "ascending"), ("start", "ascending")])
        is_gap = ints(rows, "twin") == NO_TWIN
        self._gaps, cuts = rows.filter(pa.array(is_gap)), rows.filter(pa.array(~is_gap))
        self._node, self._start, self._end, self._twin, self._twin_start = (ints(cuts, n) for n in _CUT)

    def meets(self, node: I64, start: I64, end: I64) -> npt.NDArray[np.bool_]:
        """Whether a cut takes some of characters [start, end) of each document."""
        return _meet(_Stretches(self._node, self._start, self._end), _Stretches(node, start, end))

    def moved(
        self, node: int, start: int, end: int, twin: int, twin_start: int
    ) -> Iterator[tuple[int, int, int, int, int]]:
        """A cut in pieces, those of which the twin's text is cut with the twin of that cut."""
        low, high = (bisect.bisect(self._node, each) for each in (twin - 1, twin))
        at, stop = twin_start, twin_start + end - start
        index = bisect.bisect_right(self._end, at, low, high)
        while at < stop:
            if index == high or self._start[index] >= stop:
                yield node, start, start + stop - at, twin, at
                return
            if (begin := int(self._start[index])) > at:
                yield node, start, start + begin - at, twin, at
                start, at = start + begin - at, begin
            length = min(stop, int(self._end[index])) - at
            other_start = int(self._twin_start[index]) + at - begin
            yield node, start, start + length, int(self._twin[index]), other_start
            start, at, index = start + length, at + length, index + 1

    def unused_gaps(self, asked: dict[str, I64]) -> pa.Table:
        """The gaps that hold the twin of no cut."""
        order = np.lexsort((asked["twin_start"], asked["twin"]))
        node, start = asked["twin"][order], asked["twin_start"][order]
        end = start + (asked["end"] - asked["start"])[order]
        gap = _Stretches(*(ints(self._gaps, name) for name in ("node", "start", "end")))
        # Twins overlap each other: the furthest end so far is what a gap is held against.
        used = _meet(_Stretches(node, start, _furthest(node, end)), gap)
        return self._gaps.filter(pa.array(~used))

    def place_of(self, node: I64, start: I64, between: pa.Table) -> I64:
        """Where these characters of documents are once all that is cut has gone."""
        nodes = np.concatenate((self._node, ints(between, "node")))
        starts = np.concatenate((self._start, ints(between, "start")))
        sizes = np.concatenate((self._end, ints(between, "end"))) - starts
        order = np.lexsort((starts, nodes))
        sums = np.append(0, np.cumsum(sizes[order]))
        keys, wanted = _keys((nodes[order], starts[order]), (node, start))
        before = np.searchsorted(keys, wanted, side="left")
        begin = np.searchsorted(nodes[order], node, side="left")
        found: I64 = start - (sums[before] - sums[begin])
        return found


def _furthest(node: I64, end: I64) -> I64:
    """The greatest end so far in each document; rows are in order of documents."""
    number = np.cumsum(np.append(False, node[1:] != node[:-1])[: len(node)])
    # The places of each document lie above all of the one before.
    width = int(end.max(initial=0)) + 1
    found: I64 = np.maximum.accumulate(end + number * width) - number * width
    return found


class _Stretches(NamedTuple):
    """Characters [start, end) of documents."""

    node: I64
    start: I64
    end: I64


def _meet(ours: _Stretches, others: _Stretches) -> npt.NDArray[np.bool_]:
    """Whether each of `others` meets one of `ours`, which are in order, and whose ends ascend too."""
    (node, start, end), (other, other_start, other_end) = ours, others
    ends, wanted = _keys((node, end), (other, other_start))
    at = np.searchsorted(ends, wanted, side="right")
    found = np.zeros(len(other), np.bool_)
    there = at < len(node)
    at = at[there]
    found[there] = (node[at] == other[there]) & (start[at] < other_end[there])
    return found


def _keys(one: tuple[I64, I64], other: tuple[I64, I64]) -> tuple[I64, I64]:
    """Places of documents as numbers in their order, comparable with each other."""
    nodes = np.unique(np.concatenate((one[0], other[0])))
    width = int(max(one[1].max(initial=0), other[1].max(initial=0))) + 1
    a, b = (np.searchsorted(nodes, node) * width + place for node, place in (one, other))
    return a, b


class _Ids(NamedTuple):
    node: I64
    doc_id: pa.Array


def _ids(context: InsideContext, number: int, nodes: I64) -> _Ids:
    """The ids of documents of a slice."""
    begin = int(context.slices[number])
    end = np.iinfo(np.int64).max if number + 1 == len(context.slices) else int(context.slices[number + 1])
    first, last = np.searchsorted(context.starts, (begin, end))
    found_nodes, found_ids = [np.empty(0, np.int64)], [pa.array([], ID)]
    for at in range(int(first), int(last)):
        low, high = np.searchsorted(nodes, context.nodes_of(at))
        if low < high:
            piece = open_piece(context.folder, at)
            ids = rows_between(context.work, piece.keys, ["doc_id"], piece.begin, piece.end)["doc_id"]
            rows = nodes[low:high] - context.starts[at]
            found_nodes.append(nodes[low:high])
            found_ids.append(ids.cast(ID).combine_chunks().take(pa.array(rows)))
    return _Ids(np.concatenate(found_nodes), pa.concat_arrays(found_ids))


def found_rows(context: InsideContext, name: str) -> pa.Table:
    """Cuts with their twins, by slice of the document that is cut."""
    rows = context.read(name)
    return routed(context.slice_of(ints(rows, "node")), rows)


def found_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's cuts in order, those that follow one another in both documents as one; `place` is where they were, as a
    character of the text without them."""
    rows = rows.sort_by([("node", "ascending"), ("start", "ascending")])
    node, start, end = (ints(rows, name) for name in _CUT[:3])
    place = pc.fill_null(rows["twin_place"], NO_TWIN).to_numpy()
    twin = ints(rows, "twin")
    new = np.ones(len(rows), np.bool_)
    new[1:] = (
        (node[1:] != node[:-1])
        | (start[1:] != end[:-1])
        | (twin[1:] != twin[:-1])
        | (place[1:] != place[:-1] + (end - start)[:-1])
    )
    begins = np.flatnonzero(new)
    lasts = np.append(begins[1:], len(rows)) - 1
    sizes = (end[lasts] - start[begins]).astype(np.int64)
    before = np.cumsum(sizes) - sizes
    owner = node[begins]
    of_first = np.searchsorted(owner, owner, side="left")
    found = rows.take(pa.array(begins)).select(["node", "start", "twin_id", "twin_place"])
    found = found.append_column("end", pa.array(end[lasts]))
    gone = before - before[of_first] if len(before) else before
    found = found.append_column("place", pa.array(start[begins] - gone))
    return PartitionResult(found, DedupCounts(num_cuts=len(found), cut_chars=int(sizes.sum())))
