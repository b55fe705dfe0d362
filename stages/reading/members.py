"""Bytes of a WARC file: a cursor over the file, and the content of one gzip member, zstd frame or plain stretch.

A gzip member is inflated by itself, so that a record whose length lies cannot swallow its neighbours, and so that
damage costs only the member it lies in. No call holds more than a few MiB, whatever a member inflates to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, Protocol

import zstandard
from isal import igzip_lib, isal_zlib

CHUNK_BYTES: Final = 64 << 10
PIECE_BYTES: Final = 1 << 20
GZIP_MAGIC: Final = b"\x1f\x8b\x08"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SLICE: Final = 1 << 10
"""A zstd block of 4 bytes holds up to 128 KiB (RFC 8878, 3.1.1.2), so a slice gives at most 32 MiB."""
_ZSTD_WINDOW: Final = 128 << 20
_GZIP_WINDOW: Final = 31
"""zlib's wbits for a 32 KiB window with a gzip header and a checked CRC."""
_LINE_ENDS = re.compile(rb"[\r\n]*")


class DamagedError(Exception):
    """The compressed bytes cannot be decoded any further: they are damaged, or the file ends inside them."""


class Cursor:
    """Reads a seekable stream forward in chunks, and knows where it is."""

    def __init__(self, stream: BinaryIO, position: int = 0) -> None:
        self._stream = stream
        self.seek(position)

    def seek(self, position: int) -> None:
        """Go to byte `position` of the stream."""
        self._stream.seek(position)
        self._held = b""
        self.position = position

    def chunk(self, limit: int = CHUNK_BYTES) -> bytes:
        """The next bytes, at most `limit`; none at the end of the stream."""
        data = self._held or self._stream.read(CHUNK_BYTES)
        data, self._held = data[:limit], data[limit:]
        self.position += len(data)
        return data

    def more(self) -> bytes:
        """The next piece, as a plain file's content."""
        return self.chunk()

    def unread(self, data: bytes) -> None:
        """Give back the last bytes that `chunk` gave."""
        self._held = data + self._held
        self.position -= len(data)

    def peek(self, num_bytes: int) -> bytes:
        """The next `num_bytes`, fewer only at the end of the stream."""
        while len(self._held) < num_bytes:
            data = self._stream.read(CHUNK_BYTES)
            if not data:
                break
            self._held += data
        return self._held[:num_bytes]


class Member(Protocol):
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
            data = self._inflater.unconsumed_tail or self._cursor.chunk()
            try:
                piece = self._inflater.decompress(data, PIECE_BYTES)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub calls it a value
                raise DamagedError(f"damaged gzip member: {error}") from error
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
        self._frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()

    def more(self) -> bytes:
        """The next piece of content; none at the end of the frame. DamagedError if it cannot be decoded."""
        while not self._frame.eof:
            data = self._cursor.chunk(_ZSTD_SLICE)
            if not data:
                raise DamagedError("the file ends inside a zstd frame")
            try:
                piece: bytes = self._frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DamagedError(f"damaged zstd frame: {error}") from error
            if self._frame.eof:
                self._cursor.unread(self._frame.unused_data)
            if piece:
                return piece
        return b""


class Content:
    """Content of a member (or of a plain file) read forward: heads up to a blank line, blocks of known length.

    `position` counts the bytes taken so far."""

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._held = b""
        self._at = 0
        self._past = 0

    @property
    def position(self) -> int:
        return self._past + self._at

    def peek(self, num_bytes: int) -> bytes:
        """The next `num_bytes`, fewer only at the end."""
        while len(self._held) - self._at < num_bytes and self._extend():
            pass
        return self._held[self._at : self._at + num_bytes]

    def take_through(self, pattern: re.Pattern[bytes], limit: int) -> bytes | None:
        """The bytes up to and with the first match of `pattern`; None, and nothing taken, where there is no match
        within `limit` bytes."""
        while True:
            match = pattern.search(self._held, self._at, self._at + limit)
            if match:
                taken = self._held[self._at : match.end()]
                self._at = match.end()
                return taken
            if len(self._held) - self._at >= limit or not self._extend():
                return None

    def take_some(self, limit: int) -> bytes:
        """The next bytes, at least one and at most `limit`; none only at the end."""
        if self._at == len(self._held) and not self._extend():
            return b""
        taken = self._held[self._at : self._at + limit]
        self._at += len(taken)
        return taken

    def take(self, num_bytes: int) -> bytes:
        """The next `num_bytes`, fewer only at the end."""
        pieces = []
        while num_bytes and (piece := self.take_some(num_bytes)):
            pieces.append(piece)
            num_bytes -= len(piece)
        return b"".join(pieces)

    def skip(self, num_bytes: int) -> int:
        """Pass over `num_bytes`; says how many there were."""
        left = num_bytes
        while left and (piece := self.take_some(left)):
            left -= len(piece)
        return num_bytes - left

    def skip_blank(self) -> bool:
        """Pass over line ends; says whether anything is left."""
        while True:
            self._at = _LINE_ENDS.match(self._held, self._at).end()  # type: ignore[union-attr]  # it matches nothing too
            if self._at < len(self._held):
                return True
            if not self._extend():
                return False

    def skip_until(self, pattern: re.Pattern[bytes]) -> bool:
        """Pass over everything up to the end of the next match of `pattern`, which looks at 32 bytes at most; says
        whether there was one."""
        while True:
            match = pattern.search(self._held, self._at)
            if match:
                self._at = match.end()
                return True
            self._at = max(self._at, len(self._held) - 32)
            if not self._extend():
                self._at = len(self._held)
                return False

    def rest(self) -> bytes:
        """What was read ahead and not taken."""
        return self._held[self._at :]

    def _extend(self) -> bool:
        piece = self._more()
        if not piece:
            return False
        self._past += self._at
        self._held = self._held[self._at :] + piece if self._at < len(self._held) else piece
        self._at = 0
        return True


def open_member(cursor: Cursor) -> GzipMember | ZstdMember | None:
    """The compressed member that begins at the cursor; None if none does."""
    if cursor.peek(len(GZIP_MAGIC)) == GZIP_MAGIC:
        return GzipMember(cursor)
    if cursor.peek(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
        return ZstdMember(cursor)
    return None


def read_through(cursor: Cursor) -> Iterator[bytes]:
    """The content of all members of a file one after another, or the file itself where it is not compressed."""
    if open_member(cursor) is None:
        yield from iter(cursor.chunk, b"")
        return
    while cursor.peek(1):
        member = open_member(cursor)
        if member is None:
            raise DamagedError(f"no compressed member begins at byte {cursor.position} of the file")
        yield from iter(member.more, b"")
