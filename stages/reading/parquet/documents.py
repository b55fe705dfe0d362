"""Parquet files to documents, one a row, or one for each element of a list in it; offsets are row numbers.

Rows are decoded a few at a time, and how many is a matter of bytes: a PageMeter sees what the pages unfold
to, and where that is much the row group is begun again in smaller batches."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.document import Document, Place
from stages.reading.options import Border, InputCounts, ReadOptions, Unreadable, UnreadableError
from stages.reading.parquet.page_meter import ColumnChunk, PageMeter, TooLargeError
from stages.reading.parquet.thrift import CompactReader, Fields, ThriftError
from stages.reading.parquet.values import (
    BAD_DATA,
    plain_value,
    put_at,
    stored_as,
    value_at,
    weight_of,
    without_column,
)
from stages.reading.rows.elements import next_step
from stages.reading.rows.other_fields import BadRowError, Keys
from stages.reading.rows.row import (
    MAX_OTHER_BYTES,
    documents_from_row,
    item_at,
    items_of_row,
    keys_of,
    no_such_field,
)

_BATCH_ROWS: Final = (64, 8, 1)
_BATCH_BYTES: Final = 256 << 20
"""What a batch may unfold to; past it, smaller ones are made."""
_ROW_BYTES: Final = 512 << 20
"""What one row and the pages that hold it may unfold to. Writers put 1,024 rows into a page whatever their
length (Arrow's `write_batch_size`), so texts of 200 kB make pages of 200 MB."""
_BUFFER_BYTES: Final = 1 << 20
_OPEN: Final[dict[str, object]] = {
    "pre_buffer": False, "buffer_size": _BUFFER_BYTES, "page_checksum_verification": True,
}  # fmt: skip
_MAX_FOOTER_BYTES: Final = 16 << 20
_FOOTER_END: Final = 8
"""The footer's length and the magic, behind it."""
_MALLOC = re.compile(r"(?:malloc|realloc) of size (\d+) failed")


class _TornError(ValueError):
    """A file without the end that a Parquet file has."""


def read_parquet(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """The documents of each row, in order. Of a damaged row group, all rows from its first damaged batch on are
    unreadable: Arrow cannot go on behind a page that is damaged, or that its checksum refutes."""
    meter = PageMeter(stream)
    try:
        places = _row_groups(stream)
        # Pages are streamed: neither a row group nor the file is ever held as a whole.
        file = _open(meter)
        error = _unfit(file.schema_arrow, options)
        num_rows = file.metadata.num_rows
    except (*BAD_DATA, IndexError) as broken:
        _raise_if_not_damage(broken, meter)
        yield Unreadable(
            file=options.file,
            offset=0,
            length=0,
            error=f"not a whole Parquet file: {str(broken)[:200]}",
            num_bytes=options.size,
            breaks_off=isinstance(broken, _TornError),
        )
        return
    counts.end, counts.by_row = num_rows, True
    if error is not None:
        yield Unreadable(
            file=options.file, offset=0, length=num_rows, error=error, num_records=num_rows or None
        )
        return
    yield from _Rows(file, places, meter, options, counts).read()


def parquet_lacks(stream: BinaryIO, options: ReadOptions) -> str | None:
    """Why a file's columns hold no documents, by its footer alone; None where they may, and where it is no whole
    file, as its reading says."""
    meter = PageMeter(stream)
    try:
        _row_groups(stream)
        return _unfit(_open(meter).schema_arrow, options)
    except (*BAD_DATA, IndexError) as broken:
        _raise_if_not_damage(broken, meter)
        return None


def read_parquet_at(
    stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None
) -> Document | Unreadable:
    """The document of the row with the number `offset`, of several elements that of `doc_id`, else the first;
    ValueError if there is none."""
    found = item_at(read_parquet(stream, options, InputCounts()), offset, doc_id)
    if found is None:
        raise ValueError(f"{options.file}: there is no row {offset} with a document")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group: its first byte in the file, its bytes as they lie, the number of its first row, its rows."""

    start: int
    num_bytes: int
    first_row: int
    num_rows: int


def row_groups(stream: BinaryIO) -> list[RowGroup]:
    """The row groups of a file, as its footer has them. UnreadableError if it has no whole one."""
    meter = PageMeter(stream)
    try:
        places = _row_groups(stream)
        metadata = _open(meter).metadata
        num_rows = [metadata.row_group(number).num_rows for number in range(len(places))]
        return [
            RowGroup(
                start=min((place.start for place in group), default=0),
                num_bytes=sum(place.end - place.start for place in group),
                first_row=first,
                num_rows=num,
            )
            for group, num, first in zip(places, num_rows, accumulate(num_rows, initial=0), strict=False)
        ]
    except (*BAD_DATA, IndexError) as broken:
        _raise_if_not_damage(broken, meter)
        raise UnreadableError(f"not a whole Parquet file: {str(broken)[:200]}") from broken


def _row_groups(stream: BinaryIO) -> list[list[ColumnPlace]]:
    """Where the columns of each row group lie, read from the footer itself: asked for a chunk whose metadata
    are damaged, pyarrow 26 ends the process (a C++ exception where none is expected).

    ValueError if there is no whole footer, or one that is out of all proportion: it is held as a whole, and
    takes many times its length."""
    length = stream.seek(0, 2)
    stream.seek(max(length - _FOOTER_END, 0))
    end = stream.read(_FOOTER_END)
    if len(end) < _FOOTER_END or end[4:] != b"PAR1":
        raise _TornError("it does not end as a Parquet file does")
    num_bytes = int.from_bytes(end[:4], "little")
    if num_bytes > _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer has {num_bytes} bytes: expected at most {_MAX_FOOTER_BYTES}")
    if num_bytes > length - _FOOTER_END:
        raise ValueError(f"its footer has {num_bytes} bytes, more than the file")
    stream.seek(length - _FOOTER_END - num_bytes)
    footer = CompactReader(stream.read(num_bytes), most_bytes=_MAX_FOOTER_BYTES, keeps_lists=True).struct()
    stream.seek(0)
    return [[_place_of(column) for column in _structs(group, 1)] for group in _structs(footer, 4)]


def _structs(fields: Fields, number: int) -> list[Fields]:
    """A list of structs (parquet.thrift: FileMetaData.row_groups is 4, RowGroup.columns is 1)."""
    found = fields.get(number, [])
    if not isinstance(found, list):
        raise ThriftError(f"the field {number} of its footer is no list")
    return found


def _place_of(column: Fields) -> ColumnPlace:
    """A column chunk as its metadata have it (parquet.thrift, ColumnChunk.meta_data is 3)."""
    meta = column.get(3)
    if not isinstance(meta, dict):
        raise ThriftError("a column chunk without metadata")
    size, data_page, dictionary_page = (meta.get(number, 0) for number in (7, 9, 11))
    if not (isinstance(size, int) and isinstance(data_page, int) and isinstance(dictionary_page, int)):
        raise ThriftError("a column chunk whose place is no number")
    if min(size, data_page) < 0:
        raise ThriftError("a column chunk with a negative place")
    start = dictionary_page if 0 < dictionary_page < data_page else data_page
    return ColumnPlace(start=start, end=start + size)


def _open(meter: PageMeter) -> pq.ParquetFile:
    file = pq.ParquetFile(meter, **_OPEN)
    columns = map(file.schema.column, range(len(file.schema)))
    repeated = [c.path for c in columns if c.max_repetition_level and c.physical_type == "BYTE_ARRAY"]
    if not repeated:
        return file
    # A row may repeat the longest text of a dictionary a million times: as numbers they are small.
    return pq.ParquetFile(meter, metadata=file.metadata, read_dictionary=repeated, **_OPEN)


def _raise_if_not_damage(error: BaseException, meter: PageMeter) -> None:
    """What is no fault of the file: the stream failed, or this process has too little memory."""
    if meter.failure is not None:
        raise meter.failure
    if isinstance(error, MemoryError):
        wanted = _MALLOC.search(str(error))
        if wanted is None or int(wanted[1]) <= _ROW_BYTES:
            raise error


def _unfit(schema: pa.Schema, options: ReadOptions) -> str | None:
    """Why no row of a file can be a document."""
    fields, names = options.fields, schema.names
    for key, name in keys_of(fields).items():
        if name is not None and _path(schema, name) is None:
            return no_such_field("column", name, key, names)
    # Also one that no key names: a document's metadata hold one value of a name, and would lose the others.
    for name, num in Counter(names).items():
        if num > 1:
            return f"there are {num} columns {name[:100]!r}: which of them is meant is not defined"
    path = _path(schema, fields.text)
    kind = None if path is None else path.kind
    if kind is not None and pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind is not None and (pa.types.is_null(kind) or any(test(kind) for test in _TEXT_TYPES)):
        return None
    return (
        f"the column {fields.text!r} is of type {kind}: expected string or binary"
        f" (source.text_field names the column)"
    )


_TEXT_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_LIST_TYPES: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


@dataclass(frozen=True, slots=True)
class _Path:
    """The way to a column: its keys up to the first list that the name goes into, how many lists lie in one
    another there, the parts of the name behind them, and the type that the whole name leads to."""

    keys: Keys
    num_lists: int
    further: Keys
    kind: pa.DataType


def _path(schema: pa.Schema, name: str) -> _Path | None:
    """Where a name leads in a schema; None where to nothing."""
    parts: Keys = (name,) if name in schema.names else tuple(name.split("."))
    keys: Keys = ()
    lists: tuple[Keys, int, Keys] | None = None
    fields = dict(zip(schema.names, schema.types, strict=True))
    kind: pa.DataType = None
    while parts:
        step = next_step(parts, fields)
        if step is None:
            return None
        key, num_lists, parts = step
        kind, keys = _stored(fields[key]), (*keys, key)
        if num_lists and lists is None:
            lists = keys, num_lists, parts
        for _ in range(num_lists):
            if not any(test(kind) for test in _LIST_TYPES):
                return None
            kind = _stored(kind.value_type)
        fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    return _Path(keys, 0, (), kind) if lists is None else _Path(*lists, kind)


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type that an extension type (JSON, say) is stored as; any other as it is."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlace:
    """Where the pages of a column chunk lie, bytes [start, end) of the file."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """The texts of a batch, or the lists that they lie in, the columns without them, and whether those are so
    large that one row may be too large."""

    texts: pa.Array
    rest: dict[str, pa.Array]
    are_large: bool


class _Rows:
    """The rows of an open file, group by group. `_sizes` are the sizes of batches that are still tried in a
    row group."""

    def __init__(
        self,
        file: pq.ParquetFile,
        places: list[list[ColumnPlace]],
        meter: PageMeter,
        options: ReadOptions,
        counts: InputCounts,
    ) -> None:
        self._file, self._places, self._meter, self._options, self._counts = (
            file,
            places,
            meter,
            options,
            counts,
        )
        path = _path(file.schema_arrow, options.fields.text)
        assert path is not None, "_unfit has seen to it"
        self._path = path
        self._sizes: tuple[int, ...] = _BATCH_ROWS
        # A footer may put its row groups anywhere; spans need them in the order in which they are read.
        last = max((options.size or 0) - 1, 0)
        starts = (min((place.start for place in group), default=0) for group in places)
        self._starts = list(accumulate((min(start, last) for start in starts), max))

    def read(self) -> Iterator[Document | Unreadable]:
        """All rows, in order, or those of the span."""
        first, groups = 0, self._groups()
        for group in range(self._file.num_row_groups):
            num_rows = self._file.metadata.row_group(group).num_rows
            if group in groups:
                yield from self._read_group(group, range(first, first + num_rows))
            first += num_rows
        if self._options.span is not None:
            self._counts.ended = self._border(groups.stop)

    def _groups(self) -> range:
        """The row groups to read: of a span those whose first byte lies in it."""
        span = self._options.span
        if span is None:
            return range(self._file.num_row_groups)
        begin = span.begin if span.start is None else span.start.position
        first, stop = (bisect_left(self._starts, position) for position in (begin, span.end))
        self._counts.began = self._border(first)
        return range(first, max(first, stop))

    def _border(self, group: int) -> Border:
        """The border before a row group, or behind the last."""
        starts = self._starts
        position = starts[group] if group < len(starts) else self._options.size or 0
        return Border(position)

    def _read_group(self, group: int, numbers: range) -> Iterator[Document | Unreadable]:
        number, self._sizes = numbers.start, _BATCH_ROWS
        batches = self._batches(group)
        while number < numbers.stop:
            try:
                batch = next(batches)
                columns = self._columns(batch)
            except TooLargeError as error:
                if len(self._sizes) == 1:
                    message = (
                        f"a row with its pages would take more than {_ROW_BYTES >> 20} MiB of memory: {error}"
                    )
                    yield self._unreadable(number, numbers.stop, message)
                    return
                # The rest of the row group too: what unfolds once does so again. (Of the file, what is read of a
                # damaged group would depend on the groups before it, which another worker may read.)
                self._sizes = self._sizes[1:]
                batches = self._batches(group, skip=number - numbers.start)
                continue
            except (*BAD_DATA, StopIteration) as broken:
                _raise_if_not_damage(broken, self._meter)
                yield self._unreadable(number, numbers.stop, f"a damaged row group: {str(broken)[:200]}")
                return
            for row in range(batch.num_rows):
                yield from self._read_row(columns, row, number + row)
            number += batch.num_rows

    def _batches(self, group: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """The batches of a row group, in the size that is tried now, without the first `skip` rows."""
        num_rows = self._sizes[0]
        limit = _ROW_BYTES if len(self._sizes) == 1 else _BATCH_BYTES
        self._meter.watch(_chunks(self._file, self._places[group]), num_rows, limit)
        # In one thread: more of them would only wait for each other over so few rows.
        for batch in self._file.iter_batches(batch_size=num_rows, row_groups=[group], use_threads=False):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
            else:
                yield batch.slice(skip)
                skip = 0
            self._meter.next_batch()

    def _unreadable(self, start: int, stop: int, error: str) -> Unreadable:
        num_rows = stop - start
        return Unreadable(
            file=self._options.file, offset=start, length=num_rows, error=error, num_records=num_rows
        )

    def _columns(self, batch: pa.RecordBatch) -> _Columns:
        """The columns of a batch; one of BAD_DATA where its numbers point out of a dictionary."""
        first, *further = self._path.keys
        texts = batch.column(batch.schema.names.index(first))
        rest = dict(zip(batch.schema.names, batch.columns, strict=True))
        if further:
            rest[first] = without_column(stored_as(texts), tuple(further))
            for key in further:
                texts = pc.struct_field(stored_as(texts), [key])
        else:
            del rest[first]
        return _Columns(stored_as(texts), rest, sum(map(weight_of, rest.values())) > MAX_OTHER_BYTES)

    def _read_row(self, batch: _Columns, index: int, number: int) -> Iterable[Document | Unreadable]:
        place = Place(file=self._options.file, offset=number, length=1)
        return items_of_row(partial(self._documents, batch, index, number, place), place, self._counts, 1)

    def _documents(
        self, batch: _Columns, index: int, number: int, place: Place
    ) -> Iterable[Document | UnreadableError]:
        weight = (
            sum(weight_of(column.slice(index, 1)) for column in batch.rest.values()) if batch.are_large else 0
        )
        if weight > MAX_OTHER_BYTES:
            raise BadRowError(f"its other fields take {weight} bytes: expected at most {MAX_OTHER_BYTES}")
        path, longest = self._path, self._options.max_document_bytes
        try:
            row = {name: plain_value(column[index]) for name, column in batch.rest.items()}
            put_at(row, path.keys, value_at(batch.texts, index, path.num_lists, path.further, longest))
        except BAD_DATA as error:
            raise BadRowError(f"a value that cannot be read: {type(error).__name__}") from error
        return documents_from_row(row, number, place, self._options, self._counts)


def _chunks(file: pq.ParquetFile, places: list[ColumnPlace]) -> list[ColumnChunk]:
    """The column chunks of a row group, for the meter."""
    if len(places) != len(file.schema):
        raise ThriftError(f"a row group of {len(places)} columns, where the schema has {len(file.schema)}")
    columns = map(file.schema.column, range(len(file.schema)))
    return [
        ColumnChunk(
            start=place.start,
            end=place.end,
            is_repeated=column.max_repetition_level > 0,
            value_bytes=max(column.length, 0) if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0,
        )
        for place, column in zip(places, columns, strict=True)
    ]
