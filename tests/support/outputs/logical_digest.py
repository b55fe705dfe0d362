"""The store's content as one digest a table: equal for equal rows, however they are ordered, filed or
compressed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lineage.ids import add_digests, content_hash, length_prefixed, show_digest
from lineage.storage.folder import Folder
from lineage.store.column_names import added_columns
from lineage.store.delta import ADVICE, StoreError, arrow_dataset, plain_reason, table_uri
from lineage.store.tables import SCHEMAS, TABLES, WRITTEN_ONCE


def logical_digest(out: Folder) -> dict[str, str]:
    """For each table that a run writes: the sum mod 2^128, as 32 hex digits, of the BLAKE3-128 of its rows.

    Two runs over the same inputs with the same recipe give equal digests. Memory: a batch of rows."""
    return {name: show_digest(add_digests(_row_hashes(out, name))) for name in WRITTEN_ONCE}


def _row_hashes(out: Folder, name: str) -> Iterator[int]:
    dataset = arrow_dataset(out, name)
    known = [*SCHEMAS[name].names, *added_columns(dataset.schema.names)]
    columns = [column for column in known if column not in TABLES[name].places]
    try:
        for batch in dataset.to_batches(columns=columns):
            as_bytes = [_as_bytes(column) for column in batch.columns]
            for row in zip(*as_bytes, strict=True):
                yield int.from_bytes(content_hash(length_prefixed(*row)), "big")
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"a file of {table_uri(out, name)} cannot be read: {plain_reason(error)}. {ADVICE}"
        ) from error


def _as_bytes(column: pa.Array) -> list[bytes]:
    """Each value as bytes that differ from those of every other value of its column, null included."""
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string()).cast(pa.binary())
    return [b"" if value is None else b"=" + value for value in column.to_pylist()]
