"""Rows of a run's tables on their way to buckets: dealt by many processes, gathered by as many others.

A deal is one process's share: for each table a file that holds its rows bucket after bucket, each bucket an Arrow
stream, behind a header of buckets + 1 offsets (int64, little-endian). So whoever writes a bucket reads two small ranges
of each deal, and nobody holds more than a share or a bucket. (`write.Spool` is for who has all rows in one process.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from lineage.storage.folder import Folder
from lineage.store.tables import WRITTEN_ONCE
from lineage.store.write import UrlKey, conform, index_rows, split_by_bucket

_OFFSET_BYTES = 8


class Deal:
    """One share of the rows; `buckets` gives each table's number of buckets. Held in memory until it is published."""

    def __init__(self, buckets: Mapping[str, int]) -> None:
        self._buckets = buckets
        self._pieces: dict[str, dict[int, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))

    def add(self, name: str, rows: pa.Table) -> None:
        """Rows of table `name`, to the buckets of their `k`."""
        for bucket, piece in split_by_bucket(conform(rows, WRITTEN_ONCE[name]), self._buckets[name]):
            self._pieces[name][bucket].append(piece)

    def add_documents(self, rows: pa.Table, url_key: UrlKey) -> None:
        """Rows of `documents`, and of every index table that is derived from them."""
        rows = conform(rows, WRITTEN_ONCE["documents"])
        self.add("documents", rows)
        for name, derived in index_rows(rows, url_key).items():
            self.add(name, derived)

    def publish(self, folder: Folder, key: str) -> list[str]:
        """Write the share's files below `folder` under a key of its own; the tables that it has rows of."""
        for name, pieces in self._pieces.items():
            streams = [_packed(pieces[bucket]) if bucket in pieces else b"" for bucket in range(self._buckets[name])]
            first = _OFFSET_BYTES * (len(streams) + 1)
            offsets = first + np.cumsum([0, *map(len, streams)], dtype="<i8")
            with folder.writing(_file(name, key)) as file:
                file.write(offsets.tobytes())
                for stream in streams:
                    file.write(stream)
        return sorted(self._pieces)


def gather(folder: Folder, name: str, keys: Iterable[str], bucket: int) -> pa.Table:
    """The rows of one bucket of table `name` out of the deals with these keys, in their order."""
    pieces = []
    for key in keys:
        file = _file(name, key)
        start, end = np.frombuffer(folder.read_range(file, _OFFSET_BYTES * bucket, 2 * _OFFSET_BYTES), "<i8").tolist()
        if end > start:
            pieces.append(pa.ipc.open_stream(folder.read_range(file, start, end - start)).read_all())
    return pa.concat_tables(pieces) if pieces else WRITTEN_ONCE[name].empty_table()


def _packed(pieces: list[pa.Table]) -> bytes:
    rows, sink = pa.concat_tables(pieces), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _file(name: str, key: str) -> str:
    return f"{name}-{key}.rows"
