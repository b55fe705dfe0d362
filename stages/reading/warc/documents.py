"""WARC (ISO 28500) and ARC files to documents: gzip per record, zstd per record, or plain.

Nothing is lost in silence: what does not read as whole records is an Unreadable stretch, and reading resumes
at the next record behind it. A record is given out only when what follows it shows that it is whole."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, Final

from lineage.magic import GZIP_MAGIC, ZSTD_MAGIC
from stages.document import Document, Place
from stages.reading.content import READ_BYTES, Content, Cursor, DamagedError, RefutedError, TornError
from stages.reading.members import CompressedMember, learn_dictionary, open_member, skip_frame
from stages.reading.options import (
    Border,
    FileSpan,
    InputCounts,
    ReadOptions,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)
from stages.reading.warc.head import (
    MAX_ARC_HEAD_BYTES,
    NEXT_ARC,
    NEXT_WARC,
    NEXT_WARC_LINE,
    LengthError,
    TooLongError,
    TornHeadError,
    begins_record,
    next_record,
)
from stages.reading.warc.headers import END_OF_HEADERS, MAX_HEADER_BYTES
from stages.reading.warc.record import WarcRecord, read_record

_PROBE_BYTES: Final = 256 << 10
"""Enough of a member to see its first bytes: a zstd block has at most 128 KiB (RFC 8878, 3.1.1.2)."""
_FIRST_BYTES: Final = 5

_WARC_LINE_BYTES: Final = 32
"""What NEXT_WARC_LINE looks at."""
_MOST_AGAIN: Final = 4
"""How often a member with wrong lengths is inflated again."""
_ENDS_OF_WARC: Final = (b"\r\n\r\n", b"\n\n")
_ENDS_OF_ARC: Final = (b"\n",)
"""What stands behind a record's block (ISO 28500, section 4; the ARC format, "doc"), or may."""

_NEXT_GZIP = re.compile(b"(?=" + re.escape(GZIP_MAGIC) + b")")
_NEXT_ZSTD = re.compile(b"(?=" + re.escape(ZSTD_MAGIC) + b")")
_LONGEST_MAGIC: Final = 16
"""More bytes than any of these patterns looks at, but for NEXT_ARC."""
_NEXT_OF_ANY = re.compile(
    b"|".join(pattern.pattern for pattern in (NEXT_WARC, NEXT_ARC, _NEXT_GZIP, _NEXT_ZSTD))
)

_KINDS: Final = {
    "any": _NEXT_OF_ANY,
    "gzip": _NEXT_GZIP,
    "zstd": _NEXT_ZSTD,
    "warc": NEXT_WARC,
    "arc": NEXT_ARC,
}
"""What a reader knows of a file's records, as the state of a Border, and where to look for the next one."""


def read_warc(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a WARC or ARC file, which together with the counted records
    tile it."""
    counts.end = options.size
    yield from read_records(Cursor(stream, max_window_bytes=options.max_window_bytes), options, counts)


def read_records(
    cursor: Cursor, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """The same of what the cursor gives, from a file's first byte to its last."""
    learn_dictionary(cursor)
    kind, end = _NEXT_OF_ANY, math.inf
    if options.span is not None:
        counts.began = _begin_of_span(cursor, options.span)
        if counts.began is None:
            return
        cursor.seek(counts.began.position)
        kind, end = _KINDS[counts.began.state], options.span.end
    while first := cursor.peek(_FIRST_BYTES):
        offset, num_records = cursor.position, counts.num_records
        try:
            if kind in (_NEXT_OF_ANY, _NEXT_ZSTD) and skip_frame(cursor):
                continue
            if offset >= end:
                break
            with unreadable_for_any_error():
                yield from _read_unit(cursor, options, counts)
        except UnreadableError as error:
            read_to = cursor.position
            cursor.seek(offset + 1)
            _seek_record(cursor, kind)
            stretch = _unreadable(error, options, offset, cursor.position - offset)
            if counts.num_records > num_records and not isinstance(error, RefutedError):
                # The first records of a member that others follow in are read: the rest of it is not.
                stretch = replace(stretch, num_bytes=max(cursor.position - read_to, 0))
            if not cursor.peek(1) and _is_torn(error, first):
                stretch = replace(stretch, num_bytes=options.size, breaks_off=True)
            yield stretch
        if counts.num_records > num_records:
            kind = _kind(first)
    counts.ended = Border(cursor.position, next(name for name, each in _KINDS.items() if each is kind))


def _begin_of_span(cursor: Cursor, span: FileSpan) -> Border | None:
    """Where the first record of a span may begin, as its bytes and the file's first ones tell; None where none
    does. The cursor is at the file's first byte.

    A member may hold another one, stored as it is, and a page the text of a record. So this is a guess, which
    holds if the span before it ends there."""
    if span.start is not None or not span.begin:
        return span.start or Border(0, "any")
    kind = _NEXT_ZSTD if skip_frame(cursor) else _kind(cursor.peek(_FIRST_BYTES))
    # A record of ARC is known by the line end before it.
    cursor.seek(span.begin - (kind is NEXT_ARC))
    _seek_record(cursor, kind, span.end)
    name = next(name for name, each in _KINDS.items() if each is kind)
    return Border(cursor.position, name) if cursor.position < span.end and cursor.peek(1) else None


def _is_torn(error: UnreadableError, first: bytes) -> bool:
    """Whether a file that ends with what raised this ends within a member, or within a plain record."""
    is_plain = not first.startswith((GZIP_MAGIC, ZSTD_MAGIC))
    return isinstance(error, TornError) or (is_plain and isinstance(error, (TooLongError, TornHeadError)))


def read_warc_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document at byte `offset` of a WARC or ARC file, as `read_record_at` gives it."""
    return read_record_at(Cursor(stream, max_window_bytes=options.max_window_bytes), offset, options, doc_id)


def read_record_at(
    cursor: Cursor, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document at `offset` of a file on whose first byte the cursor stands (where a member holds several,
    that of `doc_id`, else the first), or the Unreadable that begins there. ValueError if another record
    does."""
    counts = InputCounts()
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


def read_heads_at(stream: BinaryIO, offset: int, max_window_bytes: int) -> tuple[bytes, bytes]:
    """The head of the record at byte `offset` of a WARC or ARC file, and the HTTP head that its block begins
    with (empty where there is none), as they stand there: for people. UnreadableError where no record begins
    there."""
    cursor = Cursor(stream, max_window_bytes=max_window_bytes)
    learn_dictionary(cursor)
    cursor.seek(offset)
    with unreadable_for_any_error():
        member = open_member(cursor)
        content = Content(cursor.more if member is None else member.more)
        head = content.take_through(END_OF_HEADERS, MAX_HEADER_BYTES)
        if head is None:
            raise UnreadableError("no record begins there")
        http = content.take_through(END_OF_HEADERS, MAX_HEADER_BYTES) if content.peek(5) == b"HTTP/" else None
    return head, http or b""


def _unreadable(error: UnreadableError, options: ReadOptions, offset: int, length: int) -> Unreadable:
    return Unreadable(file=options.file, offset=offset, length=length, error=str(error), fault=error.fault)


def _kind(first: bytes) -> re.Pattern[bytes]:
    """Where to look for the next record behind damage, once a whole record began with `first`. A file keeps
    to one kind, so a page that holds a WARC file is not taken for records."""
    if first.startswith(GZIP_MAGIC):
        return _NEXT_GZIP
    if first.startswith(ZSTD_MAGIC):
        return _NEXT_ZSTD
    return NEXT_WARC if first.upper() == b"WARC/" else NEXT_ARC


def _read_unit(cursor: Cursor, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """What begins at the cursor: one compressed member with its records, or one plain record."""
    member = open_member(cursor)
    return (
        _read_plain(cursor, options, counts)
        if member is None
        else _read_member(cursor, member, options, counts)
    )


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
    offset, length, num_again = cursor.position, None, 0
    content, more = Content(member.more), True
    behind: re.Pattern[bytes] | None = None
    while more:
        record: WarcRecord | UnreadableError
        begin = content.position
        try:
            with unreadable_for_any_error():
                behind = behind or next_record(content)
                record = read_record(content, options)
                more = _expect_record_or_end(content)
        except DamagedError:
            raise
        except UnreadableError as error:
            record = error
            if isinstance(error, LengthError) and num_again < _MOST_AGAIN:
                # A length that is too long leads over whole records, so they are looked for behind this one's
                # head.
                num_again += 1
                content = _content_from(cursor, offset, begin + 1)
                more = _skip_to_record(content, behind)
                if begin == 0 and not more:
                    record = _mended(cursor, offset, content, options, error)
                    if isinstance(record, WarcRecord):
                        counts.note("mended")
            else:
                # A header that breaks off leaves the content where the next one begins.
                more = (content.position > begin and begins_record(content)) or _skip_to_record(
                    content, behind
                )
        if length is None:
            length = (_end_of_member(cursor, offset) if more else cursor.position) - offset
        if isinstance(record, UnreadableError):
            yield _unreadable(record, options, offset, length)
        else:
            yield from _counted(record, counts, offset, length)


def _content_from(cursor: Cursor, offset: int, position: int) -> Content:
    """What the member at `offset` holds, from byte `position` of it on."""
    cursor.seek(offset)
    member = open_member(cursor)
    assert member is not None
    content = Content(member.more)
    content.skip(position)
    return content


def _skip_to_record(content: Content, behind: re.Pattern[bytes] | None) -> bool:
    """Pass over what stands before the next record of a member; says whether there is one."""
    return content.skip_until(
        behind or NEXT_WARC_LINE, MAX_ARC_HEAD_BYTES if behind is NEXT_ARC else _WARC_LINE_BYTES
    )


def _mended(
    cursor: Cursor, offset: int, whole: Content, options: ReadOptions, error: LengthError
) -> WarcRecord | UnreadableError:
    """The only record of the member at `offset`, whose length is wrong, up to the end of the member: `whole`
    is its content, passed over. Some writers count characters in place of bytes, or decode a body that they
    have counted."""
    here = cursor.position
    content = _content_from(cursor, offset, 0)
    ends = _ENDS_OF_WARC if next_record(content) is NEXT_WARC_LINE else _ENDS_OF_ARC
    end = whole.position - next((len(line_ends) for line_ends in ends if whole.last.endswith(line_ends)), 0)
    try:
        with unreadable_for_any_error():
            record = read_record(content, options, end)
    except UnreadableError as other:
        return other
    finally:
        cursor.seek(here)
    document = record.document
    if document is not None and document.truncated is None and isinstance(error, TooLongError):
        # Nothing tells whether the record was cut off, or only its length is wrong.
        return replace(record, document=document.but(truncated="unspecified"))
    return record


def _counted(record: WarcRecord, counts: InputCounts, offset: int, length: int) -> Iterator[Document]:
    counts.add_record(record.kind, record.mime, record.status)
    if record.document:
        place = Place(file=record.document.place.file, offset=offset, length=length)
        yield record.document.but(place=place)


def _expect_record_or_end(content: Content) -> bool:
    """Pass over the line ends behind a record; says whether another one follows. LengthError if something
    else does: then the record's length was wrong."""
    if not content.skip_blank():
        return False
    if not begins_record(content):
        raise LengthError("the record goes on behind the end that its Content-Length gives")
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


def _seek_record(cursor: Cursor, pattern: re.Pattern[bytes], end: float = math.inf) -> None:
    """Move the cursor on to the next place where a record begins, or to the end of the file, or past `end`."""
    looked_at = MAX_ARC_HEAD_BYTES if pattern in (NEXT_ARC, _NEXT_OF_ANY) else _LONGEST_MAGIC
    while cursor.position < end and (window := cursor.peek(READ_BYTES + _PROBE_BYTES)):
        # What lies behind READ_BYTES is there for _begins_record: searched as well, each byte would be five
        # times.
        for match in pattern.finditer(window, 0, READ_BYTES + looked_at):
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
            return begins_record(Content((open_member(cursor) or cursor).more))
    except UnreadableError:
        return False
