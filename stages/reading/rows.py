"""JSONL (plain, gzip, zstd) and Parquet to documents: one a line, one a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage import ids
from stages.document import Document, Place
from stages.reading.members import Cursor, DamagedError, read_through
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.record import iso_date

_ROWS_AT_ONCE: Final = 64
_LONGEST_LINE_OVER_TEXT: Final = 7
"""JSON may write a byte of text as six (\\u0000); with its other fields a line has at most seven times as many."""


class _BadRowError(Exception):
    """A line or row that holds no document."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of JSONL: its offset, its length with the line end, its bytes (None if it is too long to hold)."""

    offset: int
    length: int
    data: bytes | None


def looks_like_jsonl(stream: BinaryIO) -> bool:
    """Whether a stream begins with `{`, after decompression."""
    try:
        head = next(read_through(Cursor(stream)), b"")
    except DamagedError:
        return False
    return head.lstrip()[:1] == b"{"


def read_jsonl(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """A document for each line that is not blank. Without an id of its own a row is named by its line's number."""
    offset = 0
    try:
        for number, line in enumerate(_lines(stream, options)):
            offset = line.offset + line.length
            if line.data is not None and not line.data.strip():
                continue
            yield _from_line(number, line, options, counts)
    except DamagedError as error:
        yield Unreadable(file=options.file, offset=offset, length=0, error=str(error))
    if not offset:
        yield Unreadable(file=options.file, offset=0, length=0, error="the file is empty")


def read_jsonl_at(stream: BinaryIO, offset: int, options: ReadOptions) -> Document | Unreadable:
    """The line at `offset` of the decompressed stream; the lines before it are read too, for their number."""
    for item in read_jsonl(stream, options, InputCounts()):
        place = item.place if isinstance(item, Document) else item
        if place.offset == offset:
            return item
    raise ValueError(f"{options.file}: no line begins at byte {offset}")


def _lines(stream: BinaryIO, options: ReadOptions) -> Iterator[_Line]:
    longest = options.max_document_bytes * _LONGEST_LINE_OVER_TEXT + (1 << 20)
    held: list[bytes] = []
    offset = num_held = 0
    for piece in read_through(Cursor(stream)):
        parts = piece.split(b"\n")
        for index, part in enumerate(parts):
            ended = index < len(parts) - 1
            num_held += len(part) + ended
            if num_held <= longest:
                held.append(part)
            else:
                held.clear()
            if ended:
                yield _Line(offset, num_held, b"".join(held) if num_held <= longest else None)
                offset, num_held = offset + num_held, 0
                held.clear()
    if num_held:
        yield _Line(offset, num_held, b"".join(held) if num_held <= longest else None)


def _from_line(number: int, line: _Line, options: ReadOptions, counts: InputCounts) -> Document | Unreadable:
    place = Place(file=options.file, offset=line.offset, length=line.length)
    try:
        if line.data is None:
            raise _BadRowError("the line is too long to hold (limits.max_document_bytes)")
        document = _from_row(_parse(line.data), str(number), place, options)
    except _BadRowError as error:
        return Unreadable(file=options.file, offset=line.offset, length=line.length, error=str(error))
    counts.add_row()
    return document


def _parse(data: bytes) -> dict[str, Any]:
    try:
        row = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise _BadRowError(f"the line is not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise _BadRowError(f"the line cannot be read as JSON in UTF-8: {type(error).__name__}") from error
    if not isinstance(row, dict):
        raise _BadRowError(f"the line is a JSON {type(row).__name__}, not an object")
    return row


def _from_row(row: Mapping[str, Any], number: str, place: Place, options: ReadOptions) -> Document:
    text = row.get(options.text_field)
    if not isinstance(text, str):
        what = f"a {type(text).__name__}, not a text" if options.text_field in row else "missing"
        raise _BadRowError(f"the field {options.text_field!r} is {what}")
    given = row.get(options.id_field)
    name = str(given) if isinstance(given, (str, int)) and not isinstance(given, bool) and given != "" else None
    url = row.get(options.url_field)
    used = {options.text_field, options.id_field, options.url_field}
    rest = {field: value for field, value in row.items() if field not in used}
    data = text.encode("utf-8", "surrogatepass")
    dates = (iso_date(row[field]) for field in options.date_fields if isinstance(row.get(field), str))
    too_long = len(data) > options.max_document_bytes
    return Document(
        doc_id=ids.row_doc_id(options.source, options.file, number if name is None else name, text),
        source=options.source,
        place=place,
        raw_hash=ids.content_hash(data),
        num_bytes=len(data),
        content_type="text/plain",
        record_id=name,
        url=url if isinstance(url, str) and url else None,
        captured_at=next((date for date in dates if date), None),
        metadata=json.dumps(rest, ensure_ascii=False, sort_keys=True, default=str) if rest else None,
        charset="utf-8",
        text="" if too_long else text,
    )


def read_parquet(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """A document for each row, in order; offsets are row numbers."""
    try:
        file = pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        yield Unreadable(file=options.file, offset=0, length=0, error=f"not a Parquet file: {str(error)[:200]}")
        return
    yield from _read_rows(file, range(file.num_row_groups), options, counts)


def read_parquet_at(stream: BinaryIO, offset: int, options: ReadOptions) -> Document | Unreadable:
    """The row with the number `offset`."""
    for item in read_parquet(stream, options, InputCounts()):
        place = item.place if isinstance(item, Document) else item
        if place.offset == offset:
            return item
    raise ValueError(f"{options.file}: no row {offset}")


def _read_rows(
    file: pq.ParquetFile, groups: range, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    number = 0
    for group in groups:
        first, num_rows = number, file.metadata.row_group(group).num_rows
        try:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group]):
                for row in batch.to_pylist():
                    yield _from_parquet_row(row, number, options, counts)
                    number += 1
        except (pa.ArrowException, OSError) as error:
            left = first + num_rows - number
            yield Unreadable(file=options.file, offset=number, length=left, error=f"damaged rows: {str(error)[:200]}")
            number = first + num_rows


def _from_parquet_row(
    row: dict[str, Any], number: int, options: ReadOptions, counts: InputCounts
) -> Document | Unreadable:
    try:
        place = Place(file=options.file, offset=number, length=1)
        document = _from_row(row, str(number), place, options)
    except _BadRowError as error:
        return Unreadable(file=options.file, offset=number, length=1, error=str(error))
    counts.add_row()
    return document
