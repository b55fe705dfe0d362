"""Compressed files: gzip members, zstd frames, bzip2 and xz streams, each inflated by itself.

So a record whose length lies cannot swallow its neighbours, and damage costs only the member it lies in. No
call gives more than a few MiB, whatever a member inflates to."""

from __future__ import annotations

import bz2
import io
import lzma
import math
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

import zstandard
from isal import igzip_lib, isal_zlib

from lineage.magic import BZIP2_MAGIC, GZIP_MAGIC, XZ_MAGIC, ZSTD_MAGIC
from stages.reading.content import READ_BYTES, Cursor, DamagedError, RefutedError, TornError, WindowError
from stages.reading.options import MAX_WINDOW_BYTES, WINDOW_KEY, UnreadableError

PIECE_BYTES: Final = 1 << 20
_ZSTD_SLICE: Final = 1 << 10
"""A zstd block of 4 bytes holds up to 128 KiB (RFC 8878, 3.1.1.2), so a slice gives at most 32 MiB."""
_ZSTD_HEAD: Final = 18
"""The longest head of a zstd frame (RFC 8878, 3.1.1.1)."""
_BZIP2_HEAD: Final = 10
_BZIP2_SLICE: Final = 1 << 10
_BZIP2_BLOCK: Final = 900_000 * 255 // 5 + 1
"""The most that a block of bzip2 unfolds to: five bytes in it may stand for 255 equal ones."""
_XZ_BESIDE_WINDOW: Final = 1 << 20
"""What liblzma takes for a stream besides its dictionary (lzma.h has some ten kilobytes)."""
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
        """The next piece of content; none at the end, once length and CRC agree. DamagedError if they do
        not."""
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
                raise TornError("the file ends inside a gzip member")
            if piece:
                return piece
        return b""


class ZstdMember:
    """One zstd frame, from the cursor's position on."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        _check_window(cursor.peek(_ZSTD_HEAD), cursor.max_window_bytes)
        try:
            unpacker = zstandard.ZstdDecompressor(cursor.dictionary, max_window_size=cursor.max_window_bytes)
        except zstandard.ZstdError as error:
            raise DamagedError(f"the file's zstd dictionary cannot be used: {error}") from error
        self._frame = unpacker.decompressobj()

    def more(self) -> bytes:
        """The next piece of content; none at the end of the frame. DamagedError if it cannot be decoded."""
        while not self._frame.eof:
            data = self._cursor.read(_ZSTD_SLICE)
            if not data:
                raise TornError("the file ends inside a zstd frame")
            try:
                piece: bytes = self._frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _damage("zstd frame", error) from error
            if self._frame.eof:
                self._cursor.unread(self._frame.unused_data)
            if piece:
                return piece
        return b""


class Bzip2Member:
    """One bzip2 stream, from the cursor's position on. Each block of it (at most 900,000 bytes, but for runs
    of equal bytes) has a checksum, which is compared when all of the block is decoded: a piece is given out
    only then, so that damage costs no more than the block that it lies in, and nothing refuted is given
    out."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._decoder = bz2.BZ2Decompressor()
        self._held: deque[bytes] = deque()
        self._num_held = 0
        self._are_checked = False

    def more(self) -> bytes:
        """The next piece of content; none at the end of the stream. DamagedError if it cannot be decoded."""
        while not self._held or not (
            self._are_checked or self._num_held - len(self._held[0]) >= _BZIP2_BLOCK
        ):
            if self._decoder.eof:
                self._are_checked = True
                break
            data = self._cursor.read(_BZIP2_SLICE) if self._decoder.needs_input else b""
            if not data and self._decoder.needs_input:
                raise TornError("the file ends inside a bzip2 stream")
            try:
                piece = self._decoder.decompress(data, PIECE_BYTES)
            except (OSError, ValueError) as error:
                raise _damage("bzip2 stream", error) from error
            if self._decoder.eof:
                self._cursor.unread(self._decoder.unused_data)
            if piece:
                self._held.append(piece)
                self._num_held += len(piece)
            # It asks for more bytes only when the blocks that it has are decoded and compared.
            self._are_checked = self._decoder.eof or self._decoder.needs_input
        if not self._held:
            return b""
        self._num_held -= len(self._held[0])
        return self._held.popleft()


class XzMember:
    """One xz stream, from the cursor's position on. Its checksums are those of blocks without a bound, mostly
    the whole content: what was given out before may be what they refute."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        limit = cursor.max_window_bytes + _XZ_BESIDE_WINDOW
        self._decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=limit)

    def more(self) -> bytes:
        """The next piece of content; none at the end of the stream. RefutedError if it cannot be decoded,
        WindowError if it takes more memory than is allowed, TornError if it is cut off."""
        while not self._decoder.eof:
            data = self._cursor.read() if self._decoder.needs_input else b""
            if not data and self._decoder.needs_input:
                raise TornError("the file ends inside an xz stream")
            try:
                piece = self._decoder.decompress(data, PIECE_BYTES)
            except lzma.LZMAError as error:
                # It has no type or number for it.
                if "emory usage limit" in str(error):
                    raise _too_wide("an xz stream", None, self._cursor.max_window_bytes) from error
                raise RefutedError(f"damaged xz stream: {error}") from error
            if self._decoder.eof:
                self._cursor.unread(self._decoder.unused_data)
            if piece:
                return piece
        return b""


def _check_window(head: bytes, most: int) -> None:
    """WindowError where the zstd frame that begins with `head` refers back further than `most` bytes."""
    try:
        window = _window(head)
    except IndexError:
        return  # as damaged as its decoding says
    if window > most:
        raise _too_wide("a zstd frame", window, most)


def _window(head: bytes) -> int:
    """The window of a zstd frame (RFC 8878, 3.1.1.1); its library says nothing of one that it does not
    take."""
    descriptor = head[4]
    if not descriptor & 32:
        base = 1 << 10 + (head[5] >> 3)
        return base + base // 8 * (head[5] & 7)
    # A single segment: the window is the content.
    start, num_bytes = 5 + (0, 1, 2, 4)[descriptor & 3], 1 << (descriptor >> 6)
    return int.from_bytes(head[start : start + num_bytes], "little") + (256 if num_bytes == 2 else 0)


def _too_wide(what: str, window: int | None, most: int) -> WindowError:
    """`window` None: it is not known how far."""
    if window is not None and window > MAX_WINDOW_BYTES:
        return WindowError(
            f"{what} refers back over {window} bytes, and at most {MAX_WINDOW_BYTES} can be held: pack it"
            " anew with a smaller window (zstd --long=27)"
        )
    wants = "more" if window is None else f"{window} bytes ({_mib(window)} MiB), more"
    return WindowError(
        f"{what} refers back over {wants} than {WINDOW_KEY} = {most} ({_mib(most)} MiB):"
        f" set {WINDOW_KEY} = {window or MAX_WINDOW_BYTES} to read it (as much memory for each file that is"
        " read at a time)"
    )


def _mib(num_bytes: int) -> int:
    return -(-num_bytes // (1 << 20))


def _damage(what: str, error: Exception) -> DamagedError:
    # Neither library has a type or number for it.
    kind = RefutedError if "checksum" in str(error) else DamagedError
    return kind(f"damaged {what}: {error}")


def open_member(cursor: Cursor) -> CompressedMember | None:
    """The compressed member that begins at the cursor; None if none does. WindowError if it is a zstd frame
    that takes more memory than is allowed."""
    head = cursor.peek(_BZIP2_HEAD)
    if head.startswith(GZIP_MAGIC):
        return GzipMember(cursor)
    if head.startswith(ZSTD_MAGIC):
        return ZstdMember(cursor)
    if head.startswith(XZ_MAGIC):
        return XzMember(cursor)
    return Bzip2Member(cursor) if BZIP2_MAGIC.match(head) else None


def skip_frame(cursor: Cursor) -> bool:
    """Pass over a zstd frame that holds no content; says whether one began here. DamagedError if it is cut
    off."""
    head = cursor.peek(8)
    if not _SKIPPABLE.match(head):
        return False
    left = 8 + int.from_bytes(head[4:], "little")
    while left:
        data = cursor.read(min(left, READ_BYTES))
        if not data:
            raise TornError("the file ends inside a zstd frame")
        left -= len(data)
    return True


def learn_dictionary(cursor: Cursor) -> None:
    """Load the dictionary that a zstd file may begin with, and leave the cursor where it was (the file's
    first byte). One that is damaged is left out: then no frame can be decoded."""
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


_MAGICS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        re.escape(GZIP_MAGIC),
        re.escape(ZSTD_MAGIC),
        re.escape(XZ_MAGIC),
        BZIP2_MAGIC.pattern,
    )
)
_LOOKED_AT: Final = 64 << 10
_MOST_PIECES: Final = 4
_PACKERS: Final = (
    ("gzip member", "gzip"),
    ("zstd frame", "zstd"),
    ("xz stream", "xz"),
    ("bzip2 stream", "bzip2"),
)
"""What members are called, and what packs them, in the order of _MAGICS."""


def how_to_split(head: bytes) -> str:
    """What a member with this head is called, and how a file of lines in one becomes a file of many."""
    found = (names for magic, names in zip(_MAGICS, _PACKERS, strict=True) if magic.match(head))
    name, packer = next(found, ("compressed member", "zstd"))
    return f"{name}: pack them in many ({packer} -dc FILE | split -l 100000 --filter='{packer} >> NEW')"


def is_compressed(cursor: Cursor) -> bool:
    """Whether a compressed member begins at the cursor, or a zstd frame that holds no content: pzstd writes
    one before each of its frames, the seekable format one at the end."""
    head = cursor.peek(_BZIP2_HEAD)
    begins = (
        head.startswith((GZIP_MAGIC, ZSTD_MAGIC, XZ_MAGIC))
        or BZIP2_MAGIC.match(head)
        or _SKIPPABLE.match(head)
    )
    return bool(begins)


class LongMemberError(UnreadableError):
    """A member goes on further than it may."""


def read_through(cursor: Cursor, end: float = math.inf, most: float = math.inf) -> Iterator[bytes]:
    """The content of all members of a file one after another, or the file itself where it is not compressed.
    Bytes of zero behind a member are padding, as they are to gzip.

    Of a compressed file those members that begin before byte `end`; the cursor is left where the next one
    does. LongMemberError where one of them goes on beyond byte `most`."""
    # Behind the first byte, what begins no member is damage of a compressed file, and no plain one.
    if not cursor.position and not is_compressed(cursor):
        yield from iter(cursor.read, b"")
        return
    position = 0
    while cursor.peek(1):
        if skip_frame(cursor):
            continue
        if cursor.position >= end:
            return
        start, packed_start, head = position, cursor.position, cursor.peek(_BZIP2_HEAD)
        member = open_member(cursor)
        if member is None:
            raise DamagedError(f"no compressed member begins at byte {packed_start} of the file")
        try:
            for piece in iter(member.more, b""):
                position += len(piece)
                yield piece
                if cursor.position > most:
                    num_bytes = cursor.position - packed_start
                    raise LongMemberError(f"{num_bytes:,} bytes of it are in one {how_to_split(head)}")
        except RefutedError as error:
            error.start, error.packed_start = start, packed_start
            raise
        _skip_padding(cursor)


def seek_member(cursor: Cursor, begin: int, end: int) -> bool:
    """Go on to the first place in [begin, end) where a member may begin, of the kind with which the file does, and
    on whose first byte the cursor is; says whether there is one. What goes on as a member for some kilobytes
    may be one."""
    while skip_frame(cursor):
        pass
    head = cursor.peek(_BZIP2_HEAD)
    magic = next((magic for magic in _MAGICS if magic.match(head)), None)
    cursor.seek(begin)
    while magic and cursor.position < end and (window := cursor.peek(READ_BYTES + _LOOKED_AT)):
        for match in magic.finditer(window, 0, READ_BYTES + _BZIP2_HEAD):
            if match.start() >= READ_BYTES:
                break
            if _goes_on(window[match.start() : match.start() + _LOOKED_AT], cursor.max_window_bytes):
                cursor.read(match.start())
                return cursor.position < end
        cursor.read(READ_BYTES)
    return False


def _goes_on(data: bytes, max_window_bytes: int) -> bool:
    """Whether bytes that begin as a member can be decoded as far as they go, or begin no member that may be
    decoded at all, as their reading says."""
    try:
        member = open_member(Cursor(io.BytesIO(data), max_window_bytes=max_window_bytes))
        return member is not None and all(islice(iter(member.more, b""), _MOST_PIECES))
    except (TornError, WindowError):
        return True
    except DamagedError:
        return False


def _skip_padding(cursor: Cursor) -> None:
    while data := cursor.read():
        if behind := data.lstrip(b"\0"):
            cursor.unread(behind)
            return
