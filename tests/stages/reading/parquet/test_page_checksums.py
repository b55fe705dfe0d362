"""Pages of Parquet files that their checksums refute: the rest of the row group is unreadable, all other rows
are what they were."""

from __future__ import annotations

import functools
import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.document import Document
from stages.reading.parquet.page_meter import DICTIONARY_PAGE, PageHeader
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


def check(data: bytes, damaged: bytes, first: int, stop: int) -> None:
    """`first`: the first row of the damaged page; `stop`: the end of its row group."""
    whole, found = undamaged(data), read(damaged)
    [bad] = [item for item in found if isinstance(item, Unreadable)]
    # Rows are decoded in batches of at most 64.
    assert max(first - 63, 0) <= bad.offset <= first and bad.offset + bad.length == stop
    assert bad.num_records == bad.length
    assert bad.error.startswith("a damaged row group: ") and "CRC checksum verification failed" in bad.error
    kept = [item for item in found if isinstance(item, Document)]
    lost = range(bad.offset, stop)
    assert kept == [item for item in whole if isinstance(item, Document) and item.place.offset not in lost]
    assert found.index(bad) == bad.offset


WAYS = [
    {"compression": compression, "data_page_version": version, "use_dictionary": use_dictionary}
    for compression in ("none", "snappy", "gzip", "zstd", "brotli", "lz4")
    for version in ("1.0", "2.0")
    for use_dictionary in (True, False)
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("column", ["text", "url", "n"])
def test_a_refuted_page_costs_the_rest_of_its_row_group(way: dict[str, Any], column: str) -> None:
    data = packed(**way)
    data_pages = [page for page in pages(data, column) if page[1].kind != DICTIONARY_PAGE]
    number = len(data_pages) // 2
    first = sum(header.num_values for _, header in data_pages[:number])
    check(data, flip(data, data_pages[number]), first, NUM)


def test_a_refuted_dictionary_costs_its_row_group() -> None:
    data = packed(row_group_size=500, dictionary_pagesize_limit=4000)
    first, *_ = pages(data, "text")
    assert first[1].kind == DICTIONARY_PAGE
    check(data, flip(data, first), 0, 500)


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
    data = packed(compression="none", use_dictionary=False, row_group_size=100)
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
        assert NUM - 100 <= len(good) < NUM
