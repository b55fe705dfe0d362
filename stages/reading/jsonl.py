"""JSONL files (plain, gzip, zstd, bzip2, xz) to documents, one a line; or one for each element of a list in
it."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import BinaryIO, Final

from blake3 import blake3

from lineage import ids
from lineage.json_record import JsonRecord
from stages.document import Document, Place
from stages.nesting import TooDeepError, read_json
from stages.reading.content import Cursor, DamagedError, RefutedError, TornError, WindowError
from stages.reading.members import LongMemberError, is_compressed, read_through, seek_member
from stages.reading.options import (
    DEFAULT_WINDOW_BYTES,
    Border,
    FileSpan,
    InputCounts,
    ReadOptions,
    Unreadable,
    UnreadableError,
)
from stages.reading.rows.other_fields import BadRowError
from stages.reading.rows.row import (
    MAX_OTHER_BYTES,
    document_of_long_row,
    documents_from_row,
    fields_lacked,
    item_at,
    items_of_row,
    keys_of,
    no_such_field,
)

_BYTES_FOR_ONE: Final = 6
"""JSON may write a character of one byte as six (RFC 8259, section 7)."""
_SPLIT_BYTES: Final = 1 << 20
"""Looked at for line ends at once: a compressed file may unfold to nothing but short lines."""
_SHORT_BYTES: Final = 4 << 20
"""A line of fewer bytes is small in memory, whatever it holds."""
_MAX_VALUES: Final = 2_000_000
"""In a longer line: an empty list takes two bytes there and sixty-four in memory."""
_WITHIN: Final = "within"
"""The state of a Border that lies within a line."""
_LONG_MEMBER_BYTES: Final = 64 << 20
_BLANK_LINES = re.compile(rb"(?:[ \t\r]*+\n)*+")
_VALUE = re.compile(rb'"[^"]*"?|[\[{,]')


@dataclass(frozen=True, slots=True)
class _Line:
    """A line's number from 0, its offset and length (with the line end) in bytes, and its bytes. A line that
    is too long to hold has the hash of its bytes instead; what cannot be read at all has the reason."""

    number: int
    offset: int
    length: int
    data: bytes = b""
    raw_hash: bytes | None = None
    error: str | None = None

    @property
    def is_torn(self) -> bool:
        """Whether the file ends within it: an object that has begun and has no end, and no line end."""
        data = self.data.strip()
        return data.startswith(b"{") and not data.endswith(b"}") and not self.data.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class _Damage:
    """Where reading ends before the file does: at the line of this offset, of which `length` bytes were read.
    `read_to` is the byte of the file, as it lies, that reading came to. What a checksum refutes was given out
    before, from `offset` on."""

    offset: int
    length: int
    error: DamagedError | WindowError
    read_to: int

    def unreadable(self, options: ReadOptions, counts: InputCounts) -> Unreadable:
        """The stretch, with about how many rows are lost: those that are refuted and what is left of the
        file, which has as many to a byte as what was read."""
        error, num, num_bytes = str(self.error), 0, options.size
        if isinstance(self.error, RefutedError):
            error += "; the rows that were read of it are not what was compressed"
            num = counts.num_records * self.length // max(self.offset + self.length, 1)
        if options.size is not None and not isinstance(self.error, TornError):
            num += counts.num_records * (options.size - self.read_to) // max(self.read_to, 1)
            begins = self.error.packed_start if isinstance(self.error, RefutedError) else self.read_to
            num_bytes = options.size - begins
        return Unreadable(
            file=options.file,
            offset=self.offset,
            length=self.length,
            error=error,
            num_records=max(1, num),
            num_bytes=num_bytes,
            breaks_off=isinstance(self.error, TornError),
        )


def looks_like_jsonl(stream: BinaryIO, max_window_bytes: int = DEFAULT_WINDOW_BYTES) -> bool:
    """Whether a stream, decompressed, begins with an object, with or without a byte-order mark before it."""
    try:
        return begins_with_object(next(read_through(Cursor(stream, max_window_bytes=max_window_bytes)), b""))
    except (DamagedError, WindowError):
        return False


def begins_with_object(begin: bytes) -> bool:
    """Whether content that begins so begins as an object, with or without a byte-order mark before it."""
    return begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"


def begins_with_row(begin: bytes) -> bool:
    """Whether content that begins so begins with a whole line that is an object."""
    line = begin.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    try:
        return line.startswith(b"{") and isinstance(read_json(line), dict)
    except ValueError:
        return False


def read_jsonl(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """A document for each line that is not blank; one whose text is too long for `max_document_bytes` has
    none, and one that is longer than such a row can be is not even parsed. Offsets count bytes of the
    decompressed stream; behind damaged compression nothing is read, as its offsets would be unknown.

    Rows are given out before the end of their compressed member, however long it is. Where its checksum
    refutes them then, one stretch reaches from the member's first byte to the last that was read of it."""
    cursor = Cursor(stream, max_window_bytes=options.max_window_bytes)
    counts.end = None if is_compressed(cursor) else options.size
    for line in _lines(cursor, options, counts):
        if isinstance(line, _Damage):
            yield line.unreadable(options, counts)
            continue
        if line.error is None and line.raw_hash is None and not line.data.strip():
            continue
        place = Place(file=options.file, offset=line.offset, length=line.length)
        items = items_of_row(partial(_read_line, line, place, options, counts), place, counts, 1)
        if line.is_torn:
            items = [
                replace(each, num_bytes=options.size, breaks_off=True)
                if isinstance(each, Unreadable)
                else each
                for each in items
            ]
        yield from items
    if options.span is not None:
        counts.began, counts.ended = options.span.start, options.span.stop


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesOfSpan(JsonRecord):
    """What a span of a file holds, whose lines are to be numbered: `num_bytes` of content with `num_lines` line
    ends; `ends_line`: the last byte is one. `began` and `ended` as of InputCounts, and `why_not_ended` why there
    is no end. `is_rows`: the file is one of JSON lines."""

    is_rows: bool = True
    why_not_ended: str = ""
    began: Border | None = None
    ended: Border | None = None
    num_bytes: int = 0
    num_lines: int = 0
    ends_line: bool = False


def lines_of_span(stream: BinaryIO, span: FileSpan, max_window_bytes: int) -> LinesOfSpan:
    """The line ends of a span: of a plain file those in its bytes, of a compressed one those in the members
    that begin there."""
    cursor = Cursor(stream, max_window_bytes=max_window_bytes)
    if is_compressed(cursor):
        return _lines_of_members(cursor, span)
    bounded = Cursor(stream, span.begin, span.end)
    found = _count(LinesOfSpan(began=Border(span.begin)), iter(bounded.read, b""))
    return replace(found, ended=Border(span.end))


def _lines_of_members(cursor: Cursor, span: FileSpan) -> LinesOfSpan:
    begin, found = span.begin if span.start is None else span.start.position, LinesOfSpan()
    try:
        if begin and span.start is None and not seek_member(cursor, begin, span.end):
            return found
        cursor.seek(cursor.position if span.start is None else begin)
        found = LinesOfSpan(began=Border(cursor.position))
        # Behind such a member few spans are left to others, or none.
        most = span.end + max(span.end - span.begin, _LONG_MEMBER_BYTES)
        found = _count(found, read_through(cursor, span.end, most))
    except LongMemberError as error:
        return replace(found, why_not_ended=str(error))
    except (DamagedError, WindowError) as error:
        return replace(found, why_not_ended=f"it is damaged: {error}")
    return replace(found, ended=Border(cursor.position))


def _count(found: LinesOfSpan, pieces: Iterable[bytes]) -> LinesOfSpan:
    num_bytes = num_lines = 0
    ends_line = False
    for piece in pieces:
        num_bytes += len(piece)
        num_lines += piece.count(b"\n")
        ends_line = piece.endswith(b"\n")
    return replace(found, num_bytes=num_bytes, num_lines=num_lines, ends_line=ends_line)


def spans_of_lines(spans: Sequence[FileSpan], lines: Sequence[LinesOfSpan]) -> list[FileSpan]:
    """The spans of a file, of which all lines are counted, as they are read: each with the place and the number of
    its first byte."""
    borders = [Border(0)]
    for counted in lines:
        at = borders[-1]
        assert counted.ended is not None, "spans that tile a file"
        is_within = not counted.ends_line if counted.num_bytes else at.state == _WITHIN
        borders.append(
            Border(
                counted.ended.position,
                _WITHIN if is_within else "",
                at.offset + counted.num_bytes,
                at.number + counted.num_lines,
            )
        )
    return [
        replace(span, start=start, stop=stop)
        for span, (start, stop) in zip(spans, pairwise(borders), strict=True)
    ]


def jsonl_lacks(stream: BinaryIO, options: ReadOptions, num_rows: int) -> str | None:
    """Which field that the recipe names none of the file's first rows has; rows that cannot be read do not
    count."""
    cursor = Cursor(stream, max_window_bytes=options.max_window_bytes)
    found = _lines(cursor, options, InputCounts())
    lines = (
        line for line in found if isinstance(line, _Line) and (line.error is not None or line.data.strip())
    )
    rows = []
    for line in islice(lines, num_rows):
        with suppress(BadRowError):
            if line.error is None and line.raw_hash is None:
                rows.append(_parse(line.data))
    of_rows = [lacked for row in rows if (lacked := fields_lacked(row, options.fields)) is not None]
    lacked = set.intersection(*of_rows) if of_rows else set()
    for key, name in keys_of(options.fields).items():
        if name is not None and key in lacked:
            return no_such_field("field", name, key, dict.fromkeys(chain.from_iterable(rows)))
    return None


def read_jsonl_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document of the line at `offset` (of several elements that of `doc_id`, else the first); those
    before it are read too, for its number. ValueError if no line begins there."""
    found = item_at(read_jsonl(stream, options, InputCounts()), offset, doc_id)
    if found is None:
        raise ValueError(
            f"{options.file}: no line with a document begins at byte {offset} of its decompressed content"
        )
    return found


def _lines(cursor: Cursor, options: ReadOptions, counts: InputCounts) -> Iterator[_Line | _Damage]:
    """The lines of a file. Blank ones may be left out, and count in number and offset: half a gigabyte of
    them, which 16 kB of zstd hold, takes seconds so, and minutes one by one."""
    span = options.span
    start = Border(0) if span is None or span.start is None else span.start
    stop = math.inf if span is None or span.stop is None else span.stop.offset
    number, offset, read_to, is_within_line = start.number, start.offset, 0, start.state == _WITHIN
    held = _LineBuffer(options.max_document_bytes)
    try:
        for piece in _small_pieces(cursor, start):
            at = 0
            if is_within_line:
                at = piece.find(b"\n") + 1
                offset += at or len(piece)
                if not at and offset < stop:
                    continue
                number, is_within_line = number + 1, False
            while True:
                if not held.num_bytes and piece[at : at + 1].isspace():
                    blank = _BLANK_LINES.match(piece, at)
                    assert blank is not None, "it matches no line too"
                    number, offset = number + blank[0].count(b"\n"), offset + len(blank[0])
                    at = blank.end()
                if not held.num_bytes and offset >= stop:
                    return
                end = piece.find(b"\n", at) + 1
                if not end:
                    break
                held.add(piece[at:end])
                yield held.line(number, offset)
                number, offset, at = number + 1, offset + held.num_bytes, end
                held = _LineBuffer(options.max_document_bytes)
            held.add(piece[at:])
            read_to = cursor.position
    except RefutedError as error:
        yield _Damage(error.start, offset + held.num_bytes - error.start, error, read_to)
        return
    except (DamagedError, WindowError) as error:
        yield _Damage(offset, held.num_bytes, error, read_to)
        return
    if held.num_bytes:
        yield held.line(number, offset)
    elif not offset and (span is None or span.stop is None or span.stop.position == options.size):
        counts.note("empty")  # which of spans the last one tells


def _small_pieces(cursor: Cursor, start: Border) -> Iterator[bytes]:
    """What stands at the cursor, which is at the file's first byte, or behind a border."""
    is_plain = not is_compressed(cursor)
    if start.position:
        cursor.seek(start.position)
    for piece in iter(cursor.read, b"") if is_plain else read_through(cursor):
        for at in range(0, len(piece), _SPLIT_BYTES):
            yield piece[at : at + _SPLIT_BYTES]


class _LineBuffer:
    """The bytes of a line so far; of one that is longer than any text of `max_text` bytes can make it, the
    hash."""

    def __init__(self, max_text: int) -> None:
        self._most_content = max_text + MAX_OTHER_BYTES
        self._longest = max_text * _BYTES_FOR_ONE + MAX_OTHER_BYTES
        self._pieces: list[bytes] = []
        self._hasher: blake3 | None = None
        self._begins_object = False
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        self._pieces.append(piece)
        if self.num_bytes > self._longest:
            self._let_go()

    def line(self, number: int, offset: int) -> _Line:
        if self._hasher is None and self.num_bytes > self._most_content:
            num_codes, num_escapes = (
                sum(piece.count(mark) for piece in self._pieces) for mark in (b"\\u", b"\\")
            )
            if self.num_bytes - num_escapes - (_BYTES_FOR_ONE - 1) * num_codes > self._most_content:
                self._let_go()
        if self._hasher is None:
            return _Line(number, offset, self.num_bytes, b"".join(self._pieces))
        if not self._begins_object:
            error = f"the line has {self.num_bytes} bytes and does not begin as a JSON object"
            return _Line(number, offset, self.num_bytes, error=error)
        return _Line(number, offset, self.num_bytes, raw_hash=self._hasher.digest(length=ids.ID_BYTES))

    def _let_go(self) -> None:
        if self._hasher is None:
            self._hasher = blake3()
            begin = next(filter(None, (piece.lstrip() for piece in self._pieces)), b"")
            self._begins_object = begin.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
        for piece in self._pieces:
            self._hasher.update(piece)
        self._pieces.clear()


def _read_line(
    line: _Line, place: Place, options: ReadOptions, counts: InputCounts
) -> Iterable[Document | UnreadableError]:
    if line.error is not None:
        raise BadRowError(line.error)
    if line.raw_hash is not None:
        return (document_of_long_row(line.number, line.raw_hash, place, options),)
    return documents_from_row(_parse(line.data), line.number, place, options, counts)


def _parse(data: bytes) -> dict[str, object]:
    if len(data) > _SHORT_BYTES and _has_too_many_values(data):
        raise BadRowError(f"the line holds more than {_MAX_VALUES} values")
    try:
        row = read_json(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise BadRowError(f"the line is not JSON: {error.msg} at character {error.pos}") from error
    except TooDeepError as error:
        raise BadRowError(f"the line cannot be read as JSON: {error}") from error
    except ValueError as error:
        raise BadRowError(f"the line cannot be read as JSON in UTF-8: {type(error).__name__}") from error
    if not isinstance(row, dict):
        raise BadRowError(f"the line is a JSON {type(row).__name__}: expected an object")
    return row


def _has_too_many_values(data: bytes) -> bool:
    """Whether a line of JSON may hold so many values; what stands in its texts does not count."""
    if sum(map(data.count, (b'"', b",", b"[", b"{"))) <= _MAX_VALUES:
        return False
    without_quotes_in_texts = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = _VALUE.finditer(without_quotes_in_texts)
    return next(islice(values, _MAX_VALUES, None), None) is not None
