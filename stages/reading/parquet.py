"""Parquet files to documents, one a row; offsets are row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from stages.document import Document, Place
from stages.reading.options import InputCounts, ReadOptions, Unreadable, UnreadableError, unreadable_for_any_error
from stages.reading.row import BadRowError, document_from_row

_ROWS_AT_ONCE: Final = 64
_BUFFER_BYTES: Final = 1 << 20
_BAD_DATA = (pa.ArrowException, OSError, ValueError, OverflowError, LookupError)
"""What pyarrow raises for damaged pages and for values that Python cannot hold: broken UTF-8, an unknown time zone."""


def read_parquet(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """A document for each row, in order. A damaged row group is unreadable from its first damaged batch on."""
    try:
        # Pages are streamed: neither a row group nor the file is ever held as a whole.
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        error = _unfit(file.schema_arrow, options.text_field)
        num_rows = file.metadata.num_rows
    except _BAD_DATA as broken:
        file, num_rows, error = None, 0, f"not a whole Parquet file: {str(broken)[:200]}"
    if error is not None:
        yield Unreadable(file=options.file, offset=0, length=num_rows, error=error)
        return
    first = 0
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        yield from _read_group(file, group, range(first, first + num_rows), options, counts)
        first += num_rows


def read_parquet_at(stream: BinaryIO, offset: int, options: ReadOptions) -> Document | Unreadable:
    """The row with the number `offset`; ValueError if there is none."""
    for item in read_parquet(stream, options, InputCounts()):
        if (item.place.offset if isinstance(item, Document) else item.offset) == offset:
            return item
    raise ValueError(f"{options.file}: there is no row {offset}")


def _unfit(schema: pa.Schema, text_field: str) -> str | None:
    """Why no row of a file can be a document."""
    if text_field not in schema.names:
        return f"there is no column {text_field!r}, only {', '.join(schema.names)[:200] or 'none'}"
    if (num := schema.names.count(text_field)) > 1:
        return f"there are {num} columns {text_field!r}: expected one"
    kind = schema.field(text_field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return None
    return f"the column {text_field!r} is of type {kind}: expected string"


def _read_group(
    file: pq.ParquetFile, group: int, numbers: range, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    number = numbers.start
    batches = file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group])
    while number < numbers.stop:
        try:
            batch = next(batches)
        except (*_BAD_DATA, StopIteration) as broken:
            error = f"a damaged row group: {str(broken)[:200]}"
            yield Unreadable(file=options.file, offset=number, length=numbers.stop - number, error=error)
            return
        for index in range(batch.num_rows):
            yield _read_row(batch, index, number + index, options, counts)
        number += batch.num_rows


def _read_row(
    batch: pa.RecordBatch, index: int, number: int, options: ReadOptions, counts: InputCounts
) -> Document | Unreadable:
    try:
        with unreadable_for_any_error():
            row = _plain_row(batch, index)
            document = document_from_row(row, number, Place(file=options.file, offset=number, length=1), options)
    except UnreadableError as error:
        return Unreadable(file=options.file, offset=number, length=1, error=str(error), fault=error.fault)
    counts.add_row()
    return document


def _plain_row(batch: pa.RecordBatch, index: int) -> dict[str, Any]:
    try:
        return {name: column[index].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except _BAD_DATA as error:
        raise BadRowError(f"a value that cannot be read: {type(error).__name__}") from error
