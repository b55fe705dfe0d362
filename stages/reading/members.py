"""Compressed files: gzip members and zstd frames, each inflated by itself.

So a record whose length lies cannot swallow its neighbours, and damage costs only the member it lies in. No call gives
more than a few MiB, whatever a member inflates to.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Final, Protocol

import zstandard
from isal import igzip_lib, isal_zlib

from stages.reading.content import READ_BYTES, Cursor, DamagedError, RefutedError

PIECE_BYTES: Final = 1 << 20
GZIP_MAGIC: Final = b"\x1f\x8b\x08"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SLICE: Final = 1 << 10
"""A zstd block of 4 bytes holds up to 128 KiB (RFC 8878, 3.1.1.2), so a slice gives at most 32 MiB."""
_ZSTD_WINDOW: Final = 128 << 20
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""Begins a zstd frame that holds no content (RFC 8878, 3.1.2)."""
_DICTIONARY: Final = b"\x5d\x2a\x4d\x18"
"""Begins the frame with a dictionary (IIPC, "Use of Zstandard in WARC files" 1.0, section 3.2)."""
_MAX_DICTIONARY_BYTES: Final = 16 << 20
_GZIP_WINDOW: Final = 31
"""zlib's wbits for a 32 KiB window with a gzip header and a checked CRC."""


class CompressedMember(Protocol):
    """Gives its content piece by piece; when that ends, the cursor stands behind the member."""

    def more(self) -> bytes: ...


class GzipMember:
    """One gzip member, from the cursor's position on."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        self._ended = False

    def more(self) -> bytes:
        """The next piece of content; none at the end, once length and CRC agree. DamagedError if they do not."""
        while not self._ended:
            data = self._inflater.unconsumed_tail or self._cursor.read()
            try:
                piece = self._inflater.decompress(data, PIECE_BYTES)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub calls it a value
                raise _damage("gzip member", error) from error
            if self._inflater.eof:
                self._ended = True
                self._cursor.unread(self._inflater.unused_data)
            elif not data and not piece:
                raise DamagedError("the file ends inside a gzip member")
            if piece:
                return piece
        return b""


class ZstdMember:
    """One zstd frame, from the cursor's position on."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        try:
            unpacker = zstandard.ZstdDecompressor(cursor.dictionary, max_window_size=_ZSTD_WINDOW)
        except zstandard.ZstdError as error:
            raise DamagedError(f"the file's zstd dictionary cannot be used: {error}") from error
        self._frame = unpacker.decompressobj()

    def more(self) -> bytes:
        """The next piece of content; none at the end of the frame. DamagedError if it cannot be decoded."""
        while not self._frame.eof:
            data = self._cursor.read(_ZSTD_SLICE)
            if not data:
                raise DamagedError("the file ends inside a zstd frame")
            try:
                piece: bytes = self._frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _damage("zstd frame", error) from error
            if self._frame.eof:
                self._cursor.unread(self._frame.unused_data)
            if piece:
                return piece
        return b""


def _damage(what: str, error: Exception) -> DamagedError:
    # Neither library has a type or number for it.
    kind = RefutedError if "checksum" in str(error) else DamagedError
    return kind(f"damaged {what}: {error}")


def open_member(cursor: Cursor) -> GzipMember | ZstdMember | None:
    """The compressed member that begins at the cursor; None if none does."""
    if cursor.peek(len(GZIP_MAGIC)) == GZIP_MAGIC:
        return GzipMember(cursor)
    if cursor.peek(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
        return ZstdMember(cursor)
    return None


def skip_frame(cursor: Cursor) -> bool:
    """Pass over a zstd frame that holds no content; says whether one began here. DamagedError if it is cut off."""
    head = cursor.peek(8)
    if not _SKIPPABLE.match(head):
        return False
    left = 8 + int.from_bytes(head[4:], "little")
    while left:
        data = cursor.read(min(left, READ_BYTES))
        if not data:
            raise DamagedError("the file ends inside a zstd frame")
        left -= len(data)
    return True


def learn_dictionary(cursor: Cursor) -> None:
    """Load the dictionary that a zstd file may begin with, and leave the cursor where it was (the file's first byte).
    One that is damaged is left out: then no frame can be decoded."""
    head = cursor.peek(8)
    num_bytes = int.from_bytes(head[4:], "little")
    if not head.startswith(_DICTIONARY) or num_bytes > _MAX_DICTIONARY_BYTES:
        return
    data = cursor.peek(8 + num_bytes)[8:]
    try:
        if data.startswith(ZSTD_MAGIC):
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as reader:
                data = reader.read(_MAX_DICTIONARY_BYTES)
        cursor.dictionary = zstandard.ZstdCompressionDict(data)
    except zstandard.ZstdError:
        cursor.dictionary = None


def is_compressed(cursor: Cursor) -> bool:
    """Whether a compressed member begins at the cursor, or a zstd frame that holds no content: pzstd writes one before
    each of its frames, the seekable format one at the end."""
    return open_member(cursor) is not None or _SKIPPABLE.match(cursor.peek(4)) is not None


def read_through(cursor: Cursor) -> Iterator[bytes]:
    """The content of all members of a file one after another, or the file itself where it is not compressed. Bytes of
    zero behind a member are padding, as they are to gzip."""
    if not is_compressed(cursor):
        yield from iter(cursor.read, b"")
        return
    position = 0
    while cursor.peek(1):
        if skip_frame(cursor):
            continue
        member = open_member(cursor)
        if member is None:
            raise DamagedError(f"no compressed member begins at byte {cursor.position} of the file")
        start = position
        try:
            for piece in iter(member.more, b""):
                position += len(piece)
                yield piece
        except RefutedError as error:
            error.start = start
            raise
        _skip_padding(cursor)


def _skip_padding(cursor: Cursor) -> None:
    while data := cursor.read():
        if behind := data.lstrip(b"\0"):
            cursor.unread(behind)
            return
