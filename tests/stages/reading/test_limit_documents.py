"""The first documents of a file: those that reading all of it gives first, and counts of nothing behind
them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.document import Document
from stages.reading.options import InputCounts, ReadOptions, RowFields, Unreadable
from stages.reading.reader import read_documents
from tests.support.inputs.tiny_crawl import make_tiny_crawl


def read(
    data: bytes, file: str, limit: int | None, text: str = "text"
) -> tuple[list[Document | Unreadable], InputCounts]:
    options = ReadOptions(
        source="web", file=file, size=len(data), limit_documents=limit, fields=RowFields(text=text)
    )
    counts = InputCounts()
    return list(read_documents(io.BytesIO(data), options, counts)), counts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("files")
    make_tiny_crawl(folder)
    lines = b"".join(
        b"no JSON\n" if n % 3 == 1 else json.dumps({"text": f"text {n}"}).encode() + b"\n" for n in range(12)
    )
    rows = pa.table({"text": [f"row {n}" for n in range(300)]})
    pq.write_table(rows, folder / "rows.parquet", row_group_size=70)
    return {
        "web-0.warc.gz": next(folder.glob("web-*.warc.gz")).read_bytes(),
        "lines.jsonl": lines,
        "rows.parquet": (folder / "rows.parquet").read_bytes(),
    }


@pytest.mark.parametrize("file", ["web-0.warc.gz", "lines.jsonl", "rows.parquet"])
@pytest.mark.parametrize("limit", [1, 2, 5, 8])
def test_the_first_documents_are_those_of_the_whole_file_and_the_counts_end_with_them(
    files: dict[str, bytes], file: str, limit: int
) -> None:
    whole, _ = read(files[file], file, None)
    some, counts = read(files[file], file, limit)
    last = [number for number, item in enumerate(whole) if isinstance(item, Document)][limit - 1]
    assert some == whole[: last + 1]
    assert counts.num_documents == limit
    assert counts.num_unreadable == sum(isinstance(item, Unreadable) for item in some)
    assert limit <= counts.num_records == sum(counts.by_type.values())


def test_records_behind_the_last_document_are_not_counted(files: dict[str, bytes]) -> None:
    _, whole = read(files["web-0.warc.gz"], "web-0.warc.gz", None)
    _, some = read(files["web-0.warc.gz"], "web-0.warc.gz", 2)
    assert some.num_records < whole.num_records


@pytest.mark.parametrize("file", ["web-0.warc.gz", "lines.jsonl", "rows.parquet"])
def test_a_limit_that_no_file_reaches_changes_nothing(files: dict[str, bytes], file: str) -> None:
    whole, counts = read(files[file], file, None)
    assert read(files[file], file, 10_000) == (whole, counts)


def test_each_element_of_a_row_is_a_document_and_counts_as_one() -> None:
    line = json.dumps({"files": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}).encode() + b"\n"
    some, counts = read(line * 2, "repos.jsonl", 4, text="files[].content")
    assert [item.text for item in some if isinstance(item, Document)] == ["a", "b", "c", "a"]
    assert counts.num_documents == 4
