"""JSONL files (plain, gzip, zstd) to documents, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from stages.document import Document, Place
from stages.reading.content import Cursor, DamagedError
from stages.reading.members import read_through
from stages.reading.options import InputCounts, ReadOptions, Unreadable, UnreadableError, unreadable_for_any_error
from stages.reading.row import BadRowError, document_from_row

_BYTES_FOR_ONE: Final = 6
"""JSON may write a character of one byte as six (RFC 8259, section 7)."""
_OTHER_FIELDS_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Line:
    """A line's number from 0, its offset and length (with the line end) in bytes, and its bytes, or why it has none."""

    number: int
    offset: int
    length: int
    data: bytes
    error: str | None


def looks_like_jsonl(stream: BinaryIO) -> bool:
    """Whether a stream, decompressed, begins with an object."""
    try:
        return next(read_through(Cursor(stream)), b"").lstrip()[:1] == b"{"
    except DamagedError:
        return False


def read_jsonl(stream: BinaryIO, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """A document for each line that is not blank. Offsets count bytes of the decompressed stream; behind damaged
    compression nothing is read, as its offsets would be unknown."""
    for line in _lines(stream, options):
        if line.error is None and not line.data.strip():
            continue
        place = Place(file=options.file, offset=line.offset, length=line.length)
        try:
            with unreadable_for_any_error():
                document = document_from_row(_parse(line), line.number, place, options)
        except UnreadableError as error:
            yield Unreadable(
                file=options.file, offset=line.offset, length=line.length, error=str(error), fault=error.fault
            )
        else:
            counts.add_row()
            yield document


def read_jsonl_at(stream: BinaryIO, offset: int, options: ReadOptions) -> Document | Unreadable:
    """The line at `offset`; those before it are read too, for its number. ValueError if no line begins there."""
    for item in read_jsonl(stream, options, InputCounts()):
        if (item.place.offset if isinstance(item, Document) else item.offset) == offset:
            return item
    raise ValueError(f"{options.file}: no line with a document begins at byte {offset} of its decompressed content")


def _lines(stream: BinaryIO, options: ReadOptions) -> Iterator[_Line]:
    longest = options.max_document_bytes * _BYTES_FOR_ONE + _OTHER_FIELDS_BYTES
    number = offset = 0
    held = _Held(longest)
    try:
        for piece in read_through(Cursor(stream)):
            *ends, rest = piece.split(b"\n")
            for end in ends:
                held.add(end + b"\n")
                yield held.line(number, offset)
                number, offset = number + 1, offset + held.num_bytes
                held = _Held(longest)
            held.add(rest)
    except DamagedError as error:
        yield _Line(number, offset, held.num_bytes, b"", str(error))
        return
    if held.num_bytes:
        yield held.line(number, offset)
    elif not offset:
        yield _Line(0, 0, 0, b"", "the file is empty")


class _Held:
    """The bytes of a line so far, let go of once there are more than `longest`."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        if self.num_bytes > self._longest:
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def line(self, number: int, offset: int) -> _Line:
        too_long = self.num_bytes > self._longest
        error = f"the line has more than {self._longest} bytes (limits.max_document_bytes)" if too_long else None
        return _Line(number, offset, self.num_bytes, b"".join(self._pieces), error)


def _parse(line: _Line) -> dict[str, Any]:
    if line.error is not None:
        raise BadRowError(line.error)
    try:
        row = json.loads(line.data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise BadRowError(f"the line is not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"the line cannot be read as JSON in UTF-8: {type(error).__name__}") from error
    if not isinstance(row, dict):
        raise BadRowError(f"the line is a JSON {type(row).__name__}: expected an object")
    return row
