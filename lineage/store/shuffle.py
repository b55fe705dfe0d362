"""The shuffle: rows of any number of tables split by bucket of `k`, gathered bucket by bucket in bounded
memory.

Within one process a `Shuffle` holds its rows and spills them to local disk past a bound. Where many processes
have rows each publishes its share: for each table a file that holds its rows bucket after bucket, each bucket
an Arrow stream, behind a header of buckets + 1 offsets (int64, little-endian). When all shares stand, one
process makes an index of their headers. Who writes a bucket then `gather`s it with one read of the index and
one of each share that has rows of it, and no process holds more than a share or a bucket."""

from __future__ import annotations

import functools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lineage.allocator import give_back_freed_memory
from lineage.storage.folder import Folder

BUFFER_BYTES: Final = 32 << 20
"""How many bytes of rows a shuffle holds before it spills them."""

_PIECE_BYTES: Final = 500
"""What a piece of a table takes in memory for each of its columns, beside its rows (measured: 470 to 510). A small one
takes more than its rows."""

_SORTED_BYTES: Final = 256 << 20
"""Of rows that are sorted by bucket at a time, on average: no column of texts may pass 2 GiB in it."""

_KEY_BITS: Final = 63
_OFFSET_BYTES: Final = 8
_CONNECTIONS: Final = 16
"""Requests under way at a time where a bucket is gathered from an object store."""

_INDEXED_AT_ONCE: Final = 1 << 24
"""Places of buckets in shares that making an index holds at a time: 128 MB of headers."""

Place = TypeVar("Place")
Read = TypeVar("Read")


class Shuffle:
    """A context: `add` rows under the name of their table, then read them bucket by bucket, or `publish`
    them.

    Rows of a bucket come back in the order in which they were added. Memory: `buffer_bytes` and one
    bucket."""

    def __init__(
        self,
        buckets: int | Mapping[str, int] = 1,
        scratch: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`buckets`: how many each table has (a power of two), by name or for all; a table that is not named
        has one. `scratch`: the folder for spilled rows, instead of the system's temporary one."""
        self._buckets = buckets
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-shuffle-", dir=scratch)
        self._buffer_bytes = buffer_bytes
        self._num_bytes = 0
        self._held: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
        self._spilled: dict[tuple[str, int], list[_Stretch]] = defaultdict(list)
        self._num_files = 0

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def num_buckets(self, name: str) -> int:
        """How many buckets table `name` has."""
        return self._buckets if isinstance(self._buckets, int) else self._buckets.get(name, 1)

    def add(self, name: str, rows: pa.Table, bucket: int | None = None) -> None:
        """Rows of table `name`, for the bucket of their `k` or for the given one. All have the same
        columns."""
        for owner, piece in _split(rows, self.num_buckets(name)) if bucket is None else [(bucket, rows)]:
            self._held[name, owner].append(piece)
            self._num_bytes += _PIECE_BYTES * rows.num_columns
        self._num_bytes += rows.nbytes
        if self._num_bytes > self._buffer_bytes:
            self._spill()

    def read(self, name: str, bucket: int, schema: pa.Schema) -> pa.Table:
        """The rows of a bucket; those of `schema` without rows if there are none."""
        pieces = [_read_spilled(stretch) for stretch in self._spilled.get((name, bucket), ())]
        pieces += self._held.get((name, bucket), ())
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def filled(self) -> Iterator[tuple[str, int, pa.Table]]:
        """(table, bucket, rows) of every bucket that has rows, in order."""
        for name, bucket in sorted(self._held.keys() | self._spilled.keys()):
            yield name, bucket, self.read(name, bucket, pa.schema([]))

    def publish(self, folder: Folder, key: str) -> list[str]:
        """Write the share's files below `folder` under a key of its own; the tables that it has rows of."""
        names = sorted({name for name, _ in self._held.keys() | self._spilled.keys()})
        for name in names:
            with folder.writing(_file(name, key)) as file:
                ends = [_OFFSET_BYTES * (self.num_buckets(name) + 1)]
                file.seek(ends[0])  # the header is written when every bucket's length is known
                for bucket in range(self.num_buckets(name)):
                    stream = _as_stream(self.read(name, bucket, pa.schema([])))
                    file.write(stream)
                    ends.append(ends[-1] + len(stream))
                file.seek(0)
                file.write(np.array(ends, dtype="<i8").tobytes())
        return names

    def _spill(self) -> None:
        """Put all rows held at the end of a new file: one each time, however many buckets there are."""
        path = f"{self._folder.name}/{self._num_files}.arrow"
        self._num_files += 1
        with pa.OSFile(path, "wb") as sink:
            for name, bucket in list(self._held):
                begin = sink.tell()
                rows = pa.concat_tables(self._held.pop((name, bucket))).combine_chunks()
                with pa.ipc.new_stream(sink, rows.schema) as writer:
                    writer.write_table(rows)
                self._spilled[name, bucket].append(_Stretch(path, begin, sink.tell() - begin))
        self._num_bytes = 0
        give_back_freed_memory()  # thousands of small pieces leave holes in the heap, which other sizes do not fill


def publish_index(folder: Folder, name: str, keys: Sequence[str], buckets: int) -> None:
    """Write where each bucket of table `name` lies in the shares with these keys: bucket after bucket, for
    each share begin and end in bytes (int64, little-endian). So a bucket's place in all shares is one read,
    and a share without rows of it is not asked."""
    at_once = max(1, _INDEXED_AT_ONCE // max(1, len(keys)))
    with folder.writing(_index(name)) as file:
        for first in range(0, buckets, at_once):
            num = min(at_once, buckets - first)
            part = functools.partial(_header, folder, name, first, num)
            ends = np.array(_of_each(folder, part, keys), dtype="<i8").reshape(len(keys), num + 1)
            file.write(np.stack((ends[:, :-1], ends[:, 1:]), axis=2).swapaxes(0, 1).tobytes())


def _header(folder: Folder, name: str, first: int, num: int, key: str) -> npt.NDArray[np.int64]:
    """Where `num` buckets from `first` on begin in a share, and where the last of them ends."""
    read = folder.read_range(_file(name, key), _OFFSET_BYTES * first, _OFFSET_BYTES * (num + 1))
    return np.frombuffer(read, "<i8")


def gather(folder: Folder, name: str, keys: Sequence[str], bucket: int, schema: pa.Schema) -> pa.Table:
    """The rows of one bucket of table `name` out of the shares with these keys, in their order; those of
    `schema` without rows if there are none. `publish_index` was called with the same keys."""
    length = 2 * _OFFSET_BYTES * len(keys)
    places = np.frombuffer(folder.read_range(_index(name), length * bucket, length), "<i8").reshape(-1, 2)
    filled = [
        (key, begin, end) for key, (begin, end) in zip(keys, places.tolist(), strict=True) if end > begin
    ]

    def rows_of(place: tuple[str, int, int]) -> pa.Table:
        key, begin, end = place
        return pa.ipc.open_stream(folder.read_range(_file(name, key), begin, end - begin)).read_all()

    pieces = _of_each(folder, rows_of, filled)
    return pa.concat_tables(pieces) if pieces else schema.empty_table()


def _of_each(folder: Folder, read: Callable[[Place], Read], places: Sequence[Place]) -> list[Read]:
    """What `read` gives for each place, in order; of an object store several at a time."""
    if not folder.is_remote:
        return [read(place) for place in places]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return list(pool.map(read, places))


def bucket_of(keys: npt.NDArray[np.int64], buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each `k`, shape (len(keys),): its leading bits. `buckets` is a power of two."""
    assert buckets > 0 and buckets & (buckets - 1) == 0, f"{buckets} is not a power of two"
    return keys >> np.int64(_KEY_BITS - (buckets.bit_length() - 1)) if buckets > 1 else np.zeros_like(keys)


def _split(rows: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """`rows` (with a column `k`, or all to bucket 0) as (bucket, its rows), slice after slice: a column of
    texts counts its bytes with 32 bits, and sorting makes one array of it."""
    if buckets == 1 or "k" not in rows.column_names:
        if rows.num_rows:
            yield 0, rows
        return
    num_slices = 1 + rows.nbytes // _SORTED_BYTES
    num_rows = max(1, -(-rows.num_rows // num_slices))
    for first in range(0, rows.num_rows, num_rows):
        yield from _split_at_once(rows.slice(first, num_rows), buckets)


def _split_at_once(rows: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """(bucket, its rows), ascending; empty buckets are left out."""
    owner = bucket_of(rows["k"].to_numpy(), buckets)
    # One stable sort and one copy of the rows, then slices of it: a filter for each bucket would read them
    # all each time.
    order = np.argsort(owner, kind="stable")
    ordered = rows.take(pa.array(order))
    present, starts = np.unique(owner[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for bucket, start, end in zip(present.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield bucket, ordered.slice(start, end - start)


def _as_stream(rows: pa.Table) -> bytes:
    if not rows.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class _Stretch(NamedTuple):
    """Where rows of a bucket lie in a file of spilled ones, in bytes."""

    path: str
    begin: int
    size: int


def _read_spilled(stretch: _Stretch) -> pa.Table:
    # Mapped and not read: what a bucket has spilled would be there a second time as it is put in order.
    with pa.memory_map(stretch.path) as source:
        source.seek(stretch.begin)
        return pa.ipc.open_stream(source.read_buffer(stretch.size)).read_all()


def _file(name: str, key: str) -> str:
    return f"{name}-{key}.rows"


def _index(name: str) -> str:
    return f"{name}.index"
