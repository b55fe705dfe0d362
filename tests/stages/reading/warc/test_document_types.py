"""Which records are documents: by type, by what tools and first bytes say where there is none, and what is
cut off."""

from __future__ import annotations

import gzip
import io

import pytest

from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents
from stages.reading.warc.sniff import UNKNOWN_TYPES, begins_html
from tests.support.inputs.make_warc import http, page, record

NONE = [None, " ", "application/octet-stream; charset=utf-8", *sorted(UNKNOWN_TYPES)]


def read(*records: bytes, mime: tuple[str, ...] = ()) -> tuple[list[Document], InputCounts]:
    data, counts = b"".join(records), InputCounts()
    items = list(read_documents(io.BytesIO(data), ReadOptions(source="s", file="x.warc", mime=mime), counts))
    assert not any(isinstance(item, Unreadable) for item in items)
    assert counts.num_records == len(records)
    return [item for item in items if isinstance(item, Document)], counts


@pytest.mark.parametrize("given", [*NONE, "html-but-no-type"])
def test_html_that_names_no_type_is_a_document(given: str | None) -> None:
    (document,), _ = read(record(http(page("a"), given)))
    assert (document.is_html, document.payload) == (True, page("a"))


@pytest.mark.parametrize("given", NONE)
@pytest.mark.parametrize(
    "body", [b"just text\n" * 20, b"%PDF-1.7 <html>", b"\x89PNG\r\n\x1a\n", b"", b'{"a": "<html>"}']
)
def test_what_names_no_type_and_is_no_html_is_counted(given: str | None, body: bytes) -> None:
    documents, counts = read(record(http(body, given)))
    assert documents == []
    assert list(counts.by_mime) in ([(given or "").partition(";")[0].strip() or "none"], ["malformed"])


@pytest.mark.parametrize("found", ["text/html", "application/xhtml+xml", "TEXT/HTML; charset=utf-8"])
def test_html_by_what_a_tool_identified_is_a_document(found: str) -> None:
    fields = {"WARC_Identified_Payload_Type": found}
    (document,), _ = read(record(http(b"words before <html>", None), **fields))
    assert document.is_html
    documents, _ = read(record(http(b"\x89PNG", "image/png"), **fields))
    assert documents == [], "a type that is known is believed"


def test_a_resource_without_a_type_is_sniffed_too() -> None:
    documents, _ = read(
        record(page("a"), "a", warc_type="resource", content_type="application/octet-stream"),
        record(b"\0\1\2", "b", warc_type="resource", content_type="application/octet-stream"),
        record(page("c"), "c", warc_type="metadata", content_type="application/octet-stream"),
    )
    assert [document.url for document in documents] == ["https://example.org/a"]


HTML = [
    b"<!DOCTYPE HTML>", b"<!doctype html PUBLIC>", b"<HTML>", b"<html lang=en>", b"<head>", b"<script src=x>",
    b"<iframe >", b"<h1>x", b"<div class=x>", b"<FONT size=1>", b"<table>", b"<a href=x>", b"<style>", b"<title>x",
    b"<b>x", b"<body\n>", b"<br/>", b"<p>x", b"<!-- x --><rss>", b"\r\n\t \f<html>", b"\xef\xbb\xbf<html>",
    b'<?xml version="1.0"?>\n<!DOCTYPE html>', b'<?xml version="1.0"?><!-- x --><html xmlns="x">',
    "<html>".encode("utf-16"), b"<!doctype\n html>",
]  # fmt: skip
NO_HTML = [
    b"", b"<", b"<html", b"<htmlx>", b"<article>", b"<svg>", b"<rss>", b'<?xml version="1.0"?><rss>',
    b'<?xml version="1.0"?><!-- x --><svg>', b"x<html>", b"\0<html>", b"<!doctype svg>", b"<bold>", b"{<html>}",
    b"GIF89a<html>", b" " * 5000 + b"<html>",
]  # fmt: skip


@pytest.mark.parametrize("head", HTML)
def test_bytes_that_html_begins_with(head: bytes) -> None:
    assert begins_html(head, None)


@pytest.mark.parametrize("head", NO_HTML)
def test_bytes_that_html_does_not_begin_with(head: bytes) -> None:
    assert not begins_html(head, None)


def test_a_coded_body_is_sniffed_below_its_coding() -> None:
    def coded(body: bytes, *fields: str) -> bytes:
        return record(http(body, None, "200 OK", *fields))

    packed = gzip.compress(page("a") * 200, mtime=0)
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(packed[at:][:99]), packed[at:][:99]) for at in range(0, len(packed), 99)
    )
    documents, _ = read(
        coded(packed, "Content-Encoding: gzip"),
        coded(chunks + b"0\r\n\r\n", "Content-Encoding: gzip", "Transfer-Encoding: chunked"),
        coded(page("a"), "Content-Encoding: br"),
        coded(gzip.compress(b"just text", mtime=0), "Content-Encoding: gzip"),
        coded(gzip.compress(b" " * (64 << 20), mtime=0), "Content-Encoding: gzip"),
    )
    assert len(documents) == 3
    assert all(document.is_html for document in documents)


FOR_MACHINES = [
    "text/css", "text/javascript", "TEXT/CSS; charset=utf-8", "text/ecmascript", "text/x-javascript", "text/calendar",
    "text/dns", "application/javascript", "application/json", "text/json", "text/javascript1.5", "text/vcard",
]  # fmt: skip


@pytest.mark.parametrize("mime", FOR_MACHINES)
def test_what_is_written_for_programs_is_no_document(mime: str) -> None:
    documents, counts = read(record(http(b"<html> { color: red }", mime)))
    assert documents == []
    assert counts.by_mime == {mime.lower().partition(";")[0]: 1}


@pytest.mark.parametrize(
    "mime", ["text/plain", "text/markdown", "text/xml", "text/x-python", "text/csv", "text/rtf"]
)
def test_other_text_is_a_document(mime: str) -> None:
    (document,), _ = read(record(http(b"some words", mime)))
    assert (document.is_html, document.text) == (False, "some words")


@pytest.mark.parametrize("mime", ["application/xhtml+xml", "text/html", "application/vnd.wap.xhtml+xml"])
def test_xhtml_is_html(mime: str) -> None:
    (document,), _ = read(record(http(page("a"), mime)))
    assert document.is_html


@pytest.mark.parametrize("more", [("application/json",), ("application/*", "text/css"), ("*/*",)])
def test_a_source_may_name_more_types(more: tuple[str, ...]) -> None:
    records = [record(http(b'{"a": 1}', "application/json; charset=utf-8")), record(http(page("a")))]
    documents, _ = read(*records, mime=more)
    assert [(document.is_html, document.text) for document in documents] == [(False, '{"a": 1}'), (True, "")]
    (alone,), _ = read(*records)
    assert alone == documents[1]


def test_octets_that_a_source_names_are_html_where_they_show_it() -> None:
    records = [
        record(http(body, "application/octet-stream"), name)
        for name, body in (("a", b"words"), ("b", b"<p>x"))
    ]
    documents, _ = read(*records, mime=("application/octet-stream",))
    assert [document.is_html for document in documents] == [False, True]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"WARC_Truncated": "length"}, "length"),
        ({"WARC_Truncated": "Time"}, "time"),
        ({"WARC_Truncated": "disconnect"}, "disconnect"),
        ({"WARC_Truncated": "whatever it was; 12"}, "unspecified"),
        ({"WARC_Truncated": ""}, "unspecified"),
        ({"WARC_Segment_Number": "1"}, "segment"),
        ({"WARC_Segment_Number": "1", "WARC_Truncated": "length"}, "length"),
    ],
)
def test_a_record_says_why_it_holds_a_part(fields: dict[str, str], why: str | None) -> None:
    (document,), _ = read(record(http(page("a")), **fields))
    assert document.truncated == why


def test_a_continuation_is_counted_and_no_document() -> None:
    documents, counts = read(
        record(http(page("a")), WARC_Segment_Number="1"),
        record(page("b"), "b", warc_type="continuation", content_type="text/html", WARC_Segment_Number="2"),
    )
    assert [document.truncated for document in documents] == ["segment"]
    assert counts.by_type == {"response": 1, "continuation": 1}
