"""Rows dealt to buckets on local disk, so that two large tables can be compared bucket by bucket in bounded memory."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from types import TracebackType

import pyarrow as pa

from lineage.store.write import split_by_bucket

_BUFFERED_BYTES = 64 << 20


class Spill:
    """A context: `add` rows with a column `k` (63 bits) under a name, then `read` one bucket of a name at a time.

    `buckets` is a power of two; rows with equal `k` meet in one bucket, whatever their name."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-spill-")
        self._held: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
        self._bytes = 0
        self._files: dict[tuple[str, int], list[str]] = defaultdict(list)

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def add(self, name: str, rows: pa.Table) -> None:
        """Deal `rows` to their buckets."""
        for bucket, piece in split_by_bucket(rows, self.buckets):
            self._held[name, bucket].append(piece)
        self._bytes += rows.nbytes
        if self._bytes > _BUFFERED_BYTES:
            self._flush()

    def read(self, name: str, bucket: int, schema: pa.Schema) -> pa.Table:
        """The rows of a bucket, in the order in which they were added; of `schema` if there are none."""
        pieces = [_read(path) for path in self._files.get((name, bucket), [])] + self._held.get((name, bucket), [])
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def _flush(self) -> None:
        for (name, bucket), pieces in self._held.items():
            path = f"{self._folder.name}/{name}-{bucket}-{len(self._files[name, bucket])}.arrow"
            table = pa.concat_tables(pieces)
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            self._files[name, bucket].append(path)
        self._held.clear()
        self._bytes = 0


def _read(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()
