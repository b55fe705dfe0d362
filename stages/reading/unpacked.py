"""A bzip2 or xz file as the stream of what it unfolds to: its streams cut the content anywhere, also within a
record, so that records have their places in the content, as the lines of JSONL have."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, Final, cast

from stages.reading.content import READ_BYTES, Cursor
from stages.reading.magic import HEAD_BYTES, is_streamed
from stages.reading.members import read_through

_KEPT_BYTES: Final = 32 << 20
"""Content that is kept behind the place of reading, so that looking for the next record behind a damaged one
does not begin at the file's first byte each time."""


def content_stream(stream: BinaryIO, max_window_bytes: int) -> BinaryIO:
    """The content of a bzip2 or xz file, as a seekable stream; any other file is given back as it is."""
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    stream.seek(0)
    return cast(BinaryIO, UnpackedStream(stream, max_window_bytes)) if is_streamed(head) else stream


class UnpackedStream(io.RawIOBase):
    """What a compressed stream unfolds to. Going back further than 32 MiB begins it anew. DamagedError and
    WindowError from `read`, which gives some bytes and never the rest of the content."""

    def __init__(self, stream: BinaryIO, max_window_bytes: int) -> None:
        super().__init__()
        self._stream, self._max_window_bytes = stream, max_window_bytes
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._cursor = Cursor(self._stream, max_window_bytes=self._max_window_bytes)
        self._pieces: Iterator[bytes] = read_through(self._cursor)
        self._kept = bytearray()
        self._start = 0

    @property
    def num_packed(self) -> int:
        """Bytes of the compressed file that were read so far."""
        return self._cursor.position

    def read(self, size: int = READ_BYTES, /) -> bytes:
        if self._at < self._start:
            self._begin()
        # A read may give fewer bytes than are asked for, but none only at the end.
        while self._start + len(self._kept) <= self._at:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._kept += piece
            if len(self._kept) > 2 * _KEPT_BYTES:
                num_dropped = min(len(self._kept) - _KEPT_BYTES, self._at - self._start)
                del self._kept[:num_dropped]
                self._start += num_dropped
        first = self._at - self._start
        data = bytes(self._kept[first : first + size])
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence != 0:
            raise io.UnsupportedOperation("the length of compressed content is not known")
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
