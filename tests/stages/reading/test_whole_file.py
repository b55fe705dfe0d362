"""A text or source file is a document: its name is its id, its text as it stands."""

from __future__ import annotations

import gzip
import io

import pytest

from stages.document import Document
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.reader import detect_format, read_documents, read_one


def read(name: str, data: bytes, **more: object) -> tuple[list[Document | Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file=name, size=len(data), **more)  # type: ignore[arg-type]
    return list(read_documents(io.BytesIO(data), options, counts)), counts


@pytest.mark.parametrize(
    ("name", "data", "text", "charset"),
    [
        ("a/b.py", b"def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a + b\n", "utf-8"),
        ("notes.txt", "\ufeffcafé".encode(), "café", "utf-8"),
        ("old.txt", "Das Mädchen läuft über die Straße".encode("cp1252"), None, "cp1252"),
        ("wide.md", "# Gärten".encode("utf-16"), "# Gärten", "utf-16-le"),
        ("packed.rst.gz", gzip.compress(b"a packed text", mtime=0), "a packed text", "utf-8"),
        ("brace.css", b"{ no row }", "{ no row }", "utf-8"),
        ("brace.txt", b"{ no row }", "{ no row }", "utf-8"),
    ],
)
def test_a_text_or_source_file_is_one_document(
    name: str, data: bytes, text: str | None, charset: str
) -> None:
    (found,), counts = read(name, data)
    assert isinstance(found, Document)
    assert (found.record_id, found.place.file, found.place.offset) == (name, name, 0)
    assert found.text == (text or "Das Mädchen läuft über die Straße")
    assert found.charset == charset
    assert counts.by_type == {"file": 1}
    alone = read_one(io.BytesIO(data), 0, ReadOptions(source="s", file=name))
    assert alone == found


def test_the_same_text_under_two_names_is_two_documents() -> None:
    (one,), _ = read("a.txt", b"a text")
    (two,), _ = read("b.txt", b"a text")
    assert one.doc_id != two.doc_id  # type: ignore[union-attr]
    assert one.raw_hash == two.raw_hash  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data", [b"\x7fELF\x02\x01\x01\x00", b"\x89PNG\r\n\x1a\n\x00\x00", b"PK\x03\x04\x14\x00\x00"]
)
def test_a_binary_file_is_counted_and_no_document(data: bytes) -> None:
    found, counts = read("logo.png", data, format="file")
    assert (found, counts.num_records, counts.notes) == ([], 0, {"binary": 1})


def test_a_text_above_the_bound_is_hashed_and_not_held() -> None:
    (found,), _ = read("a.txt", b"x" * 5_000, max_document_bytes=4_000)
    assert isinstance(found, Document)
    assert (found.text, found.num_bytes) == ("", 5_000)


def test_a_file_that_breaks_off_is_unreadable() -> None:
    packed = gzip.compress(bytes(range(32, 127)) * 40)
    (found,), _ = read("a.txt.gz", packed[:-20])
    assert isinstance(found, Unreadable)
    assert found.breaks_off


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("part-00000.txt", b'{"text": "a row"}\n', "jsonl"),
        ("crawl.txt", b"WARC/1.0\r\n", "warc"),
        ("table.txt", b"PAR1", "parquet"),
        ("rows.txt.gz", gzip.compress(b'{"text": "a row"}\n', mtime=0), "jsonl"),
        ("a.jsonl", b"a text", "jsonl"),
        ("a.toml", b"[run]", "file"),
        ("a.unknown", b"a text", "warc"),
    ],
)
def test_what_is_called_a_text_and_holds_rows_is_read_as_rows(name: str, head: bytes, kind: str) -> None:
    assert detect_format(io.BytesIO(head), ReadOptions(source="s", file=name)) == kind
    assert detect_format(io.BytesIO(head), ReadOptions(source="s", file=name, format="file")) == "file"
