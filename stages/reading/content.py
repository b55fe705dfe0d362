"""Reading forward: a cursor over the bytes of a file, and the content that members of it inflate to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

import zstandard

from stages.reading.options import DEFAULT_WINDOW_BYTES, UnreadableError

READ_BYTES: Final = 64 << 10
_LAST_BYTES: Final = 4
_LINE_ENDS = re.compile(rb"[\r\n]*")


class DamagedError(UnreadableError):
    """The compressed bytes cannot be decoded any further: they are damaged, or the file ends inside them."""


class TornError(DamagedError):
    """The file ends inside a compressed member: how much is missing, nobody knows."""


class RefutedError(DamagedError):
    """A compressed member was decoded to its end, and its checksum says that it held something else. `start`:
    where the member's content begins in that of the file; `packed_start`: where the member does."""

    start = 0
    packed_start = 0


class WindowError(UnreadableError):
    """A compressed member refers back further than the options let memory be held for: it is not damaged."""


class Stream(Protocol):
    """What a cursor reads: bytes from wherever it was told to go."""

    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class Cursor:
    """Reads a seekable stream forward, up to its end or to byte `end` of it, and counts its position.
    `dictionary`: what the file's zstd frames were compressed with, if anything. `max_window_bytes` as of
    ReadOptions."""

    dictionary: zstandard.ZstdCompressionDict | None = None

    def __init__(
        self,
        stream: Stream,
        position: int = 0,
        end: int | None = None,
        max_window_bytes: int = DEFAULT_WINDOW_BYTES,
    ) -> None:
        self._stream = stream
        self._end = end
        self.max_window_bytes = max_window_bytes
        self.seek(position)

    def seek(self, position: int) -> None:
        """Go to byte `position` of the stream."""
        self._stream.seek(position)
        self._held = b""
        self.position = position

    def read(self, limit: int = READ_BYTES) -> bytes:
        """The next bytes, at most `limit`; none at the end of the stream."""
        data = self._held or self._next()
        data, self._held = data[:limit], data[limit:]
        self.position += len(data)
        return data

    def more(self) -> bytes:
        """The next piece, as a plain file's content."""
        return self.read()

    def unread(self, data: bytes) -> None:
        """Give back the last bytes that `read` gave."""
        self._held = data + self._held
        self.position -= len(data)

    def peek(self, num_bytes: int) -> bytes:
        """The next `num_bytes`, fewer only at the end of the stream."""
        while len(self._held) < num_bytes:
            data = self._next()
            if not data:
                break
            self._held += data
        return self._held[:num_bytes]

    def _next(self) -> bytes:
        if self._end is None:
            return self._stream.read(READ_BYTES)
        return self._stream.read(max(min(READ_BYTES, self._end - self.position - len(self._held)), 0))


def _last_line_end(data: bytes) -> int:
    """Where it begins: at a carriage return, if one is there. 0 if there is none."""
    return max(data.rfind(b"\n") - 1, 0)


class Content:
    """Content of a member (or of a plain file) read forward: heads up to a blank line, blocks of known
    length.

    `position` counts the bytes taken so far."""

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._held = b""
        self._before = b""
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
        """The bytes up to and with the first match of `pattern`, which begins and ends with a line end; None,
        and nothing taken, where there is no match within `limit` bytes."""
        match = pattern.search(self._held, self._at, self._at + limit)
        num_bytes = match.end() - self._at if match else self._read_through(pattern, limit)
        if num_bytes is None:
            return None
        self._at += num_bytes
        return self._held[self._at - num_bytes : self._at]

    def _read_through(self, pattern: re.Pattern[bytes], limit: int) -> int | None:
        """Read on up to a match of `pattern`, of which there is none in what is held: where it ends, from
        here."""
        held = self._held[self._at :]
        pieces, size, begins = [held], len(held), _last_line_end(held)
        # The last line end of a match is in a new piece, the other one at `begins` or behind it. So what is
        # behind that is looked at when a line end comes, each byte twice at most and joined twice, however
        # small the pieces.
        behind = [held[begins:]]
        try:
            while size < limit and (piece := self._more()):
                pieces.append(piece)
                behind.append(piece)
                size += len(piece)
                if b"\n" in piece:
                    searched = b"".join(behind)
                    if match := pattern.search(searched, 0, limit - begins):
                        return begins + match.end()
                    last = _last_line_end(searched)
                    begins, behind = begins + last, [searched[last:]]
            return None
        finally:  # where a piece is damaged too, what came before it is there
            if len(pieces) > 1:
                self._before, self._past = self.last, self._past + self._at
                self._held, self._at = b"".join(pieces), 0

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

    def skip_until(self, pattern: re.Pattern[bytes], reach: int) -> bool:
        """Pass over everything up to the end of the next match of `pattern`, which looks at `reach` bytes at
        most; says whether there was one."""
        while True:
            match = pattern.search(self._held, self._at)
            if match:
                self._at = match.end()
                return True
            self._at = max(self._at, len(self._held) - reach)
            if not self._extend():
                self._at = len(self._held)
                return False

    def give_back(self, num_bytes: int) -> None:
        """Untake the last bytes of what the last call took."""
        self._at -= num_bytes

    @property
    def last(self) -> bytes:
        """The last four bytes that were taken or passed over."""
        return (self._before + self._held[max(self._at - _LAST_BYTES, 0) : self._at])[-_LAST_BYTES:]

    def rest(self) -> bytes:
        """What was read ahead and not taken."""
        return self._held[self._at :]

    def _extend(self) -> bool:
        piece = self._more()
        if not piece:
            return False
        at = self._at
        self._before = self._held[at - _LAST_BYTES : at] if at >= _LAST_BYTES else self.last
        self._past += at
        self._held = self._held[self._at :] + piece if self._at < len(self._held) else piece
        self._at = 0
        return True
