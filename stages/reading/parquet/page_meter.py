"""What a Parquet file's pages unfold to, seen before they are decoded: a stream that reads page headers as
they pass.

A page of a few kilobytes may unfold to gigabytes (a codec, a dictionary whose one value stands in every row,
runs of nulls), and Arrow decodes what it is given. It reads the chunk of each column from front to back, so
the header of a page goes by here before Arrow decodes the page: its sizes are added up, and past a limit the
read is refused. The file is read no second time."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, Final

from stages.reading.parquet.thrift import CompactReader, ThriftError

MAX_HEADER_BYTES: Final = 16 << 20
"""As in Arrow (`kDefaultMaxPageHeaderSize`)."""
_MAX_BYTES_READ: Final = 100_000
"""Of a header, one by one; texts in it are passed over at once. A real one has a few dozen."""
DICTIONARY_PAGE: Final = 2
"""A kind of page (parquet.thrift, `PageType`)."""
DICTIONARY_CODED: Final = (2, 8)
_DELTA_BYTE_ARRAY: Final = 7
"""Encodings (parquet.thrift, `Encoding`) whose values are longer than what they take in a page."""
_LEVEL_BYTES: Final = 8
_REPEATED_BYTES: Final = 16
"""What a value takes besides its own bytes: levels, lengths, offsets. In a run it takes nothing in the
page."""


class PageHeaderError(ThriftError):
    """The bytes where a page begins are not the header of a page, or the chunks of two columns overlap."""


class TooLargeError(MemoryError):
    """What the next batch of rows unfolds to is more than is held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """Where the pages of one column lie in the file, whether a row may have many values of it, and the bytes
    of a value where they are fixed (else 0)."""

    start: int
    end: int
    is_repeated: bool
    value_bytes: int = 0


@dataclass(slots=True)
class _Column:
    """A chunk on its way: where its next page begins, and what is held of it."""

    chunk: ColumnChunk
    next_page: int
    head: bytes = b""
    dictionary: int = 0
    page: int = 0
    opened: int = 0
    largest: int = 0
    cell: int = 0
    counted: int = 0
    """What it has in the sum over all columns."""

    def held(self) -> int:
        """Bytes of the dictionary (as a page, and as values) and of the page that is being decoded."""
        return 2 * self.dictionary + self.page

    def of_batch(self, num_rows: int) -> int:
        """The most bytes that this column's values in a batch of `num_rows` can take."""
        if self.chunk.is_repeated:
            return self.opened + num_rows * self.cell
        # A row has one value: no more than as many of the largest page as there are rows.
        return min(self.opened, num_rows * self.largest) + num_rows * self.cell


class PageMeter(io.RawIOBase):
    """A seekable stream for Arrow to read. `limit` is how many bytes the pages and values of a batch of
    `num_rows` may unfold to; TooLargeError from `read` before they do."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self.failure: Exception | None = None
        """What the stream itself raised: Arrow's errors look the same for it and for damage."""
        self._columns: list[_Column] = []
        self._starts: list[int] = []
        self._num_rows, self._limit, self._total = 1, 0, 0

    def watch(self, chunks: Sequence[ColumnChunk], num_rows: int, limit: int) -> None:
        """Begin to read a row group with these chunks, in batches of `num_rows`. PageHeaderError if two
        overlap: then one page would be held once for each."""
        ordered = sorted(chunks, key=lambda chunk: chunk.start)
        if any(before.end > behind.start for before, behind in pairwise(ordered)):
            raise PageHeaderError("the chunks of two columns overlap")
        self._columns = [_Column(chunk, chunk.start) for chunk in ordered]
        self._starts = [chunk.start for chunk in ordered]
        self._num_rows, self._limit, self._total = num_rows, limit, 0

    def next_batch(self) -> None:
        """The batch before is released: of each column only the page that is being decoded is still held."""
        for column in self._columns:
            column.opened = column.largest = column.page
            self._count(column)

    def _count(self, column: _Column) -> None:
        """Bring the sum over all columns up to date with one: they may be thousands, each with its pages."""
        counted = column.held() + column.of_batch(self._num_rows)
        self._total += counted - column.counted
        column.counted = counted

    def read(self, size: int = -1, /) -> bytes:
        try:
            at = self._stream.tell()
            data = self._stream.read(size)
        except Exception as error:
            self.failure = error
            raise
        number = bisect_right(self._starts, at) - 1
        if number >= 0 and at < self._columns[number].chunk.end:
            self._pass(self._columns[number], at, data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _pass(self, column: _Column, at: int, data: bytes) -> None:
        """Take in the page headers among `data`, which stand at byte `at` of the file."""
        end = at + len(data)
        expected = column.next_page + len(column.head)
        if at > expected:
            raise PageHeaderError(f"bytes {expected} to {at} of a column were passed over")
        while column.next_page < min(end, column.chunk.end):
            # A view: of many small pages, each would copy all that lie behind it.
            head = memoryview(data)[column.next_page + len(column.head) - at :]
            if column.head:
                head = memoryview(column.head + head)
            try:
                header = PageHeader.parse(head)
            except IndexError:
                if len(head) > MAX_HEADER_BYTES:
                    raise PageHeaderError(f"a page header of more than {MAX_HEADER_BYTES} bytes") from None
                column.head = bytes(head)
                return
            column.head = b""
            column.next_page += header.num_bytes + header.compressed
            self._open(column, header)

    def _open(self, column: _Column, header: PageHeader) -> None:
        num_bytes = header.compressed + header.uncompressed
        if header.kind == DICTIONARY_PAGE:
            column.dictionary = num_bytes + _LEVEL_BYTES * header.num_values
        else:
            self._open_data(column, header, num_bytes)
        self._count(column)
        if self._total > self._limit:
            raise TooLargeError(f"a batch of {self._num_rows} rows unfolds to {self._total} bytes or more")

    def _open_data(self, column: _Column, header: PageHeader, num_bytes: int) -> None:
        chunk = column.chunk
        column.page = num_bytes + header.num_values * (_REPEATED_BYTES if chunk.is_repeated else _LEVEL_BYTES)
        if chunk.is_repeated and header.encoding in DICTIONARY_CODED:
            column.page += header.num_values * chunk.value_bytes  # texts stay numbers: `read_dictionary`
        elif chunk.is_repeated and header.encoding == _DELTA_BYTE_ARRAY:
            column.page += header.num_values * header.uncompressed
        elif header.encoding in DICTIONARY_CODED:
            column.cell = max(column.cell, column.dictionary)
        elif header.encoding == _DELTA_BYTE_ARRAY:
            column.cell = max(column.cell, header.uncompressed)
        column.opened += column.page
        column.largest = max(column.largest, column.page)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHeader:
    """A page's kind, sizes in bytes, number of values and encoding, and the bytes of the header itself."""

    num_bytes: int
    kind: int
    uncompressed: int
    compressed: int
    num_values: int
    encoding: int

    @classmethod
    def parse(cls, data: bytes | memoryview) -> PageHeader:
        """The header that `data` begins with, in Thrift's compact protocol; IndexError if it goes on behind
        them, PageHeaderError if it is none."""
        reader = CompactReader(data, most_bytes=_MAX_BYTES_READ)
        fields = reader.struct()
        kind, uncompressed, compressed = (fields.get(number) for number in (1, 2, 3))
        of_kind = fields.get({0: 5, 2: 7, 3: 8}.get(kind, 0), {}) if isinstance(kind, int) else {}
        if not (isinstance(kind, int) and isinstance(uncompressed, int) and isinstance(compressed, int)):
            raise PageHeaderError("a page header without kind or sizes")
        # (num_values, encoding): the first two fields of a data page and of a dictionary; the first and
        # fourth of V2.
        places = (1, 4) if kind == 3 else (1, 2)
        num_values, encoding = (of_kind.get(place, 0) if isinstance(of_kind, dict) else 0 for place in places)
        if not isinstance(num_values, int) or not isinstance(encoding, int):
            raise PageHeaderError("a page header whose counts are no numbers")
        if min(uncompressed, compressed, num_values) < 0:
            raise PageHeaderError("a page header with a negative size")
        return cls(
            num_bytes=reader.at,
            kind=kind,
            uncompressed=uncompressed,
            compressed=compressed,
            num_values=num_values,
            encoding=encoding,
        )
