"""Rows into a Parquet file that appears whole or not at all, in bounded memory and with bytes that repeat."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.storage import Folder

_MAX_ROWS = 4096
_MAX_CHARS = 8 << 20


class RowWriter:
    """A context: `add` rows as mappings of column to value (absent is null). Row groups end after 4,096 rows or 8 MiB
    of text, whichever comes first: a function of the rows alone."""

    def __init__(self, folder: Folder, name: str, schema: pa.Schema) -> None:
        self._folder, self._name, self._schema = folder, name, schema
        self._rows: list[Mapping[str, Any]] = []
        self._chars = 0
        self._stack = ExitStack()

    def __enter__(self) -> RowWriter:
        file = self._stack.enter_context(self._folder.writing(self._name))
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(file, self._schema, compression="zstd", compression_level=3)
        )
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._flush()
        self._stack.__exit__(*error)

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._chars += len(row.get("text") or "")
        if len(self._rows) >= _MAX_ROWS or self._chars >= _MAX_CHARS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = {name: [row.get(name) for row in self._rows] for name in self._schema.names}
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._rows, self._chars = [], 0
