"""Pages of a Parquet row group that their checksums refute, and what is read in their place.

Arrow stops at the first such page and has no way to go on behind it. So where it has stopped, the pages of
the row group are read once more and compared with their checksums, and a page of nulls (or zeros, where a
column has none), as many as it had rows, is laid over each refuted one: it has the very length of that one,
and its rows are never given out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from stages.reading.parquet.page_meter import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_CODED,
    DICTIONARY_PAGE,
    MAX_HEADER_BYTES,
    ColumnChunk,
    PageHeader,
)

_READ_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 4 << 10
_INDEX_PAGE: Final = 1
_PLAIN, _RLE, _DELTA_BINARY, _DELTA_LENGTH = 0, 3, 5, 6
"""Encodings (parquet.thrift, `Encoding`)."""
_VALUE_BYTES: Final = {"FLOAT": 4, "DOUBLE": 8, "INT96": 12}
_SHORTEST_HEADER, _LONGEST_HEADER = 7, 80
Head = Callable[[int, bool], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShape:
    """A column as far as a page of it depends on it: its path, the type that it is stored as, the bytes of a
    value where they are fixed, and the definition level of a value that is there (0: there is no null)."""

    path: str
    physical_type: str
    value_bytes: int
    max_definition_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedPage:
    """A page that its checksum refutes, or whose dictionary's does: the byte at which it begins, the rows of
    the row group that it holds (none: a dictionary), its column, and what is read over its first bytes."""

    start: int
    rows: range
    path: str
    instead: bytes


class NoPageInsteadError(ValueError):
    """It is not known which rows a refuted page holds, or no page of its length can stand for it."""


def damaged_pages(
    stream: BinaryIO, chunks: Sequence[ColumnChunk], shapes: Sequence[ColumnShape]
) -> Iterator[DamagedPage]:
    """The refuted pages of a row group's columns; NoPageInsteadError where one cannot be passed over,
    ThriftError or IndexError where pages cannot be told apart."""
    for chunk, shape in zip(chunks, shapes, strict=True):
        yield from _of_column(stream, chunk, shape)


def _of_column(stream: BinaryIO, chunk: ColumnChunk, shape: ColumnShape) -> Iterator[DamagedPage]:
    at, row, has_dictionary = chunk.start, 0, True
    while at < chunk.end:
        header = _header(stream, at)
        end = at + header.num_bytes + header.compressed
        is_whole = header.crc is None or _crc(stream, at + header.num_bytes, header.compressed) == header.crc
        if header.kind == DICTIONARY_PAGE and not is_whole:
            has_dictionary = False
            yield DamagedPage(start=at, rows=range(0), path=shape.path, instead=_passed_over(end - at))
        elif header.kind in (DATA_PAGE, DATA_PAGE_V2):
            if not is_whole or (header.encoding in DICTIONARY_CODED and not has_dictionary):
                if chunk.is_repeated:
                    raise NoPageInsteadError("the rows of a page of lists are not known")
                rows, instead = (
                    range(row, row + header.num_values),
                    _empty_page(end - at, header.num_values, shape),
                )
                yield DamagedPage(start=at, rows=rows, path=shape.path, instead=instead)
            row += header.num_values
        at = end


def _header(stream: BinaryIO, at: int) -> PageHeader:
    num_bytes = _HEAD_BYTES
    while True:
        stream.seek(at)
        data = stream.read(num_bytes)
        try:
            return PageHeader.parse(data)
        except IndexError:
            if len(data) < num_bytes or num_bytes > MAX_HEADER_BYTES:
                raise
            num_bytes *= 16


def _crc(stream: BinaryIO, at: int, num_bytes: int) -> int:
    """The CRC-32 of bytes of a page, as its header has it; IndexError where the file has fewer."""
    stream.seek(at)
    crc = 0
    while num_bytes:
        data = stream.read(min(num_bytes, _READ_BYTES))
        if not data:
            raise IndexError("a page that goes on behind the end of the file")
        crc, num_bytes = zlib.crc32(data, crc), num_bytes - len(data)
    return crc


def _passed_over(length: int) -> bytes:
    """The head of a page that readers pass over, `length` bytes with it."""
    return _fitted(length, lambda size, wider: b"\x15" + _zigzag(_INDEX_PAGE) + _sizes(size, wider) + b"\x00")


def _empty_page(length: int, num_rows: int, shape: ColumnShape) -> bytes:
    """The head of a page of so many nulls or zeros, `length` bytes with it, uncompressed (parquet.thrift,
    PageHeader and DataPageHeaderV2). What of the page lies behind is not looked at."""
    levels, num_nulls, encoding, values = b"", 0, _PLAIN, b""
    if shape.max_definition_level:
        level_bytes = (shape.max_definition_level.bit_length() + 7) // 8
        levels, num_nulls = _varint(num_rows << 1) + bytes(level_bytes), num_rows
    else:
        encoding, values = _zeros(num_rows, shape)
    counts = (num_rows, num_nulls, num_rows, encoding, len(levels), 0)
    of_kind = b"".join(b"\x15" + _zigzag(count) for count in counts) + b"\x12\x00"  # is_compressed: false

    def head(size: int, wider: bool) -> bytes:
        return b"\x15" + _zigzag(DATA_PAGE_V2) + _sizes(size, wider) + b"\x5c" + of_kind + b"\x00"

    header = _fitted(length, head)
    if len(header) + len(levels) + len(values) > length:
        raise NoPageInsteadError("it is too short")
    return header + levels + values


def _zeros(num: int, shape: ColumnShape) -> tuple[int, bytes]:
    """An encoding of so many zeros or empty texts that takes next to no bytes, if the type has one, and the
    bytes."""
    if shape.physical_type in ("INT32", "INT64", "BYTE_ARRAY"):
        # One block of one miniblock of numbers of no bits (Encodings.md, "Delta encoding").
        in_block = max(-(-(num - 1) // 128), 1) * 128
        packed = _varint(in_block) + _varint(1) + _varint(num) + b"\x00\x00\x00"
        return _DELTA_LENGTH if shape.physical_type == "BYTE_ARRAY" else _DELTA_BINARY, packed
    if shape.physical_type == "BOOLEAN":
        run = _varint(num << 1) + b"\x00"
        return _RLE, len(run).to_bytes(4, "little") + run
    return _PLAIN, bytes(num * _VALUE_BYTES.get(shape.physical_type, shape.value_bytes))


def _fitted(length: int, head: Head) -> bytes:
    """The head that says how many of `length` bytes lie behind it: its own length hangs on that number."""
    for wider in (False, True):
        for size in range(length - _SHORTEST_HEADER, max(length - _LONGEST_HEADER, -1), -1):
            found = head(size, wider)
            if len(found) + size == length:
                return found
    raise NoPageInsteadError("it is too short")


def _sizes(size: int, wider: bool) -> bytes:
    """The sizes of a page that is not compressed; one of them in a byte more than it needs, if `wider`."""
    number = _zigzag(size)
    padded = number[:-1] + bytes([number[-1] | 128, 0]) if wider else number
    return b"\x15" + number + b"\x15" + padded


def _zigzag(value: int) -> bytes:
    return _varint(value << 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
