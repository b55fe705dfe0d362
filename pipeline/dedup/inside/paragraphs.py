"""Repeated paragraphs of a corpus, decided as bff would that took the documents one after the other in our order.

bff cuts a paragraph if more than a share of its n-grams stand in paragraphs that were kept before it. Whether these
were kept depends on others before them in turn. So paragraphs are decided in rounds: one is kept where even all that
are not yet decided would not cut it, and cut where those that are kept alone do. The first that is not decided always
is in the next round, and most are in the first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.inside.cutting import CUT_STATE, cut_rows_of_lines
from pipeline.dedup.inside.pieces import (
    ORDER,
    InsideContext,
    PieceOfCorpus,
    as_texts,
    documents_of,
    in_order,
    open_piece,
    text_of,
)
from pipeline.dedup.rows import PartitionResult, ints, routed
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.bands import I64
from stages.dedup.candidates import begins_of
from stages.dedup.inside.cuts import TooLittle, too_little
from stages.dedup.inside.lines import lines_of, without_lines
from stages.dedup.inside.paragraphs import WHOLE_DOCUMENT, ngram_hashes

_UNKNOWN, _KEPT, _CUT = 0, 1, CUT_STATE


class SliceOfParagraphs(NamedTuple):
    """The published n-grams of a slice that others have too, and what is decided of its paragraphs (None: nothing)."""

    ngrams: str
    states: str | None


def ngram_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The distinct n-grams of each paragraph of a piece, how often each stands there, and how many it has in all, by
    hash."""
    documents = documents_of(context, open_piece(context.folder, piece.number), piece.rejected(context))
    texts = as_texts(documents)
    rows, places, hashes = [], [], [np.empty((2, 0), np.uint64)]
    for row in range(len(documents)):
        text = text_of(texts, row)
        for number, (start, end) in enumerate(lines_of(text)):
            found = ngram_hashes(text[start:end], context.table)
            if len(found):
                distinct, times = np.unique(found, return_counts=True)
                hashes.append(np.stack((distinct, times.astype(np.uint64))))
                rows.append((row, len(distinct)))
                places.append((number, start, len(found)))
    num_rows = np.array([size for _, size in rows], np.int64)
    table = documents.select(ORDER).take(
        pa.array(np.repeat(np.array([row for row, _ in rows], np.int64), num_rows))
    )
    columns = np.repeat(np.array(places, np.int64).reshape(-1, 3), num_rows, axis=0)
    for at, name in enumerate(("paragraph", "start", "total")):
        table = table.append_column(name, pa.array(np.ascontiguousarray(columns[:, at])))
    hash_num = np.concatenate(hashes, axis=1).view(np.int64)
    table = table.append_column("hash", pa.array(hash_num[0])).append_column("num", pa.array(hash_num[1]))
    return routed(context.partition_of(np.ascontiguousarray(hash_num[0])), table)


def shared_ngrams(_: int, rows: pa.Table) -> PartitionResult:
    """The rows of n-grams that several paragraphs have."""
    hashes = ints(rows, "hash")
    _hashes, which, num = np.unique(hashes, return_inverse=True, return_counts=True)
    return PartitionResult(rows.filter(pa.array(num[which] > 1)))


def ngrams_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's rows, in order of document and paragraph."""
    return PartitionResult(
        rows.sort_by([("node", "ascending"), ("paragraph", "ascending"), ("hash", "ascending")])
    )


def state_rows(context: InsideContext, task: SliceOfParagraphs) -> pa.Table:
    """The n-grams of paragraphs that are not cut, and what is decided of them, by hash."""
    rows = _with_states(context, task)
    rows = rows.filter(pc.not_equal(rows["state"], _CUT))
    return routed(context.partition_of(ints(rows, "hash")), rows)


def _with_states(context: InsideContext, task: SliceOfParagraphs) -> pa.Table:
    rows = context.read(task.ngrams)
    state = np.full(len(rows), _UNKNOWN)
    if task.states is not None:
        states = context.read(task.states)
        # Both are in order of document and paragraph, and each paragraph of one is in the other.
        state = ints(states, "state")[np.cumsum(_begins(rows)) - 1]
    return rows.append_column("state", pa.array(state))


def _begins(rows: pa.Table, *more: str) -> np.ndarray:
    """Where a row is of another paragraph than the one before."""
    return begins_of(*(ints(rows, name) for name in ("node", "paragraph", *more)))


def seen_before(_: int, rows: pa.Table) -> PartitionResult:
    """Of each paragraph that is not decided, how many of its n-grams here stand in one that is kept before it, and how
    many in one that may be."""
    rows = _by_hash(rows)
    state, first = ints(rows, "state"), _first_of_hash(rows)
    place = np.arange(len(rows))
    kept = _first_kept(first, state == _KEPT)
    num = ints(rows, "num")
    rows = rows.append_column("certain", pa.array(np.where(kept < place, num, 0)))
    rows = rows.append_column("possible", pa.array(np.where(first < place, num, 0)))
    return PartitionResult(
        _sums(rows.filter(pa.array(state == _UNKNOWN)), ("certain", "possible"), ("total",))
    )


def _by_hash(rows: pa.Table) -> pa.Table:
    order = in_order(rows, "paragraph")
    return rows.take(pa.array(order[np.argsort(ints(rows, "hash")[order], kind="stable")]))


def _first_of_hash(rows: pa.Table) -> I64:
    """For each row, the place of the first one with its hash."""
    hashes = ints(rows, "hash")
    begins = np.flatnonzero(begins_of(hashes))
    return np.repeat(begins, np.diff(np.append(begins, len(hashes))))


def _first_kept(first: I64, is_kept: np.ndarray) -> I64:
    """For each row, the place of the first kept one with its hash; past all rows where there is none."""
    place = np.where(is_kept, np.arange(len(first)), len(first))
    begins, which = np.unique(first, return_inverse=True)
    found: I64 = np.minimum.reduceat(place, begins)[which]
    return found


def _sums(rows: pa.Table, summed: tuple[str, ...], more: tuple[str, ...] = ()) -> pa.Table:
    keys = ["node", "paragraph", *more]
    found = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in summed])
    return found.select([*keys, *(f"{name}_sum" for name in summed)]).rename_columns([*keys, *summed])


def states_of_slice(
    context: InsideContext, before: dict[int, str], number: int, rows: pa.Table
) -> PartitionResult:
    """What is decided of a slice's paragraphs now; `num_open` counts those that are not."""
    rows = _sums(rows, ("certain", "possible"), ("total",))
    total = ints(rows, "total")
    is_cut = ints(rows, "certain") / total > context.table.threshold
    is_kept = ~(ints(rows, "possible") / total > context.table.threshold)
    state = np.where(is_cut, _CUT, np.where(is_kept, _KEPT, _UNKNOWN))
    found = rows.select(["node", "paragraph"]).append_column("state", pa.array(state))
    if number in before:
        earlier = context.read(before[number])
        found = pa.concat_tables([earlier.filter(pc.not_equal(earlier["state"], _UNKNOWN)), found])
    found = found.sort_by([("node", "ascending"), ("paragraph", "ascending")])
    return PartitionResult(found, DedupCounts(num_open=int(np.count_nonzero(state == _UNKNOWN))))


def decided_rows(context: InsideContext, task: SliceOfParagraphs) -> pa.Table:
    """All n-grams of decided paragraphs, by hash."""
    rows = _with_states(context, task)
    return routed(context.partition_of(ints(rows, "hash")), rows)


def contained(_: int, rows: pa.Table) -> PartitionResult:
    """How many n-grams of each paragraph stand in which kept paragraph before it."""
    rows = _by_hash(rows)
    state = ints(rows, "state")
    kept = _first_kept(_first_of_hash(rows), state == _KEPT)
    again = np.flatnonzero(kept < np.arange(len(rows)))
    found = rows.take(pa.array(again)).select(["node", "paragraph", "state", "num"])
    found = found.append_column("twin", rows["node"].take(pa.array(kept[again])))
    found = found.append_column("twin_start", rows["start"].take(pa.array(kept[again])))
    return PartitionResult(_sums(found, ("num",), ("state", "twin", "twin_start")))


def contained_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """Of each paragraph the number of n-grams that stand before it, and the paragraph that has most of them; `start` is
    the paragraph's number."""
    rows = _sums(rows, ("num",), ("state", "twin", "twin_start"))
    order = np.lexsort(
        (
            ints(rows, "twin_start"),
            ints(rows, "twin"),
            -ints(rows, "num"),
            ints(rows, "paragraph"),
            ints(rows, "node"),
        )
    )
    rows = rows.take(pa.array(order))
    begins = np.flatnonzero(_begins(rows))
    found = rows.take(pa.array(begins)).select(["node", "paragraph", "state", "twin", "twin_start"])
    num = np.add.reduceat(ints(rows, "num"), begins) if len(begins) else begins
    found = found.append_column("num", pa.array(num)).rename_columns(
        ["node", "start", "state", "twin", "twin_start", "num"]
    )
    return PartitionResult(found)


def paragraph_cut_rows(context: InsideContext, piece: PieceOfCorpus) -> pa.Table:
    """The cuts of a piece, by slice."""
    documents = documents_of(context, open_piece(context.folder, piece.number), piece.rejected(context))

    def reason(text: str, left: str, num_contained: int) -> TooLittle | None:
        if context.table.whole_document:
            total = sum(len(ngram_hashes(text[start:end], context.table)) for start, end in lines_of(text))
            share = num_contained / total
            if share > context.table.threshold:
                return TooLittle(WHOLE_DOCUMENT, share, context.table.threshold)
        return None if left == text else too_little(text, left, context.table)

    return cut_rows_of_lines(
        context, documents, piece, lambda text, gone: without_lines(lines_of(text), gone), reason
    )
