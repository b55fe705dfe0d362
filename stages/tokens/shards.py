"""Token shards: documents in the order of a keyed hash of their ids, cut where a shard is full.

1. A unit of input becomes a *run*: its kept documents as tokens, in hash order (`write_run`).
2. The runs of a group are cut into shards together (`cut_group`): one look at their rows, none at their
  tokens.
3. A shard is the merge of one slice of each run (`write_shard`), streamed, so that its tokens are never held
  whole.

Any division of the same documents into runs gives the same shards.
"""

from __future__ import annotations

import functools
import io
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from lineage.ids import ID_BYTES, content_hash, tokens_hash
from lineage.index.blocks import BLOCK_BYTES, TOKEN_BYTES, ShardHasher, as_bytes
from lineage.index.output_index import Shard, shard_names
from lineage.storage.folder import Folder
from lineage.store.tables import SHARD_INDEX

RUN: Final = pa.schema(
    [
        ("key", pa.binary(ID_BYTES)),
        ("doc_id", pa.binary()),
        ("num_tokens", pa.int64()),
        ("tokens_hash", pa.binary()),
    ]
)
"""The rows of a run, in order of `key`: its tokens file holds the documents in the same order."""

_ENCODE_CHARS: Final = 4 << 20
"""Characters encoded at once: enough to amortise a call."""

_HELD_BYTES: Final = 64 << 20
"""Bytes of tokens that a run holds until their order is known; more wait on local disk."""


class Encoder(Protocol):
    """What a run needs of a tokenizer."""

    @property
    def eot_id(self) -> int: ...

    def encode_batch(self, texts: Sequence[str], /) -> list[npt.NDArray[np.uint32]]: ...


Given = tuple[bytes, str | npt.NDArray[np.uint32]]
"""A document as a run is given it: its id, and its text or its tokens, end-of-text among them."""


class ByteStream(Protocol):
    """Something that gives its next bytes: a file, or a RangeReader."""

    def read(self, num_bytes: int, /) -> bytes: ...


def shuffle_key(seed: int, doc_id: bytes) -> bytes:
    """Where a document stands in its group: BLAKE3-128 of its id, keyed with BLAKE3-256 of `sluice shuffle
    <seed>`."""
    return blake3(doc_id, key=_seed_key(seed)).digest(length=ID_BYTES)


@functools.cache
def _seed_key(seed: int) -> bytes:
    return blake3(f"sluice shuffle {seed}".encode()).digest()


def write_run(documents: Iterable[Given], tokenizer: Encoder, seed: int, tokens_out: IO[bytes]) -> pa.Table:
    """Write the tokens of the documents, each followed by end-of-text, to `tokens_out` in hash order; gives
    the RUN rows. `tokenizer` is asked nothing where no document comes as a text.

    `tokens_hash` is over all `num_tokens` tokens, end-of-text included. The ids must differ. Texts are not
    held: their tokens wait, past 64 MiB of them on local disk, until the order is known."""
    doc_ids: list[bytes] = []
    lengths: list[int] = []
    hashes: list[bytes] = []
    with tempfile.SpooledTemporaryFile(_HELD_BYTES) as held:
        for batch in _batches(documents):
            texts = [given for _, given in batch if isinstance(given, str)]
            encoded = _with_end(texts, tokenizer)
            for doc_id, given in batch:
                placed = next(encoded) if isinstance(given, str) else given
                held.write(as_bytes(placed))
                doc_ids.append(doc_id)
                lengths.append(len(placed))
                hashes.append(tokens_hash(placed))
        keys = [shuffle_key(seed, doc_id) for doc_id in doc_ids]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ends = list(itertools.accumulate(lengths))
        for i in order:
            held.seek((ends[i] - lengths[i]) * TOKEN_BYTES)
            tokens_out.write(held.read(lengths[i] * TOKEN_BYTES))
    columns = [[column[i] for i in order] for column in (keys, doc_ids, lengths, hashes)]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, RUN, strict=True)], schema=RUN
    )


def _with_end(texts: Sequence[str], tokenizer: Encoder) -> Iterator[npt.NDArray[np.uint32]]:
    """The tokens of each text, with end-of-text."""
    if texts:
        eot = np.array([tokenizer.eot_id], dtype=np.uint32)
        for tokens in tokenizer.encode_batch(texts):
            yield np.concatenate([tokens, eot])


def _batches(documents: Iterable[Given]) -> Iterator[list[Given]]:
    batch: list[Given] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document[1])
        if size >= _ENCODE_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def cut(num_tokens: npt.NDArray[np.int64], shard_tokens: int) -> npt.NDArray[np.int64]:
    """Where documents of these lengths, in order, are cut: shard s holds documents [cut[s], cut[s + 1]).

    A shard takes documents while they fit into `shard_tokens`; a longer document is a shard of its own. Shape
    (num_shards + 1,); no documents, no shards."""
    ends = np.cumsum(num_tokens, dtype=np.int64)
    boundaries = [0]
    while (first := boundaries[-1]) < len(ends):
        before = int(ends[first - 1]) if first else 0
        boundaries.append(max(first + 1, int(np.searchsorted(ends, before + shard_tokens, side="right"))))
    return np.array(boundaries, dtype=np.int64)


def cut_group(runs: Sequence[pa.Table], shard_tokens: int) -> npt.NDArray[np.int64]:
    """Cut the documents of a group's runs (their RUN rows; `key` and `num_tokens` suffice) into shards.

    Shape (num_shards + 1, num_runs): shard s is the merge of the rows [result[s, r], result[s + 1, r]) of
    each run r. Needs about 40 bytes a document."""
    if not runs:
        return np.zeros((1, 0), dtype=np.int64)
    order = _merged_order(runs)
    run_of = _run_numbers(runs)[order]
    lengths = np.concatenate([run["num_tokens"].to_numpy() for run in runs])[order]
    boundaries = cut(lengths, shard_tokens)
    rows = np.zeros((len(boundaries), len(runs)), dtype=np.int64)
    for shard in range(len(boundaries) - 1):
        within = run_of[boundaries[shard] : boundaries[shard + 1]]
        rows[shard + 1] = rows[shard] + np.bincount(within, minlength=len(runs))
    return rows


def place_group(runs: Sequence[pa.Table], cuts: npt.NDArray[np.int64]) -> list[pa.Table]:
    """Where each row of each run lands: one table a run, with `shard` (from 0 in the group), `start`.

    `cuts` is what `cut_group` gave for the same runs."""
    if not runs:
        return []
    order = _merged_order(runs)
    lengths = np.concatenate([run["num_tokens"].to_numpy() for run in runs])
    sizes = np.diff(cuts.sum(axis=1))
    shards, starts = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    first = 0
    for shard, size in enumerate(sizes.tolist()):
        rows = order[first : first + size]
        ends = np.cumsum(lengths[rows])
        shards[rows], starts[rows] = shard, ends - lengths[rows]
        first += size
    ends = np.cumsum([len(run) for run in runs])[:-1]
    pieces = zip(np.split(shards, ends), np.split(starts, ends), strict=True)
    return [pa.table({"shard": of_run, "start": starts_of_run}) for of_run, starts_of_run in pieces]


def _merged_order(runs: Sequence[pa.Table]) -> npt.NDArray[np.int64]:
    """The rows of all runs, numbered one run after another, in order of their keys."""
    keys = np.concatenate([keys_of(run) for run in runs])
    return np.lexsort((keys[:, 1], keys[:, 0]))


def _run_numbers(runs: Sequence[pa.Table]) -> npt.NDArray[np.int32]:
    return np.repeat(np.arange(len(runs), dtype=np.int32), [len(run) for run in runs])


def keys_of(run: pa.Table) -> npt.NDArray[np.uint64]:
    """The keys of a run as pairs of integers, shape (num_rows, 2): compared as the bytes are."""
    pieces = [np.empty((0, 2), dtype=">u8")]
    for keys in filter(len, run["key"].chunks):
        whole = np.frombuffer(keys.buffers()[1], dtype=">u8").reshape(-1, 2)
        pieces.append(whole[keys.offset : keys.offset + len(keys)])
    return np.concatenate(pieces).astype(np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSlice:
    """The rows of one run that go into one shard, and a stream of exactly their tokens, from the first on."""

    rows: pa.Table
    tokens: ByteStream


def slice_bytes(run: pa.Table, first: int, last: int) -> tuple[int, int]:
    """Where the tokens of a run's rows [first, last) lie in its tokens file: (first byte, number of
    bytes)."""
    ends = np.concatenate([[0], np.cumsum(run["num_tokens"].to_numpy())]) * TOKEN_BYTES
    return int(ends[first]), int(ends[last] - ends[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOutputs:
    """The three files of a shard, open for writing."""

    tokens: IO[bytes]
    blocks: IO[bytes]
    index: IO[bytes]


def write_shard(slices: Sequence[RunSlice], outputs: ShardOutputs) -> tuple[int, int, str, str, str]:
    """Merge the slices into one shard: (num_tokens, num_documents, hash, blocks_hash, index_hash), hashes in
    hex.

    Holds the rows and about 8 MiB of tokens, beside what the streams buffer."""
    index = _shard_index(slices)
    hasher = ShardHasher()
    for piece in _pieces(slices):
        outputs.tokens.write(piece)
        hasher.update(piece)
    digests = hasher.digests()
    outputs.blocks.write(digests.blocks)
    index_bytes = encode_shard_index(index)
    outputs.index.write(index_bytes)
    num_tokens = sum(index["num_tokens"].to_pylist())
    blocks_hash, index_hash = content_hash(digests.blocks).hex(), content_hash(index_bytes).hex()
    return num_tokens, len(index), digests.hash, blocks_hash, index_hash


def publish_shard(out: Folder, source: str, shard: int, slices: Sequence[RunSlice]) -> Shard:
    """`write_shard` into an OUT under the shard's names; doing it twice is harmless."""
    file, blocks_file, index_file = shard_names(source, shard)
    with out.writing(file) as tokens, out.writing(blocks_file) as blocks, out.writing(index_file) as index:
        written = write_shard(slices, ShardOutputs(tokens=tokens, blocks=blocks, index=index))
    num_tokens, num_documents, digest, blocks_hash, index_hash = written
    return Shard(
        source=source,
        shard=shard,
        file=file,
        num_tokens=num_tokens,
        num_documents=num_documents,
        hash=digest,
        blocks_file=blocks_file,
        blocks_hash=blocks_hash,
        index_file=index_file,
        index_hash=index_hash,
    )


def encode_shard_index(index: pa.Table) -> bytes:
    """A SHARD_INDEX table as Parquet bytes; equal tables give equal bytes."""
    buffer = io.BytesIO()
    pq.write_table(
        index,
        buffer,
        compression="zstd",
        compression_level=3,
        row_group_size=65_536,
        write_page_index=True,
        write_page_checksum=True,
        use_dictionary=False,
        column_encoding={"start": "DELTA_BINARY_PACKED"},
    )
    return buffer.getvalue()


def merge_runs(runs: Sequence[RunSlice], tokens_out: IO[bytes]) -> pa.Table:
    """Write the tokens of runs, of one or more, as those of one run; gives its rows, with all columns of theirs.

    Holds the rows and about 8 MiB of tokens, beside what the streams buffer."""
    for piece in _pieces(runs):
        tokens_out.write(piece)
    return _merged([run.rows for run in runs])


def _merged(runs: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(runs).take(pa.array(_merged_order(runs)))


def _shard_index(slices: Sequence[RunSlice]) -> pa.Table:
    if not slices:
        return SHARD_INDEX.empty_table()
    rows = _merged([piece.rows.select(RUN.names) for piece in slices])
    lengths = rows["num_tokens"].to_numpy()
    starts = np.cumsum(lengths) - lengths
    return pa.table(
        [rows["doc_id"], pa.array(starts), rows["num_tokens"], rows["tokens_hash"]], schema=SHARD_INDEX
    )


def _pieces(slices: Sequence[RunSlice]) -> Iterator[bytes]:
    """The shard's bytes in order, in pieces of about a block."""
    if not slices:
        return
    tables = [piece.rows for piece in slices]
    lengths = [iter(table["num_tokens"].to_numpy().tolist()) for table in tables]
    held: list[bytes] = []
    size = 0
    for run in _run_numbers(tables)[_merged_order(tables)].tolist():
        held.append(_exactly(slices[run].tokens, next(lengths[run]) * TOKEN_BYTES))
        size += len(held[-1])
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _exactly(stream: ByteStream, num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError(
            f"a run's tokens end {num_bytes - len(data)} bytes early: remove its unit from work/ and run again"
        )
    return data


def shared_read_ahead(num_bytes: int, num_readers: int) -> int:
    """The bytes that each of so many readers, all open at once, reads ahead where they share `num_bytes`."""
    return max(64 << 10, num_bytes // max(1, num_readers))


class RangeReader:
    """A stretch of a file read forwards in requests of bounded size, on disk or in an object store.

    `read_ahead` bounds what it holds: see `shared_read_ahead`."""

    def __init__(self, folder: Folder, name: str, first_byte: int, num_bytes: int, read_ahead: int) -> None:
        self._folder, self._name = folder, name
        self._next, self._end = first_byte, first_byte + num_bytes
        self._read_ahead = read_ahead
        self._held = memoryview(b"")

    def read(self, num_bytes: int, /) -> bytes:
        """The next `num_bytes` bytes, fewer at the end of the stretch."""
        if len(self._held) < num_bytes and self._next < self._end:
            wanted = min(max(num_bytes - len(self._held), self._read_ahead), self._end - self._next)
            fetched = self._folder.read_range(self._name, self._next, wanted)
            self._next += wanted
            self._held = memoryview(bytes(self._held) + fetched)
        taken, self._held = self._held[:num_bytes], self._held[num_bytes:]
        return bytes(taken)
