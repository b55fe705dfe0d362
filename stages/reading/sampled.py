"""The records of one part of a file, read for themselves: for a sample of many files.

Where no reader can begin in the middle of a file, its first documents stand for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile
from typing import BinaryIO, Final

from stages.document import Document
from stages.reading.content import Cursor, DamagedError, WindowError
from stages.reading.magic import HEAD_BYTES, is_streamed
from stages.reading.members import is_compressed, read_through, seek_member
from stages.reading.options import Border, FileSpan, InputCounts, ReadOptions, UnreadableError
from stages.reading.parquet.documents import RowGroup, row_groups
from stages.reading.reader import detect_format, read_documents

_MOST_CONTENT: Final = 1 << 20
"""Bytes of a compressed member that are read from its beginning, if it has more."""
_LOOKED_THROUGH: Final = 4 << 20
"""How far the next member is looked for."""
_WITHIN: Final = "within"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPart:
    """What was read of a file: its documents, the bytes of the file (as it lies) that hold them, and whether
    `is_whole`: they are the records whose first byte lies in the part that was asked for. If not, they are
    those near it, and only their number a byte counts. `seconds` are processor seconds that reading them takes where
    no first one has to be found."""

    documents: tuple[Document, ...] = ()
    num_bytes: float = 0.0
    is_whole: bool = True
    seconds: float = 0.0


def read_part(stream: BinaryIO, options: ReadOptions, begin: int, end: int) -> SampledPart | None:
    """The documents that begin in bytes [begin, end) of a file; None if only the file's first byte is a place to
    begin at. UnreadableError if the file is damaged there."""
    if begin == 0 and end == options.size:
        counts = InputCounts()
        return part_of(_documents(stream, options, counts), lambda: end)
    kind = detect_format(stream, options)
    stream.seek(0)
    if kind == "warc":
        return _records(stream, replace(options, span=FileSpan(begin=begin, end=end)))
    if kind == "jsonl":
        return _lines(stream, options, begin, end)
    return _rows(stream, options, begin, end) if kind == "parquet" else None


def read_head(stream: BinaryIO, options: ReadOptions, num_documents: int) -> SampledPart:
    """The first documents of a file; about how many bytes of it they take."""
    stream.seek(0)
    found = islice(_documents(stream, options, InputCounts()), num_documents)
    part = part_of(found, lambda: min(stream.tell(), options.size or stream.tell()), is_whole=False)
    last = part.documents[-1].place if part.documents else None
    cursor = _cursor(stream, options)
    if last is None or not is_compressed(cursor) or last.length == options.size:
        return part
    # Places are in the content of the file then, which is read megabytes ahead.
    return replace(part, num_bytes=_packed_bytes(cursor, last.offset + last.length))


def _packed_bytes(cursor: Cursor, num_content: int) -> float:
    """About how many bytes of a compressed file hold so many bytes of its content."""
    content = before = packed = packed_before = 0
    for piece in read_through(cursor):
        # What is read at a time gives several pieces.
        if cursor.position != packed:
            if content >= num_content:
                break
            before, packed_before, packed = content, packed, cursor.position
        content += len(piece)
    share = (num_content - before) / max(content - before, 1)
    return packed_before + min(share, 1.0) * (packed - packed_before)


def part_of(
    documents: Iterator[Document], num_bytes: Callable[[], float], *, is_whole: bool = True
) -> SampledPart:
    """The part that these documents make, which are timed; `num_bytes` is called behind the last."""
    found: list[Document] = []
    seconds, size, first_size = 0.0, 0, 0
    while True:
        begun = time.process_time()
        document = next(documents, None)
        if document is None:
            break
        # Before the first one the reader looked for a place to begin at.
        if found:
            seconds += time.process_time() - begun
        size += document.num_bytes + len(document.text)
        first_size = first_size or size
        found.append(document)
    if size > first_size:
        seconds *= size / (size - first_size)
    return SampledPart(documents=tuple(found), num_bytes=num_bytes(), is_whole=is_whole, seconds=seconds)


def _documents(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document]:
    stream.seek(0)
    return (item for item in read_documents(stream, options, counts) if isinstance(item, Document))


def _records(stream: BinaryIO, options: ReadOptions) -> SampledPart | None:
    """The records of a WARC file whose first byte lies in the span."""
    head = stream.read(HEAD_BYTES)
    if is_streamed(head):
        return None
    span, counts = options.span, InputCounts()
    assert span is not None
    if not span.begin and _is_one_member(stream, options):
        return None

    def num_bytes() -> float:
        return counts.ended.position - counts.began.position if counts.ended and counts.began else 0

    part = part_of(_documents(stream, options, counts), num_bytes)
    return None if counts.began is None and _is_one_member(stream, options) else part


def _is_one_member(stream: BinaryIO, options: ReadOptions) -> bool:
    """Whether a compressed file's first member is most of it, or goes on further than one record would."""
    cursor = _cursor(stream, options)
    if not is_compressed(cursor):
        return False
    most = options.max_document_bytes + _LOOKED_THROUGH
    try:
        for _ in read_through(cursor, 1):
            if cursor.position > most:
                return True
    except (DamagedError, WindowError):
        return True
    return options.size is not None and cursor.position > options.size // 2


def _lines(stream: BinaryIO, options: ReadOptions, begin: int, end: int) -> SampledPart | None:
    """The JSON lines of a plain file that begin in the part; of a compressed one those of the first member that
    begins in it or soon behind it, or of its first megabyte."""
    cursor = _cursor(stream, options)
    if not is_compressed(cursor):
        is_within = begin > 0 and _byte_before(cursor, begin) != b"\n"
        span = FileSpan(
            begin=begin,
            end=end,
            start=Border(begin, _WITHIN if is_within else "", begin),
            stop=Border(end, "", end),
        )
        return part_of(_documents(stream, replace(options, span=span), InputCounts()), lambda: end - begin)
    last = max(end, min(begin + _LOOKED_THROUGH, options.size or end))
    if not seek_member(cursor, begin, last) if begin else _is_one_member(stream, options):
        return None
    start = cursor.position if begin else 0
    num_content = 0
    cursor.seek(start)
    try:
        for piece in read_through(cursor, max(end, start + 1)):
            num_content += len(piece)
            if num_content >= _MOST_CONTENT:
                break
    except (DamagedError, WindowError) as error:
        raise UnreadableError(str(error)) from error
    span = FileSpan(begin=start, end=end, start=Border(start), stop=Border(cursor.position, "", num_content))
    num_bytes = cursor.position - start
    found = _documents(stream, replace(options, span=span), InputCounts())
    return part_of(found, lambda: num_bytes, is_whole=False)


def _byte_before(cursor: Cursor, position: int) -> bytes:
    cursor.seek(position - 1)
    return cursor.read(1)


def _rows(stream: BinaryIO, options: ReadOptions, begin: int, end: int) -> SampledPart:
    """The rows that lie in the part, where those of a row group are taken to have equal lengths; of a large row
    group rows that soon come instead of those far behind, before which all others would be decoded."""
    found = [_rows_of(stream, options, group, begin, end) for group in row_groups(stream)]
    return SampledPart(
        documents=tuple(document for part in found for document in part.documents),
        num_bytes=end - begin,  # with the footer, which a source's bytes have too
        seconds=sum(part.seconds for part in found),
    )


def _rows_of(stream: BinaryIO, options: ReadOptions, group: RowGroup, begin: int, end: int) -> SampledPart:
    """The rows of a group."""
    low, high = max(begin - group.start, 0), min(end - group.start, group.num_bytes)
    if low >= high or not group.num_rows:
        return SampledPart()
    if low > _LOOKED_THROUGH:
        low, high = low % _LOOKED_THROUGH, low % _LOOKED_THROUGH + high - low
    first, last = (-(-group.num_rows * each // group.num_bytes) for each in (low, high))
    rows = range(group.first_row + first, group.first_row + last)
    if not rows:
        return SampledPart()
    span = FileSpan(begin=group.start, end=group.start + 1)
    documents = _documents(stream, replace(options, span=span), InputCounts())
    documents = dropwhile(lambda document: document.place.offset < rows.start, documents)
    documents = takewhile(lambda document: document.place.offset < rows.stop, documents)
    return part_of(documents, lambda: len(rows) / group.num_rows * group.num_bytes)


def _cursor(stream: BinaryIO, options: ReadOptions) -> Cursor:
    return Cursor(stream, max_window_bytes=options.max_window_bytes)
