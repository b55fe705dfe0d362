"""Rows of JSONL and Parquet files as documents."""

from __future__ import annotations

import io
import json
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage import ids
from stages.document import Document
from stages.reading.reader import ReadOptions, detect_format, read_documents, read_one

ROW = {"text": "Żółw.", "id": "x1", "url": "https://example.org/", "date": "2026-01-02T03:04:05+01:00", "score": 2.5}


def jsonl(data: bytes, **options: object) -> list[Document]:
    items = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="f.jsonl", **options)))  # type: ignore[arg-type]
    return [item for item in items if isinstance(item, Document)]


def test_a_row_keeps_its_text_id_url_date_and_other_fields() -> None:
    (document,) = jsonl(json.dumps(ROW).encode())
    assert (document.text, document.record_id, document.url) == ("Żółw.", "x1", "https://example.org/")
    assert document.captured_at == "2026-01-02T02:04:05Z"
    assert json.loads(document.metadata or "") == {"date": ROW["date"], "score": 2.5}
    assert document.doc_id == ids.row_doc_id("s", "f.jsonl", "x1", "Żółw.")
    assert document.raw_hash == ids.content_hash("Żółw.".encode())


def test_a_row_without_an_id_is_named_by_its_number() -> None:
    first, second = jsonl(b'{"text": "a"}\n\n{"text": "b"}')
    assert first.doc_id == ids.row_doc_id("s", "f.jsonl", "0", "a")
    assert second.doc_id == ids.row_doc_id("s", "f.jsonl", "2", "b")
    assert (second.place.offset, second.place.length) == (15, 13)


def test_the_same_rows_in_jsonl_and_parquet_give_the_same_documents() -> None:
    rows = [{"text": f"text {n}", "url": f"https://example.org/{n}", "n": n} for n in range(200)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=30)
    options = ReadOptions(source="s", file="f")
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    ours = [list(read_documents(io.BytesIO(data), options)) for data in (lines, sink.getvalue())]
    for line, row in zip(*ours, strict=True):
        assert isinstance(line, Document)
        assert isinstance(row, Document)
        assert (line.doc_id, line.text, line.url, line.metadata) == (row.doc_id, row.text, row.url, row.metadata)
    last = ours[1][-1]
    assert isinstance(last, Document)
    assert (last.place.offset, last.place.length) == (199, 1)
    assert read_one(io.BytesIO(sink.getvalue()), 199, options) == last


def test_dates_bytes_and_missing_numbers_of_parquet_are_kept_as_json() -> None:
    sink = io.BytesIO()
    table = {"text": ["a"], "date": [datetime(2026, 1, 2)], "raw": [b"\xff"], "nan": [float("nan")], "list": [[1.5]]}
    pq.write_table(pa.table(table), sink)
    (document,) = read_documents(io.BytesIO(sink.getvalue()), ReadOptions(source="s", file="f.parquet"))
    assert isinstance(document, Document)
    assert document.captured_at == "2026-01-02T00:00:00Z"
    assert json.loads(document.metadata or "") == {
        "date": "2026-01-02 00:00:00", "raw": "ff", "nan": None, "list": [1.5],
    }  # fmt: skip


def test_a_text_that_is_too_long_is_hashed_but_not_held() -> None:
    (document,) = jsonl(json.dumps({"text": "x" * 101}).encode(), max_document_bytes=100)
    assert (document.text, document.num_bytes) == ("", 101)
    assert document.raw_hash == ids.content_hash(b"x" * 101)


def test_a_line_that_is_too_long_to_hold_costs_only_itself() -> None:
    data = b'{"text": "a"}\n{"text": "' + b"x" * (17 << 20) + b'"}\n{"text": "b"}'
    assert [document.text for document in jsonl(data, max_document_bytes=10)] == ["a", "b"]


def test_asking_for_a_place_where_no_row_is_says_so() -> None:
    with pytest.raises(ValueError, match="no line with a document begins at byte 3"):
        read_one(io.BytesIO(b'{"text": "a"}\n'), 3, ReadOptions(source="s", file="f.jsonl"))


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("a.warc.gz", b"", "warc"),
        ("a.warc.wet.gz", b"", "warc"),
        ("a.WARC", b"", "warc"),
        ("a.jsonl.zst", b"", "jsonl"),
        ("a.json.gz", b"", "jsonl"),
        ("a.parquet", b"", "parquet"),
        ("a", b"PAR1...", "parquet"),
        ("a", b' {"text"', "jsonl"),
        ("a", b"WARC/1.0", "warc"),
        ("a", b"\x1f\x8b\x08broken", "warc"),
        ("a", b"", "warc"),
    ],
)
def test_the_format_is_told_by_the_name_or_else_by_the_first_bytes(name: str, data: bytes, wanted: str) -> None:
    assert detect_format(io.BytesIO(data), ReadOptions(source="s", file=name)) == wanted


def test_a_format_that_is_named_goes_before_the_name() -> None:
    assert detect_format(io.BytesIO(), ReadOptions(source="s", file="a.jsonl", format="wet")) == "warc"
