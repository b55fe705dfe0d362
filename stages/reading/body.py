"""HTTP bodies as they were sent, to the bytes of the page: chunks joined, gzip, deflate, br and zstd undone, bounded.

Crawlers often decode a body and keep the header that named its coding, so a body that does not begin as its header
says is taken as it is; one that breaks off gives what it has, as a browser does.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import brotli
import zstandard

_SLICE: Final = 16 << 10
_ZSTD_SLICE: Final = 1 << 10
_ZSTD_WINDOW: Final = 8 << 20
"""The largest window that RFC 8878 (section 3.1.1.1.2) requires of a decoder, and RFC 9659 allows in HTTP."""
_ZLIB_BEGINS: Final = frozenset(bytes([window << 4 | 8]) for window in range(8))
"""The first byte of zlib's format (RFC 1950, section 2.2): the method, 8, and a window of 256 bytes to 32 KiB."""
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")


class BodyTooLongError(ValueError):
    """A body decodes to more bytes than are allowed."""


def decode_body(payload: bytes, encoding: str | None, limit: int) -> bytes:
    """`payload` without the codings named in `encoding` (comma-separated, in the order they were applied).

    Never holds much more than `limit` bytes; BodyTooLongError if the result of a coding would be longer."""
    for coding in reversed((encoding or "").lower().split(",")):
        undo = _CODINGS.get(coding.strip())
        if undo:
            payload = _bounded(undo(payload), limit)
    return payload


def _bounded(pieces: Iterator[bytes], limit: int) -> bytes:
    held, num_bytes = [], 0
    for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > limit:
            raise BodyTooLongError(f"the body decodes to more than {limit} bytes (limits.max_document_bytes)")
        held.append(piece)
    return b"".join(held)


def _gzip(payload: bytes) -> Iterator[bytes]:
    return _inflate(payload, zlib.MAX_WBITS | 16)


def _deflate(payload: bytes) -> Iterator[bytes]:
    # RFC 9110 (section 8.4.1.2) means zlib's format; some servers send the bare one.
    begins_as_zlib = payload[:1] in _ZLIB_BEGINS and int.from_bytes(payload[:2], "big") % 31 == 0
    return _inflate(payload, zlib.MAX_WBITS if begins_as_zlib else -zlib.MAX_WBITS)


def _inflate(payload: bytes, wbits: int) -> Iterator[bytes]:
    inflater, data, begun = zlib.decompressobj(wbits), payload, False
    try:
        while not inflater.eof:
            piece = inflater.decompress(data, _SLICE)
            if not piece and not inflater.unconsumed_tail:
                break
            begun, data = True, inflater.unconsumed_tail
            yield piece
    except zlib.error:
        if not begun:
            yield payload


def _brotli(payload: bytes) -> Iterator[bytes]:
    decoder, data, begun = brotli.Decompressor(), payload, False
    try:
        while not decoder.is_finished():
            piece = decoder.process(data, output_buffer_limit=_SLICE)
            if not piece:
                break
            begun, data = True, b""
            yield piece
    except brotli.error:
        pass
    if not begun:
        yield payload


def _zstd(payload: bytes) -> Iterator[bytes]:
    decoder, begun = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj(), False
    try:
        # A block of 4 bytes holds up to 128 KiB (RFC 8878, section 3.1.1.2): a slice gives at most 32 MiB.
        for at in range(0, len(payload), _ZSTD_SLICE):
            piece = decoder.decompress(payload[at : at + _ZSTD_SLICE])
            begun = begun or bool(piece)
            yield piece
            if decoder.eof:
                return
    except zstandard.ZstdError:
        if not begun:
            yield payload


def _dechunk(payload: bytes) -> Iterator[bytes]:
    """The chunks of RFC 9112, section 7.1, without their lengths, extensions and trailer."""
    at, begun = 0, False
    while line := _CHUNK_LINE.match(payload, at):
        size = int(line[1], 16)
        # A length may name more bytes than a body can have, and than an index can count.
        end = min(line.end() + size, len(payload))
        if not size and begun:
            return
        if not begun and payload[end : end + 1] not in (b"\r", b"\n", b""):
            break
        begun = True
        yield payload[line.end() : end]
        at = end + (2 if payload[end : end + 2] == b"\r\n" else 1)
    if not begun:
        yield payload


_CODINGS: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
    "chunked": _dechunk,
}
