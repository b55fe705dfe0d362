"""Repeated runs of a corpus: anchors by hash, the text around repeated ones by hash, runs by slice of pieces.

Every `*_rows` function gives rows with a partition number; every other public function reduces a partition to a table
that is published."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from pipeline.dedup.inside.cutting import Marks, cut_rows
from pipeline.dedup.inside.pieces import (
    ORDER,
    InsideContext,
    PieceOfCorpus,
    as_texts,
    documents_of,
    in_order,
    open_piece,
)
from pipeline.dedup.rows import PartitionResult, ints, routed
from stages.dedup.bands import I64
from stages.dedup.candidates import begins_of, distinct_pairs
from stages.dedup.inside.anchors import Anchors, anchor_counts, repeated_anchors
from stages.dedup.inside.cuts import Cuts
from stages.dedup.inside.runs import other_windows, repeated_runs


def anchor_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The distinct anchors of a piece, by hash; `num` is how often each stands there, 2 for more."""
    documents = documents_of(context, open_piece(context.folder, piece.number), piece.rejected(context))
    anchors, num = anchor_counts(as_texts(documents), context.table.min_bytes)
    of_slice = np.full(len(anchors), context.slice_of(context.starts[[piece.number]])[0], np.int32)
    rows = pa.table(
        {"anchor": anchors.view(np.int64), "slice": of_slice, "num": np.minimum(num, 2).astype(np.int8)}
    )
    return routed(context.partition_of(ints(rows, "anchor")), rows)


def shared_anchors(_: int, rows: pa.Table) -> PartitionResult:
    """The anchors that stand more than once in the corpus, for each slice that has them."""
    anchor = ints(rows, "anchor")
    order = np.argsort(anchor, kind="stable")
    begins = np.flatnonzero(begins_of(anchor[order]))
    sums = np.add.reduceat(rows["num"].to_numpy()[order].astype(np.int64), begins)
    repeated = np.zeros(len(order), np.bool_)
    repeated[order] = np.repeat(sums > 1, np.diff(np.append(begins, len(order))))
    chosen = rows.filter(pa.array(repeated))
    slices, anchors = distinct_pairs(chosen["slice"].to_numpy().astype(np.int64), ints(chosen, "anchor"))
    return PartitionResult(pa.table({"slice": slices, "anchor": anchors}))


def shared_anchor_rows(context: InsideContext, name: str) -> pa.Table:
    """Repeated anchors, by slice."""
    rows = context.read(name, ["slice", "anchor"])
    return routed(ints(rows, "slice"), rows.select(["anchor"]))


def anchors_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's repeated anchors, sorted as the hashes that they are."""
    return PartitionResult(pa.table({"anchor": np.sort(ints(rows, "anchor").view(np.uint64)).view(np.int64)}))


class _Repeated:
    """The repeated anchors of a piece in the order of the corpus; `same` is the first one there with the same text
    around it."""

    def __init__(self, context: InsideContext, piece: PieceOfCorpus) -> None:
        self.documents = documents_of(
            context, open_piece(context.folder, piece.number), piece.rejected(context)
        )
        self.texts = as_texts(self.documents)
        shared = ints(context.read(dict(piece.files)["anchors"]), "anchor").view(np.uint64)
        anchors = repeated_anchors(self.texts, context.table.min_bytes, shared)
        rank = np.empty(len(self.documents), np.int64)
        rank[in_order(self.documents)] = np.arange(len(rank))
        order = np.lexsort((anchors.first, rank[anchors.document]))
        contents = [anchors.contents[row] for row in order.tolist()]
        self.anchors = Anchors(
            document=anchors.document[order],
            anchor=anchors.anchor[order],
            first=anchors.first[order],
            last=anchors.last[order],
            character=anchors.character[order],
            contents=contents,
        )
        known: dict[bytes, int] = {}
        self.same = np.array([known.setdefault(text, row) for row, text in enumerate(contents)], np.int64)

    @property
    def node(self) -> I64:
        return ints(self.documents, "node")[self.anchors.document]


def context_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The distinct texts around repeated anchors of a piece, each at its first place there, by anchor."""
    found = _Repeated(context, piece)
    # A menu that stands in each of a piece's documents is one row.
    chosen = np.flatnonzero(found.same == np.arange(len(found.same)))
    documents = found.documents.select(ORDER).take(pa.array(found.anchors.document[chosen]))
    anchor = found.anchors.anchor[chosen].view(np.int64)
    rows = documents.append_column("anchor", pa.array(anchor))
    rows = rows.append_column("first", pa.array(found.anchors.first[chosen]))
    rows = rows.append_column("character", pa.array(found.anchors.character[chosen]))
    contents = [found.anchors.contents[row] for row in chosen.tolist()]
    return routed(
        context.partition_of(anchor), rows.append_column("content", pa.array(contents, pa.large_binary()))
    )


def runs(context: InsideContext, _: int, rows: pa.Table) -> PartitionResult:
    """The runs that stand earlier in the corpus, and where: characters [start, end) of `node` are those of `twin` from
    `twin_start` on."""
    rows = rows.take(pa.array(in_order(rows, "first")))
    anchor = ints(rows, "anchor").view(np.uint64)
    found = repeated_runs(anchor, rows["content"].to_pylist(), context.table.min_bytes)
    node, character = ints(rows, "node"), ints(rows, "character")
    start = character[found.row] + found.start
    columns = {
        "node": node[found.row],
        "start": start,
        "end": start + found.length,
        "twin": node[found.earlier],
        "twin_start": character[found.earlier] + found.earlier_start,
        "first": ints(rows, "first")[found.row],
        "begin": found.begin,
        "num_windows": found.num_windows,
    }
    return PartitionResult(pa.table(columns))


def substring_cut_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The cuts of a piece, by slice."""
    found = _Repeated(context, piece)
    own = piece.rows(context, "marks")
    columns = ("node", "start", "end", "twin", "twin_start")
    marks = [*zip(*(own[name].to_pylist() for name in columns), strict=True)] if own is not None else []
    marks += _later_marks(context, found, own)
    values = np.array(marks, np.int64).reshape(-1, len(columns))
    values = values[values[:, 1] < values[:, 2]]
    node = ints(found.documents, "node")
    order = np.argsort(node)
    document = order[np.searchsorted(node, values[:, 0], sorter=order)]
    cuts = Cuts(document, *(np.ascontiguousarray(values[:, at]) for at in range(1, len(columns))))
    return cut_rows(context, Marks(found.documents, found.texts, cuts, decides=not piece.has("rejected")))


def _later_marks(
    context: InsideContext, found: _Repeated, own: pa.Table | None
) -> list[tuple[int, int, int, int, int]]:
    """What is repeated around an anchor behind the first one of the piece with the same text around it: the windows
    that stand earlier there do so here, and the others stand there."""
    later = np.flatnonzero(found.same != np.arange(len(found.same))).tolist()
    if not later:
        return []
    at_first: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    if own is not None:
        names = ("node", "first", "start", "end", "twin", "twin_start", "begin", "num_windows")
        for node, first, *mark in zip(*(own[name].to_pylist() for name in names), strict=True):
            at_first[node, first].append(tuple(mark))
    nodes, firsts = found.node.tolist(), found.anchors.first.tolist()
    characters = found.anchors.character.tolist()
    there: dict[int, list[tuple[int, int, int, int]]] = {}
    marks = []
    for row, same in zip(later, found.same[later].tolist(), strict=True):
        if same not in there:
            known = at_first[nodes[same], firsts[same]]
            base = characters[same]
            content = found.anchors.contents[same]
            others = other_windows(content, [(mark[4], mark[5]) for mark in known], context.table.min_bytes)
            there[same] = [
                (start - base, end - base, twin, twin_start) for start, end, twin, twin_start, *_ in known
            ]
            there[same] += [(start, start + length, nodes[same], base + start) for start, length in others]
        marks += [
            (nodes[row], characters[row] + start, characters[row] + end, twin, twin_start)
            for start, end, twin, twin_start in there[same]
        ]
    return marks
