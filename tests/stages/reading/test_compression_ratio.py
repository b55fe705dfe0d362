"""What a file unfolds to is bounded by its own size: a small file never fills a disk."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.document import Document
from stages.reading import reader
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.reader import read_documents

pytestmark = pytest.mark.hostile("stages/reading")

TEXT = "The keeper of the harbour wrote that it was quiet. " * 200


def parquet(num_rows: int) -> tuple[str, bytes]:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": [TEXT] * num_rows}), file)
    return "a.parquet", file.getvalue()


def jsonl(num_rows: int) -> tuple[str, bytes]:
    return "a.jsonl.gz", gzip.compress((json.dumps({"text": TEXT}) + "\n").encode() * num_rows)


def read(made: tuple[str, bytes], **options: int | None) -> tuple[int, list[Unreadable], InputCounts]:
    name, data = made
    counts = InputCounts()
    given = ReadOptions(**({"source": "s", "file": name, "size": len(data)} | options))
    items = list(read_documents(io.BytesIO(data), given, counts))
    stretches = [item for item in items if isinstance(item, Unreadable)]
    return sum(isinstance(item, Document) for item in items), stretches, counts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ALWAYS_UNFOLDED_BYTES", 10 * len(TEXT))


@pytest.mark.parametrize("make", [parquet, jsonl])
def test_a_file_that_unfolds_to_too_much_is_not_read_on(make: Callable[[int], tuple[str, bytes]]) -> None:
    made = make(2_000)
    size = len(made[1])
    ratio = 100 * len(TEXT) // size + 1
    most = size * ratio // len(TEXT)
    assert 100 <= most < 1_999
    num_documents, (stretch,), counts = read(made, max_compression_ratio=ratio)
    assert num_documents == counts.num_documents == most
    assert f"its {size} bytes unfold to documents of more than {size * ratio} bytes" in stretch.error
    assert f"limits.max_compression_ratio = {ratio}" in stretch.error
    assert (
        read(made, max_compression_ratio=10**6)[:2]
        == read(made, size=None, max_compression_ratio=1)[:2]
        == (2_000, [])
    )


def test_the_rows_that_are_not_read_are_counted() -> None:
    num_documents, (stretch,), _ = read(parquet(2_000), max_compression_ratio=1)
    num_left = 2_000 - num_documents
    assert num_documents == 10
    assert (stretch.offset, stretch.length, stretch.num_records) == (num_documents, num_left, num_left)


def test_a_small_file_may_unfold_to_so_much_whatever_its_size() -> None:
    assert read(parquet(10), max_compression_ratio=1)[:2] == (10, [])
    assert read(parquet(11), max_compression_ratio=1)[0] == 10
