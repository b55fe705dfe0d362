"""Near-duplicates: bands, candidate pairs by bucket, and their verification by estimate and by exact Jaccard.

What a comparison needs is fetched file by file, sent to where its pairs are, and compared there; so every
file is read in order and no partition reads at random. Every `*_rows` function gives rows with a partition
number; every other public function reduces a partition to a table that is published."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import sort_keys
from pipeline.dedup.exchange import PARTITION
from pipeline.dedup.inputs import KeysFile, is_earlier, locators, open_slice, ordinals, read_keys, read_texts
from pipeline.dedup.rows import (
    Context,
    FileSlice,
    PartitionResult,
    are_among,
    first_documents,
    ints,
    positions,
    prefix,
    routed,
)
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.bands import I64, band_keys, band_orders, unpack_signatures
from stages.dedup.candidates import (
    BandRows,
    candidate_pairs,
    collapse_equal_texts,
    distinct_pairs,
    repeats_earlier,
)
from stages.dedup.minhash import U32, estimate_floor
from stages.dedup.options import Keep
from stages.dedup.shingles import U64, jaccard, shingles

_BAND_COLUMNS: Final = ("key", "text", "k", "order", "preference", "node")
_ESTIMATED_AT_ONCE: Final = 1 << 16
_TEXTS_AT_ONCE: Final = 1 << 8
"""Whose sets of shingles are made and held."""
_FETCHED_BYTES: Final = 2 << 20
"""Of values that are published together, copies counted: a long page's set may be a hundred times the mean, and the
pages of a dense cluster are wanted by many partitions."""
UNLIKE: Final = 0.2
"""An estimated Jaccard below it is that of two texts and not of two states of one (docs/url-duplicates.md:
measured)."""
_DIGITS: Final = 20
"""Of a time up to its microseconds. A step of one's own may write any text there."""


def bucket_rows(context: Context, files: FileSlice) -> pa.Table:
    """The buckets that the texts of a slice lie in, each once, or twice where several of them do."""
    found = [np.empty(0, np.int64)]
    for _, table in first_documents(context, files, ["signature"]):
        found.append(_keys_of(context, table.filter(pc.is_valid(table["signature"]))).ravel())
    keys = np.sort(np.concatenate(found))
    # Another text of the bucket in this slice is all that the third row of it would say.
    keys = keys[np.concatenate((np.ones(min(2, len(keys)), np.bool_), keys[2:] != keys[:-2]))]
    slices = pa.array(np.full(len(keys), files.number, np.int16))
    return routed(context.partition_of(keys), pa.table({"key": keys, "slice": slices}))


def shared_buckets(_: int, rows: pa.Table) -> PartitionResult:
    """The buckets that hold more than one text, for each slice that has one of these: no other proposes a
    pair, and most texts resemble none."""
    shared = rows.filter(pa.array(repeats_earlier(ints(rows, "key"))))
    slices, keys = distinct_pairs(shared["slice"].to_numpy().astype(np.int64), ints(shared, "key"))
    return PartitionResult(pa.table({"slice": slices, "key": keys}))


def shared_bucket_rows(context: Context, name: str) -> pa.Table:
    """Shared buckets, by slice."""
    rows = context.read(name, ["slice", "key"])
    return routed(ints(rows, "slice"), rows.select(["key"]))


def buckets_of_slice(_: int, rows: pa.Table) -> PartitionResult:
    """A slice's shared buckets, sorted."""
    return PartitionResult(pa.table({"key": np.sort(ints(rows, "key"))}))


class SharedSlice(NamedTuple):
    """A slice of files and the published buckets that its texts share with others."""

    files: FileSlice
    buckets: str


def band_rows(context: Context, shared: SharedSlice) -> pa.Table:
    """A row for each shared band of each distinct text of a file, by bucket."""
    columns: dict[str, list[I64]] = {name: [] for name in _BAND_COLUMNS}
    buckets = ints(context.read(shared.buckets), "key")
    names = ["doc_id", "clean_hash", "signature", "num_chars", "captured_at"]
    for _, table in first_documents(context, shared.files, names):
        signed = table.filter(pc.is_valid(table["signature"]))
        keys = _keys_of(context, signed)
        is_shared = are_among(buckets, keys)
        chosen = is_shared.any(axis=1)
        # A filter goes chunk by chunk. To take rows would put all signatures of the file into one array,
        # whose 32-bit offsets end at 2 GiB.
        signed, keys, is_shared = signed.filter(pa.array(chosen)), keys[chosen], is_shared[chosen]
        # Only a text that the file holds again has rows to collapse.
        again = repeats_earlier(prefix(signed, "clean_hash"))
        alone = _bands_of(context, signed.filter(pa.array(~again)), keys[~again], is_shared[~again])
        repeated = _bands_of(context, signed.filter(pa.array(again)), keys[again], is_shared[again])
        for found in (alone, collapse_equal_texts(repeated)):
            for name, values in columns.items():
                values.append(getattr(found, name))
    whole = {name: np.concatenate([np.empty(0, np.int64), *values]) for name, values in columns.items()}
    return routed(context.partition_of(whole["key"]), pa.table(whole))


def _keys_of(context: Context, signed: pa.Table) -> I64:
    """The bucket of each band of each document, shape (num_documents, bands)."""
    return band_keys(_unpacked(context, signed), context.table)


def _unpacked(context: Context, signed: pa.Table) -> U32:
    return unpack_signatures(signed["signature"], context.table)


def _bands_of(context: Context, signed: pa.Table, keys: I64, is_shared: npt.NDArray[np.bool_]) -> BandRows:
    """The rows of every document's shared bands; `keys` and `is_shared` have the shape (num_documents,
    bands)."""
    row, _ = np.nonzero(is_shared)
    node = ints(signed, "node")[row]
    earlier = is_earlier(node)
    return BandRows(
        key=keys[is_shared],
        text=prefix(signed, "clean_hash")[row],
        k=sort_keys(signed["doc_id"].to_pylist())[row],
        order=band_orders(_unpacked(context, signed), context.table)[is_shared],
        preference=preferences(signed, context.table.keep)[row],
        node=node,
        earlier=earlier,
        stays=earlier,
    )


def preferences(table: pa.Table, keep: Keep) -> I64:
    """Numbers in the order in which documents are kept (`stages.dedup.decide` takes them in the same one): those
    of no time of capture last, where that decides."""
    if keep == "longest":
        return -ints(table, "num_chars")
    sign = -1 if keep == "newest" else 1
    moments = map(_moment, table["captured_at"].to_pylist())
    return np.array(
        [np.iinfo(np.int64).max if found is None else sign * found for found in moments], np.int64
    )


def _moment(time: str | None) -> int | None:
    """A number in the order of times, to the microsecond: in any coarser one a large bucket would pair all
    with a text that is itself dropped for a sooner one, and what resembles the kept one would pass."""
    digits = "".join(filter(str.isdecimal, time or ""))[:_DIGITS]
    if not digits:
        return None
    digits = digits.ljust(_DIGITS, "0")
    # A date of eight digits times a day's microseconds still fits into 63 bits; twenty digits would not.
    hours = int(digits[:8]) * 24 + int(digits[8:10])
    seconds = (hours * 60 + int(digits[10:12])) * 60 + int(digits[12:14])
    return seconds * 1_000_000 + int(digits[14:])


def candidates(_: int, rows: pa.Table) -> PartitionResult:
    """The pairs that the partition's buckets propose."""
    columns = {name: ints(rows, name) for name in _BAND_COLUMNS}
    earlier = is_earlier(columns["node"])
    pairs = candidate_pairs(BandRows(**columns, earlier=earlier, stays=earlier))
    return PartitionResult(
        pa.table({"a": pairs.a, "b": pairs.b}),
        DedupCounts(capped_buckets=pairs.num_capped, num_open=len(pairs.a)),
    )


def endpoint_rows(context: Context, name: str) -> pa.Table:
    """Both ends of every pair, by slice, and the partition where the pair is compared: that of its greater
    doc_id, so that the pairs of a bucket's least member are spread."""
    rows = context.read(name, ["a", "b"])
    a, b = ints(rows, "a"), ints(rows, "b")
    node, meeting = distinct_pairs(np.concatenate((a, b)), np.tile(context.partition_of(b), 2))
    return pa.table({PARTITION: context.slice_of(node), "node": node, "meeting": meeting})


def signatures_of(context: Context, number: int, rows: pa.Table) -> PartitionResult:
    """The signature of each document requested, for each partition that requested it."""
    return _fetched(context, number, rows, "signature")


def shingles_of(context: Context, number: int, rows: pa.Table) -> PartitionResult:
    """The shingle set of each document requested, as uint64, for each partition that requested it. A text
    that was purged from an earlier output has none, and its pairs come to nothing: no document is dropped on
    an unverified claim."""
    return _fetched(context, number, rows, "shingles")


def _fetched(
    context: Context, number: int, rows: pa.Table, what: Literal["signature", "shingles"]
) -> PartitionResult:
    return PartitionResult(_fetched_by_file(context, number, rows, what))


def _fetched_by_file(
    context: Context, number: int, rows: pa.Table, what: Literal["signature", "shingles"]
) -> Iterator[pa.Table]:
    """File by file, and some at a time: the values of a slice may be most of the memory that comparing takes."""
    node, meeting = distinct_pairs(ints(rows, "node"), ints(rows, "meeting"))
    ordinal = ordinals(node)
    for file in open_slice(context.folder, number):
        here = slice(*np.searchsorted(ordinal, [file.ordinal, file.ordinal + 1]))
        if here.start == here.stop:
            continue
        wanted, begins = np.unique(node[here], return_index=True)
        begins = np.append(begins, here.stop - here.start)
        first = 0
        for values in _signatures(file, wanted) if what == "signature" else _sets(context, file, wanted):
            some = wanted[first : first + len(values)]
            low, high = (here.start + begins[each] for each in (first, first + len(values)))
            first += len(values)
            copies = np.searchsorted(some, node[low:high])
            sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy()[copies]
            cuts = np.flatnonzero(np.diff(sizes.cumsum() // _FETCHED_BYTES)) + 1
            for begin, end in itertools.pairwise((0, *cuts.tolist(), high - low)):
                at = slice(low + begin, low + end)
                value = values.take(pa.array(copies[begin:end]))
                found = pa.table({"node": node[at], "meeting": meeting[at], "value": value})
                yield found.filter(pc.is_valid(found["value"])) if value.null_count else found


def _signatures(file: KeysFile, wanted: I64) -> Iterator[pa.Array]:
    table = read_keys(file, ["signature"])
    chosen = np.zeros(len(table), np.bool_)
    chosen[np.searchsorted(ints(table, "node"), wanted)] = True
    yield table["signature"].filter(pa.array(chosen)).cast(pa.large_binary()).combine_chunks()


def _sets(context: Context, file: KeysFile, wanted: I64) -> Iterator[pa.Array]:
    """The sets of shingles, those of some texts at a time; the texts are read once."""
    table, key = context.table, context.shingle_key
    sets = (
        None if text is None else shingles(text, table, key).tobytes() for text in read_texts(file, wanted)
    )
    while found := list(itertools.islice(sets, _TEXTS_AT_ONCE)):
        yield pa.array(found, pa.large_binary())


class Compared(NamedTuple):
    """A file of pairs or, if `is_values`, of what was fetched for them."""

    name: str
    is_values: bool


def pair_rows(context: Context, file: Compared) -> Iterator[pa.Table]:
    """Pairs, and values as rows with b = -1, by the partition where they meet."""
    for rows in context.tables(file.name):
        if file.is_values:
            b = np.full(len(rows), -1)
            yield pa.table({PARTITION: rows["meeting"], "a": rows["node"], "b": b, "value": rows["value"]})
        else:
            b = ints(rows, "b")
            value = pa.nulls(len(b), pa.large_binary())
            yield pa.table({PARTITION: context.partition_of(b), "a": rows["a"], "b": b, "value": value})


def estimated(context: Context, _: int, rows: pa.Table) -> PartitionResult:
    """The pairs whose signatures do not rule the threshold out."""
    pairs = _Pairs(rows)
    signatures = unpack_signatures(pairs.values(), context.table)
    likely = np.zeros(len(pairs.a), np.bool_)
    floor = estimate_floor(context.table)
    for begin in range(0, len(likely), _ESTIMATED_AT_ONCE):
        block = slice(begin, begin + _ESTIMATED_AT_ONCE)
        agreement = (signatures[pairs.left[block]] == signatures[pairs.right[block]]).mean(axis=1)
        likely[block] = agreement >= floor
    return PartitionResult(
        pa.table({"a": pairs.a[likely], "b": pairs.b[likely]}),
        DedupCounts(candidate_pairs=len(likely), compared_pairs=int(np.count_nonzero(likely))),
    )


def unlike(context: Context, _: int, rows: pa.Table) -> PartitionResult:
    """How many of these pairs have texts that are not alike, by the source_index of b; `compared_pages` are
    those of which both have a signature."""
    pairs = _Pairs(rows)
    both = np.flatnonzero((pairs.left >= 0) & (pairs.right >= 0))
    signatures = unpack_signatures(pairs.values(), context.table)
    is_unlike = np.zeros(len(both), np.bool_)
    for begin in range(0, len(both), _ESTIMATED_AT_ONCE):
        block = both[begin : begin + _ESTIMATED_AT_ONCE]
        agreement = (signatures[pairs.left[block]] == signatures[pairs.right[block]]).mean(axis=1)
        is_unlike[begin : begin + len(block)] = agreement < UNLIKE
    sources, numbers = np.unique(locators(pairs.b[both[is_unlike]])[0], return_counts=True)
    by_source = dict(zip(map(str, sources.tolist()), numbers.tolist(), strict=True))
    counts = DedupCounts(compared_pages=len(both), unlike_pages=by_source)
    return PartitionResult(pa.table({"b": pairs.b[both[is_unlike]]}), counts)


def verified(context: Context, _: int, rows: pa.Table) -> PartitionResult:
    """The pairs whose shingles have a Jaccard at or above the threshold, and that Jaccard; without
    `dedup.verify` every pair whose texts are there."""
    pairs = _Pairs(rows)
    sets = pairs.sets()
    similarity = np.zeros(len(pairs.a))
    near = (pairs.left >= 0) & (pairs.right >= 0)
    for index in np.flatnonzero(near):
        similarity[index] = jaccard(sets[pairs.left[index]], sets[pairs.right[index]])
    if context.table.verify:
        near &= similarity >= context.table.threshold
    return PartitionResult(
        pa.table({"a": pairs.a[near], "b": pairs.b[near], "similarity": similarity[near]}),
        DedupCounts(verified_pairs=int(np.count_nonzero(near))),
    )


class _Pairs:
    """The distinct pairs (a, b) of a partition, and the index among the values of each one's ends (-1: not
    there)."""

    def __init__(self, rows: pa.Table) -> None:
        is_pair = ints(rows, "b") >= 0
        pairs = rows.select(["a", "b"]).filter(pa.array(is_pair))
        self.a, self.b = distinct_pairs(ints(pairs, "a"), ints(pairs, "b"))
        self._column, places = rows["value"], np.flatnonzero(~is_pair)
        nodes, first = np.unique(ints(rows, "a")[places], return_index=True)
        self._places = places[first]
        self.left, self.right = positions(nodes, self.a), positions(nodes, self.b)

    def values(self) -> pa.Array:
        """The values themselves, copied."""
        return self._column.take(pa.array(self._places)).combine_chunks()

    def sets(self) -> list[U64]:
        """The values as sets of shingles, which lie in the rows that came: they may be most of the memory."""
        found: list[U64] = []
        for chunk in filter(len, self._column.chunks):
            _, ends, data = chunk.buffers()
            borders = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1].tolist()
            content = np.frombuffer(data or b"", np.uint8)
            found += [content[begin:end].view(np.uint64) for begin, end in itertools.pairwise(borders)]
        return [found[place] for place in self._places.tolist()]
