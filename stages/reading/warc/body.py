"""HTTP bodies as they were sent, to the bytes of the page: chunks joined, gzip, deflate, br and zstd undone,
bounded.

Crawlers often decode a body and keep the header that named its coding, so a body that is not coded as its
header says is taken as it is; one that breaks off, or is damaged, gives what stands before, as a browser
does."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

import brotli
import zstandard

_SLICE: Final = 1 << 10
"""Of gzip a slice gives at most 1 MiB (1,032 bytes a byte, https://zlib.net/zlib_tech.html), of zstd, where a
block of 4 bytes holds up to 128 KiB (RFC 8878, section 3.1.1.2), 32 MiB."""
_BROTLI_OUTPUT: Final = 16 << 10
"""Bytes that a brotli decoder gives at a time: a slice may hold gigabytes."""
_ZSTD_WINDOW: Final = 8 << 20
"""The largest window that RFC 8878 (section 3.1.1.1.2) requires of a decoder, and RFC 9659 allows in HTTP."""
_ZLIB_BEGINS: Final = frozenset(bytes([window << 4 | 8]) for window in range(8))
"""The first byte of zlib's format (RFC 1950, section 2.2): the method, 8, and a window of 256 bytes to 32
KiB."""
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?(\r?\n)")
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""A byte that no text has (MIME Sniffing standard, section 3, "binary data byte")."""
_SNIFFED_BYTES: Final = 1445
"""What browsers sniff of a body (the same, section 5.2)."""
_TEXT_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ERRORS: Final = (zlib.error, brotli.error, zstandard.ZstdError)


class BodyTooLongError(ValueError):
    """A body decodes to more bytes than are allowed; `begin` is what was decoded of it."""

    begin = b""


class _BrokenError(ValueError):
    """A body does not end as its coding does: it is damaged, breaks off, is followed by more, or is not so
    coded."""


def decode_body(payload: bytes, encoding: str | None, limit: int) -> bytes:
    """`payload` without the codings named in `encoding` (comma-separated, in the order they were applied).

    Never holds much more than `limit` bytes; BodyTooLongError if the result of a coding would be longer."""
    for name in reversed((encoding or "").lower().split(",")):
        coding = _CODINGS.get(name.strip())
        if coding:
            payload = _undone(coding, payload, limit)
    return payload


@dataclass(frozen=True, slots=True)
class _Coding:
    """`pieces` gives the decoded body, and raises _BrokenError behind the last of a broken one; every body of
    this coding begins with `magic`."""

    pieces: Callable[[bytes], Iterator[bytes]]
    magic: bytes = b""


def _undone(coding: _Coding, payload: bytes, limit: int) -> bytes:
    held: list[bytes] = []
    try:
        held.extend(_bounded(coding.pieces(payload), limit))
    except _BrokenError:
        is_coded = payload.startswith(coding.magic) if coding.magic else any(held) and not _is_text(payload)
        if not is_coded:
            held = list(_bounded([payload], limit))
    except BodyTooLongError as error:
        error.begin = b"".join(held)
        raise
    return b"".join(held)


def _bounded(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    num_bytes = 0
    for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > limit:
            raise BodyTooLongError(f"the body decodes to more than {limit} bytes (limits.max_document_bytes)")
        yield piece


def _is_text(payload: bytes) -> bool:
    """Whether browsers take these bytes for text (MIME Sniffing standard, section 7.2)."""
    return payload.startswith(_TEXT_MARKS) or not _BINARY.search(payload[:_SNIFFED_BYTES])


class _Decoder(Protocol):
    """A decoder of one body: `feed` gives what bytes decode to, `eof` is true behind the last, `unused_data`
    is what was fed behind that."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Decompressor(Protocol):
    """What zlib's and zstandard's decoders of a stream have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _StreamDecoder:
    def __init__(self, decompressor: _Decompressor) -> None:
        self._decompressor = decompressor

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield self._decompressor.decompress(data)


class _BrotliDecoder:
    unused_data = b""  # more behind the last byte is an error

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = self._decoder.process(data, output_buffer_limit=_BROTLI_OUTPUT)
        while piece:
            yield piece
            piece = b"" if self.eof else self._decoder.process(b"", output_buffer_limit=_BROTLI_OUTPUT)


def _gzip(payload: bytes) -> Iterator[bytes]:
    return _decoded(lambda: _StreamDecoder(zlib.decompressobj(zlib.MAX_WBITS | 16)), payload)


def _deflate(payload: bytes) -> Iterator[bytes]:
    # RFC 9110 (section 8.4.1.2) means zlib's format; some servers send the bare one.
    begins_as_zlib = payload[:1] in _ZLIB_BEGINS and int.from_bytes(payload[:2], "big") % 31 == 0
    window = zlib.MAX_WBITS if begins_as_zlib else -zlib.MAX_WBITS
    return _decoded(lambda: _StreamDecoder(zlib.decompressobj(window)), payload)


def _brotli(payload: bytes) -> Iterator[bytes]:
    return _decoded(_BrotliDecoder, payload)


def _zstd(payload: bytes) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    return _decoded(lambda: _StreamDecoder(decompressor.decompressobj()), payload)


def _decoded(new_decoder: Callable[[], _Decoder], payload: bytes) -> Iterator[bytes]:
    decoder, num_given = new_decoder(), 0
    for at in range(0, len(payload), _SLICE):
        try:
            for piece in decoder.feed(payload[at : at + _SLICE]):
                num_given += len(piece)
                yield piece
        except _ERRORS as error:
            yield from _rest_before_damage(new_decoder(), payload, at, num_given)
            raise _BrokenError from error
        if decoder.eof:
            if decoder.unused_data or len(payload) > at + _SLICE:
                break
            return
    raise _BrokenError


def _rest_before_damage(decoder: _Decoder, payload: bytes, at: int, num_given: int) -> Iterator[bytes]:
    """What a payload, whose slice at `at` is damaged, decodes to behind the first `num_given` bytes and
    before the damage. A call that fails gives nothing of what it had decoded, so the bytes of that slice are
    fed one at a time."""
    slices = (payload[begin : begin + _SLICE] for begin in range(0, at, _SLICE))
    single = (payload[begin : begin + 1] for begin in range(at, len(payload)))
    with suppress(*_ERRORS):
        for data in chain(slices, single):
            for piece in decoder.feed(data):
                yield piece[num_given:]
                num_given = max(num_given - len(piece), 0)


def _dechunk(payload: bytes) -> Iterator[bytes]:
    """The chunks of RFC 9112, section 7.1, without their lengths, extensions and trailer. A first chunk that
    does not stand between line ends of HTTP is the first line of a text, such as "2024"."""
    at = 0
    while line := _CHUNK_LINE.match(payload, at):
        size = int(line[1], 16)
        # A length may name more bytes than a body can have, and than an index can count.
        end = min(line.end() + size, len(payload))
        if not size and at:
            return
        if not at and (line[2] != b"\r\n" or payload[end : end + 2] not in (b"\r\n", b"")):
            break
        yield payload[line.end() : end]
        at = end + (2 if payload[end : end + 2] == b"\r\n" else 1)
    if not at:
        yield payload


_CODINGS: Final = {
    "gzip": _Coding(_gzip, b"\x1f\x8b"),
    "x-gzip": _Coding(_gzip, b"\x1f\x8b"),
    "deflate": _Coding(_deflate),
    "br": _Coding(_brotli),
    "zstd": _Coding(_zstd, b"\x28\xb5\x2f\xfd"),
    "chunked": _Coding(_dechunk),
}
