"""WARC files (ISO 28500) to documents: gzip per record, zstd per record, or plain.

Nothing is lost in silence: what does not read as whole records is an Unreadable stretch, and reading resumes at the
next record behind it. A record is given out only when what follows it shows that it is whole.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, Final

from stages.document import Document
from stages.reading.content import READ_BYTES, Content, Cursor, DamagedError
from stages.reading.magic import GZIP_MAGIC, ZSTD_MAGIC
from stages.reading.members import CompressedMember, learn_dictionary, open_member, skip_frame
from stages.reading.options import InputCounts, ReadOptions, Unreadable, UnreadableError, unreadable_for_any_error
from stages.reading.record import MalformedError, Record, read_record

_WARC: Final = b"WARC/"
_PROBE_BYTES: Final = 256 << 10
"""Enough of a member to see its first bytes: a zstd block has at most 128 KiB (RFC 8878, 3.1.1.2)."""

_NEXT_RECORD = re.compile(rb"\n(?=WARC/[01]\.)")
_NEXT_GZIP = re.compile(b"(?=" + re.escape(GZIP_MAGIC) + b")")
_NEXT_ZSTD = re.compile(b"(?=" + re.escape(ZSTD_MAGIC) + b")")
_LONGEST_MAGIC: Final = 16
"""More bytes than any of these patterns looks at."""
_NEXT_OF_ANY = re.compile(b"|".join(pattern.pattern for pattern in (_NEXT_RECORD, _NEXT_GZIP, _NEXT_ZSTD)))


def read_warc(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a WARC file, which together with the counted records tile it."""
    cursor, counts.end = Cursor(stream, max_window_bytes=options.max_window_bytes), options.size
    if not cursor.peek(1):
        yield Unreadable(file=options.file, offset=0, length=0, error="the file is empty")
    learn_dictionary(cursor)
    kind = _NEXT_OF_ANY
    while first := cursor.peek(len(_WARC)):
        offset, num_records = cursor.position, counts.num_records
        try:
            if kind in (_NEXT_OF_ANY, _NEXT_ZSTD) and skip_frame(cursor):
                continue
            with unreadable_for_any_error():
                yield from _read_unit(cursor, options, counts)
        except UnreadableError as error:
            cursor.seek(offset + 1)
            _seek_record(cursor, kind)
            yield _unreadable(error, options, offset, cursor.position - offset)
        if counts.num_records > num_records:
            kind = _kind(first)


def read_warc_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document at `offset` (where a member holds several, that of `doc_id`, else the first), or the Unreadable that
    begins there. ValueError if another record does."""
    cursor, counts = Cursor(stream, max_window_bytes=options.max_window_bytes), InputCounts()
    learn_dictionary(cursor)
    cursor.seek(offset)
    first: Document | Unreadable | None = None
    try:
        with unreadable_for_any_error():
            for item in _read_unit(cursor, options, counts):
                if doc_id is None or (isinstance(item, Document) and item.doc_id == doc_id):
                    return item
                first = first or item
    except UnreadableError as error:
        first = first or _unreadable(error, options, offset, 0)
    if first is not None:
        return first
    found = ", ".join(f"type {kind}" for kind in counts.by_type)
    raise ValueError(f"{options.file} at offset {offset}: a record of {found}, which is no document")


def _unreadable(error: UnreadableError, options: ReadOptions, offset: int, length: int) -> Unreadable:
    return Unreadable(file=options.file, offset=offset, length=length, error=str(error), fault=error.fault)


def _kind(first: bytes) -> re.Pattern[bytes]:
    """Where to look for the next record behind damage, once a whole record began with `first`. A file keeps to one
    kind, so a page that holds a WARC file is not taken for records."""
    known = {GZIP_MAGIC: _NEXT_GZIP, ZSTD_MAGIC: _NEXT_ZSTD}
    return next((pattern for magic, pattern in known.items() if first.startswith(magic)), _NEXT_RECORD)


def _read_unit(cursor: Cursor, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """What begins at the cursor: one compressed member with its records, or one plain record."""
    member = open_member(cursor)
    return _read_plain(cursor, options, counts) if member is None else _read_member(cursor, member, options, counts)


def _read_plain(cursor: Cursor, options: ReadOptions, counts: InputCounts) -> Iterator[Document]:
    offset = cursor.position
    content = Content(cursor.more)
    record = read_record(content, options)
    _expect_record_or_end(content)
    cursor.unread(content.rest())
    yield from _counted(record, counts, offset, content.position)


def _read_member(
    cursor: Cursor, member: CompressedMember, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    offset, length = cursor.position, None
    content, more = Content(member.more), True
    while more:
        record: Record | UnreadableError
        try:
            with unreadable_for_any_error():
                record = read_record(content, options)
                more = _expect_record_or_end(content)
        except DamagedError:
            raise
        except UnreadableError as error:
            record = error
            more = content.skip_until(_NEXT_RECORD)
        if length is None:
            length = (_end_of_member(cursor, offset) if more else cursor.position) - offset
        if isinstance(record, UnreadableError):
            yield _unreadable(record, options, offset, length)
        else:
            yield from _counted(record, counts, offset, length)


def _counted(record: Record, counts: InputCounts, offset: int, length: int) -> Iterator[Document]:
    counts.add_record(record.kind, record.mime, record.status)
    if record.document:
        place = replace(record.document.place, offset=offset, length=length)
        yield replace(record.document, place=place)


def _expect_record_or_end(content: Content) -> bool:
    """Pass over the line ends behind a record; says whether another one follows. MalformedError if something else
    does: then the record's Content-Length was wrong."""
    if not content.skip_blank():
        return False
    if content.peek(len(_WARC)) != _WARC:
        raise MalformedError("the record goes on behind the end that its Content-Length gives")
    return True


def _end_of_member(cursor: Cursor, offset: int) -> int:
    """Where a member that holds several records ends, or cannot be decoded any further."""
    here = cursor.position
    cursor.seek(offset)
    ahead = open_member(cursor)
    try:
        while ahead and ahead.more():
            pass
    except DamagedError:
        pass
    end = cursor.position
    cursor.seek(here)
    return end


def _seek_record(cursor: Cursor, pattern: re.Pattern[bytes]) -> None:
    """Move the cursor on to the next place where a record begins, or to the end of the file."""
    while window := cursor.peek(READ_BYTES + _PROBE_BYTES):
        # What lies behind READ_BYTES is there for _begins_record: searched as well, each byte would be five times.
        for match in pattern.finditer(window, 0, READ_BYTES + _LONGEST_MAGIC):
            if match.start() >= READ_BYTES:
                break
            if _begins_record(window[match.end() : match.end() + _PROBE_BYTES], cursor):
                cursor.read(match.end())
                return
        cursor.read(READ_BYTES)


def _begins_record(data: bytes, cursor_of_file: Cursor) -> bool:
    cursor = Cursor(io.BytesIO(data), max_window_bytes=cursor_of_file.max_window_bytes)
    cursor.dictionary = cursor_of_file.dictionary
    try:
        with unreadable_for_any_error():
            return Content((open_member(cursor) or cursor).more).peek(len(_WARC)) == _WARC
    except UnreadableError:
        return False
