"""What others write oddly or label wrongly, read as it is meant: further instances of each kind.

Each of these came out wrong, empty or lost without a word before. Where a kind has a test file of its own,
that goes into its corners; here stands what a first look from outside would try."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from stages.chain import StepTables, build_chain
from stages.document import Document, Rejection
from stages.reading.charsets.charset import decode_text
from stages.reading.options import RowFields
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents
from stages.steps.url import UrlTable

pytestmark = pytest.mark.hostile("stages")

PAGE = b"<!DOCTYPE html><html><body>Hello there</body></html>"


def response(body: bytes = PAGE, *, mime: str | None = "text/html", more: str = "", longer: int = 0) -> bytes:
    """A WARC record; `longer`: by how much its Content-Length is wrong."""
    head = "HTTP/1.1 200 OK\r\n" + ("" if mime is None else f"Content-Type: {mime}\r\n") + "\r\n"
    block = head.encode() + body
    return (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.org/\r\n{more}"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block) + longer}\r\n\r\n"
    ).encode() + block + b"\r\n\r\n"  # fmt: skip


ROWS = b"".join(
    json.dumps({"id": number, "text": f"words number {number}"}).encode() + b"\n" for number in range(10)
)
ARC_HEAD = b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n\n"
ARC_BLOCK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE
ARC = (
    b"filedesc://x.arc 0.0.0.0 20080101000000 text/plain %d\n" % len(ARC_HEAD) + ARC_HEAD
    + b"http://a.org/ 192.0.2.1 20080102030405 text/html %d\n" % len(ARC_BLOCK) + ARC_BLOCK + b"\n"
)  # fmt: skip


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def parquet(texts: Any, **ways: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(texts if isinstance(texts, pa.Table) else pa.table({"text": texts}), file, **ways)
    return file.getvalue()


def wide_frame(content: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, enable_ldm=1)
    packing = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packing.compress(content) + packing.flush()


def read(data: bytes, name: str, **options: Any) -> tuple[list[Document], list[Unreadable]]:
    found = list(
        read_documents(
            io.BytesIO(data), ReadOptions(source="s", file=name, size=len(data), **options), InputCounts()
        )
    )
    return [one for one in found if isinstance(one, Document)], [
        one for one in found if isinstance(one, Unreadable)
    ]


@pytest.mark.parametrize(
    ("name", "data", "num_documents"),
    [
        ("crawl.arc", ARC, 1),
        ("crawl.arc.gz", gzip.compress(ARC), 1),
        ("crawl.arc.zst", zstandard.compress(ARC), 1),
        ("posts.jsonl.bz2", bz2.compress(ROWS) + bz2.compress(ROWS), 20),
        ("posts.jsonl.xz", lzma.compress(ROWS), 10),
        ("posts.jsonl", bz2.compress(ROWS), 10),
        ("crawl.warc.bz2", bz2.compress(response() * 2), 2),
        ("crawl.warc.xz", lzma.compress(response() * 2), 2),
        ("site.wacz", zipped({"archive/a.warc": response() * 2}, zipfile.ZIP_DEFLATED), 2),
        ("site.wacz", zipped({"archive/a.warc.gz": gzip.compress(response()), "pages/pages.jsonl": ROWS}), 1),
        ("site.zip", zipped({"datapackage.json": b"{}", "archive/a.warc.gz": gzip.compress(response())}), 1),
        ("x.warc.gz", gzip.compress(response(longer=-1)) + gzip.compress(response()), 2),
        ("x.warc.gz", gzip.compress(response(longer=-30)) + gzip.compress(response()), 2),
        ("x.warc.gz", gzip.compress(response(longer=5_000)) + gzip.compress(response()), 2),
        ("x.warc.zst", zstandard.compress(response(longer=-4)) + zstandard.compress(response()), 2),
        ("x.warc", response().replace(b"WARC/1.0", b"warc/1.0"), 1),
        ("x.warc", response(mime=None), 1),
        ("x.warc", response(mime=""), 1),
        ("x.warc", response(mime="application/octet-stream"), 1),
        ("x.warc", response(b"no tag", mime=None, more="WARC-Identified-Payload-Type: application/xhtml+xml\r\n"), 1),
        ("x.warc", response("\ufeff<html><p>Hi".encode("utf-16-le"), mime=None), 1),
        ("x.warc", response(mime="text/css") + response(mime="text/javascript"), 0),
        ("a.jsonl", b'{"text":null}\n{"text":"a"}\n', 2),
        ("a.parquet", parquet(pa.nulls(4)), 4),
        ("a.parquet", parquet(pa.array(["a", None, "a"]).dictionary_encode()), 3),
        ("a.parquet", parquet(pa.array(["a", None], pa.large_string())), 2),
        ("a.parquet", parquet(pa.array([b"a", b"b"], pa.large_binary())), 2),
        ("a.parquet", parquet(pa.array([b"a", b"b", b"a"]).dictionary_encode()), 3),
        ("a.parquet", parquet(pa.array([b"a", b"b"], pa.binary_view())), 2),
    ],
)  # fmt: skip
def test_every_record_is_a_document(name: str, data: bytes, num_documents: int) -> None:
    documents, unreadable = read(data, name)
    assert (len(documents), unreadable) == (num_documents, [])


@pytest.mark.parametrize(
    ("name", "data", "num_documents", "why"),
    [
        ("p.jsonl.lz4", b"\x04\x22\x4d\x18\x64\x40\xa7" + bytes(40), 0, "lz4"),
        ("p.jsonl.7z", b"7z\xbc\xaf\x27\x1c" + bytes(60), 0, "7z"),
        ("p.jsonl.sz", b"\xff\x06\x00\x00sNaPpY" + bytes(60), 0, "nappy"),
        ("a.jsonl.zst", wide_frame(ROWS, 28), 0, "limits.max_window_bytes"),
        ("a.jsonl.zst", wide_frame(ROWS, 31), 0, "limits.max_window_bytes"),
        ("a.warc.zst", wide_frame(response(), 30), 0, "limits.max_window_bytes"),
        ("x.warc", b"WARC/1.0\r\n" + response() * 2, 2, "breaks off"),
        ("x.warc", b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target" + response() * 2, 2, "breaks off"),
        ("x.warc.gz", gzip.compress(b"warc/1.0\r\nWARC-Type: resp" + response() * 2), 2, "breaks off"),
        ("a.parquet", parquet(pa.array([b"a", b"\xff\xfe", b"c"])), 2, "UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(name: str, data: bytes, num_documents: int, why: str) -> None:
    documents, (stretch,) = read(data, name)
    assert len(documents) == num_documents
    assert why in stretch.error


@pytest.mark.parametrize(
    "way",
    [
        {"use_dictionary": False},
        {"use_dictionary": True},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
)
def test_a_flipped_letter_of_a_page_with_a_checksum_is_found(way: dict[str, Any]) -> None:
    data = bytearray(
        parquet(
            [f"words {n} mark{n} here" for n in range(30)],
            write_page_checksum=True,
            compression="none",
            **way,
        )
    )
    data[data.index(b"mark3 ")] ^= 1
    documents, unreadable = read(bytes(data), "a.parquet")
    assert len(documents) < 30
    assert "checksum" in unreadable[0].error


@pytest.mark.parametrize(
    ("text", "charset", "header"),
    [
        ("It costs £3 a day.", "cp1252", None),
        ("“No,” he said — ‘never’ …", "cp1252", "utf-8"),
        ("The Widget™ is sold by Acme® ©2009", "cp1252", None),
        ("€5, €6 and €8 • bullets •", "cp1252", None),
        ("A naïve façade in São Paulo, piñata", "cp1252", "utf-8"),
        ("Die schönsten Bücher für Mädchen", "utf-8", "iso-8859-1"),
        ("これは日本語の文章です。", "iso2022_jp", None),
    ],
)
def test_a_page_is_read_by_its_bytes(text: str, charset: str, header: str | None) -> None:
    page = f"<html><body><p>{text}</p></body></html>"
    assert decode_text(page.encode(charset), header)[0] == page


@pytest.mark.parametrize(
    "url",
    [
        "urn:textFinal:https://blocked.example.org/a", "onreadydom:https://blocked.example.org/a",
        "view-source:https://blocked.example.org/x", "urn:text:https%3A%2F%2Fblocked.example.org%2Fa",
        "URN:TEXT:HTTPS://BLOCKED.EXAMPLE.ORG/a", "urn:text:blocked.example.org/a", "blocked.example.org",
        "www.blocked.example.org:8080/a", "BLOCKED.example.org./a", "http:/blocked.example.org/a",
        "https://https://blocked.example.org/a", " blocked.example.org?x=1",
    ],
)  # fmt: skip
def test_a_listed_host_is_blocked_however_its_page_is_named(
    make_document: Callable[..., Document], tmp_path_factory: pytest.TempPathFactory, url: str
) -> None:
    hosts = tmp_path_factory.getbasetemp() / "listed-hosts.txt"
    hosts.write_text("blocked.example.org\n")
    tables = StepTables(max_document_bytes=1_000, url=UrlTable(block_hosts=(str(hosts),)))
    outcome = build_chain(["url", "parse"], tables)(make_document(text="words", url=url))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "url.blocked_host"


@pytest.mark.parametrize(
    "text",
    [
        "see § 12.4.5.6 of the act", "Figure 4.1.2.3 shows", "Chapter 3.14.15.92 begins", "Firefox 115.0.2.1 fixes it",
        "Table 2.3.4.5: results", "Version: 3.2.1.0", "release-20240115-07-prod was cut", "part no. 415-555-0132-A4",
    ],
)  # fmt: skip
def test_numbers_of_another_kind_stay(make_document: Callable[..., Document], text: str) -> None:
    outcome = build_chain(["parse", "pii"], StepTables(max_document_bytes=1_000))(make_document(text=text))
    assert outcome.text == text  # type: ignore[union-attr]


def test_elements_of_a_list_have_ids_of_their_own() -> None:
    table = pa.table({"files": pa.array([[{"content": "p"}, {"content": b"q".decode()}]])})
    documents, _ = read(parquet(table), "a.parquet", fields=RowFields(text="files[].content"))
    assert [one.text for one in documents] == ["p", "q"]
    assert len({one.doc_id for one in documents}) == 2
