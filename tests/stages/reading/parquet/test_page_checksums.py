"""Pages of Parquet files that their checksums refute: their rows are unreadable, all others are what they
were."""

from __future__ import annotations

import functools
import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.document import Document
from stages.reading.parquet.page_damage import ColumnShape, damaged_pages
from stages.reading.parquet.page_meter import DICTIONARY_PAGE, ColumnChunk, PageHeader
from stages.reading.reader import ReadOptions, Unreadable, read_documents

pytestmark = pytest.mark.hostile("stages/reading")

NUM = 1000
COLUMNS = {
    "text": [f"text number {n} " * 3 for n in range(NUM)],
    "id": [f"id-{n}" for n in range(NUM)],
    "url": [f"https://e.org/{n % 40}" for n in range(NUM)],
    "date": ["2026-01-02"] * NUM,
    "n": list(range(NUM)),
    "score": [n / 3 for n in range(NUM)],
    "flag": [n % 3 == 0 for n in range(NUM)],
}


@functools.cache
def packed(*, nullable: bool = True, **options: Any) -> bytes:
    table = pa.table(COLUMNS)
    if not nullable:
        table = table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))
    sink = io.BytesIO()
    pq.write_table(
        table, sink, **{"write_page_checksum": True, "data_page_size": 2000, "write_batch_size": 50} | options
    )
    return sink.getvalue()


def read(data: bytes) -> list[Document | Unreadable]:
    return list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.parquet")))


undamaged = functools.cache(read)


def pages(data: bytes, column: str) -> list[tuple[int, PageHeader]]:
    """The pages of a column in the first row group: where each begins, and its header."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    meta = group.column([group.column(n).path_in_schema for n in range(group.num_columns)].index(column))
    at = min(meta.data_page_offset, meta.dictionary_page_offset or meta.data_page_offset)
    end, found = at + meta.total_compressed_size, []
    while at < end:
        header = PageHeader.parse(data[at:])
        found.append((at, header))
        at += header.num_bytes + header.compressed
    return found


def flip(data: bytes, page: tuple[int, PageHeader]) -> bytes:
    at, header = page
    place = at + header.num_bytes + header.compressed // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def check(data: bytes, damaged: bytes, lost: set[int], column: str) -> None:
    whole, found = undamaged(data), read(damaged)
    kept = [item for item in found if isinstance(item, Document)]
    assert kept == [item for item in whole if isinstance(item, Document) and item.place.offset not in lost]
    bad = [item for item in found if isinstance(item, Unreadable)]
    assert {row for item in bad for row in range(item.offset, item.offset + item.length)} == lost
    assert all(item.error == f"the checksum of a page of the column '{column}' refutes it" for item in bad)
    assert sum(item.num_records or 0 for item in bad) == len(lost)
    places = [item.place.offset if isinstance(item, Document) else item.offset for item in found]
    assert places == sorted(places)


WAYS = [
    {"compression": compression, "data_page_version": version, "use_dictionary": use_dictionary}
    for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4")
    for version in ("1.0", "2.0")
    for use_dictionary in (True, False)
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("column", ["text", "url", "n"])
def test_a_refuted_page_costs_its_own_rows(way: dict[str, Any], column: str) -> None:
    data = packed(**way)
    data_pages = [page for page in pages(data, column) if page[1].kind != DICTIONARY_PAGE]
    number = len(data_pages) // 2
    first = sum(header.num_values for _, header in data_pages[:number])
    lost = set(range(first, first + data_pages[number][1].num_values))
    check(data, flip(data, data_pages[number]), lost, column)


@pytest.mark.parametrize("column", ["id", "date", "n", "flag", "text"])
def test_so_it_does_where_the_column_has_no_nulls(column: str) -> None:
    data = packed(nullable=False, use_dictionary=False)
    data_pages = pages(data, column)
    lost = set(range(data_pages[0][1].num_values))
    check(data, flip(data, data_pages[0]), lost, column)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_refuted_dictionary_costs_the_pages_that_use_it(version: str) -> None:
    data = packed(data_page_version=version, dictionary_pagesize_limit=4000)
    first, *others = pages(data, "text")
    assert first[1].kind == DICTIONARY_PAGE
    coded = [header.num_values for _, header in others if header.encoding in (2, 8)]
    assert 0 < sum(coded) < NUM
    check(data, flip(data, first), set(range(sum(coded))), "text")


def test_pages_refuted_in_several_columns_and_row_groups_are_stretches_that_do_not_meet() -> None:
    data = packed(row_group_size=500)
    damaged = data
    lost: set[int] = set()
    for column in ("text", "id", "n"):
        at, header = pages(data, column)[-1]
        damaged = flip(damaged, (at, header))
        lost |= set(range(500 - header.num_values, 500))
    found = read(damaged)
    bad = [item for item in found if isinstance(item, Unreadable)]
    rows = [row for item in bad for row in range(item.offset, item.offset + item.length)]
    assert len(rows) == len(set(rows)) and set(rows) == lost
    assert len(found) - len(bad) == NUM - len(lost)


def test_a_refuted_page_of_lists_costs_the_rest_of_its_row_group() -> None:
    sink = io.BytesIO()
    table = pa.table({"text": ["a"] * 2000, "tags": [[str(n), "b"] for n in range(2000)]})
    pq.write_table(
        table, sink, write_page_checksum=True, row_group_size=1000, data_page_size=500, write_batch_size=50
    )
    data = sink.getvalue()
    page = pages(data, "tags.list.element")[-1]
    *kept, last_of_group = read(flip(data, page))[:-1000]
    assert isinstance(last_of_group, Unreadable)
    assert len(kept) == last_of_group.offset and last_of_group.offset + last_of_group.length == 1000
    assert "CRC checksum verification failed" in last_of_group.error


def test_flips_anywhere_in_checked_pages_never_change_a_document() -> None:
    data = packed(compression="none", use_dictionary=False)
    whole = {item.place.offset: item for item in read(data) if isinstance(item, Document)}
    all_pages = [page for column in COLUMNS for page in pages(data, column)]
    chosen = random.Random(7)
    for _ in range(25):
        at, header = chosen.choice(all_pages)
        place = at + header.num_bytes + chosen.randrange(header.compressed)
        damaged = data[:place] + bytes([data[place] ^ (1 << chosen.randrange(8))]) + data[place + 1 :]
        found = read(damaged)
        good = [item for item in found if isinstance(item, Document)]
        assert all(item == whole[item.place.offset] for item in good)
        assert len(good) == NUM - header.num_values


def test_what_stands_in_for_a_page_has_its_length() -> None:
    for nullable, levels in ((True, 1), (False, 0)):
        data = packed(nullable=nullable, use_dictionary=False)
        for column, kind in (("text", "BYTE_ARRAY"), ("n", "INT64")):
            for at, header in pages(data, column):
                end = at + header.num_bytes + header.compressed
                chunk = ColumnChunk(start=at, end=end, is_repeated=False)
                shape = ColumnShape(path="x", physical_type=kind, value_bytes=0, max_definition_level=levels)
                (page,) = damaged_pages(io.BytesIO(flip(data, (at, header))), [chunk], [shape])
                found = PageHeader.parse(page.instead)
                assert found.num_bytes + found.compressed == end - at
                assert found.num_values == header.num_values
