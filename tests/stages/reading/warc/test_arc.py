"""ARC files: versions 1 and 2, compressed by record, as a whole or not at all, whole and damaged."""

from __future__ import annotations

import io

import pytest
import zstandard
from warcio.archiveiterator import ArchiveIterator

from stages.document import Document
from stages.reading.reader import InputCounts, ReadOptions, Unreadable, read_documents, read_one
from tests.support.inputs.make_warc import arc_begin, arc_record, http, member, page

URLS = [f"http://example.org/{name}" for name in ("one", "two", "three")]


def records(version: int) -> list[bytes]:
    return [arc_begin(version), *(arc_record(http(page(url)), url, version=version) for url in URLS)]


def read(data: bytes, name: str = "x.arc.gz") -> tuple[list[Document], list[Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file=name, size=len(data))
    items = list(read_documents(io.BytesIO(data), options, counts))
    documents = [item for item in items if isinstance(item, Document)]
    for document in documents:
        assert read_one(io.BytesIO(data), document.place.offset, options, document.doc_id) == document
    return documents, [item for item in items if isinstance(item, Unreadable)], counts


PACKED = {
    "a gzip member a record": lambda parts: b"".join(map(member, parts)),
    "one gzip member": lambda parts: member(b"".join(parts)),
    "plain": b"".join,
    "a zstd frame a record": lambda parts: b"".join(map(zstandard.ZstdCompressor().compress, parts)),
}


@pytest.mark.parametrize("name", ["x.arc.gz", "CC-crawl-0001"])
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("version", [1, 2])
def test_pages_of_an_arc_file_are_documents(version: int, packed: str, name: str) -> None:
    documents, unreadable, counts = read(PACKED[packed](records(version)), name)
    assert [(d.url, d.captured_at, d.payload) for d in documents] == [
        (url, "2008-04-30T20:48:25Z", page(url)) for url in URLS
    ]
    assert all(d.record_id is None and d.is_html and d.charset_hint == "utf-8" for d in documents)
    assert not unreadable
    assert counts.by_type == {"filedesc": 1, "response": 3}
    assert counts.by_mime == {"text/plain": 1, "text/html": 3}
    assert counts.by_status == {"none": 1, "200": 3}


def test_places_tile_the_file() -> None:
    parts = [member(each) for each in records(1)]
    documents, _, _ = read(b"".join(parts))
    assert [(d.place.offset, d.place.length) for d in documents] == [
        (sum(map(len, parts[:n])), len(parts[n])) for n in (1, 2, 3)
    ]


@pytest.mark.differential("stages/reading")
def test_records_of_version_1_agree_with_warcio() -> (
    None
):  # it takes the fields of version 2 for those of a URL
    data = b"".join(map(member, records(1)))
    theirs = [
        (record.rec_headers.get_header("uri"), record.content_stream().read())
        for record in ArchiveIterator(io.BytesIO(data))
        if record.rec_type == "response"
    ]
    assert theirs == [(d.url, d.payload) for d in read(data)[0]]


def test_what_is_no_page_is_counted_by_type_mime_and_status() -> None:
    dns = arc_record(
        b"20080430204825\nwww.example.org. 300 IN A 192.0.2.1\n", "dns:www.example.org", "text/dns"
    )
    others = [
        dns,
        arc_record(http(page("x"), status="404 Not Found"), "http://example.org/gone"),
        arc_record(http(b"\x89PNG" * 9, "image/png"), "http://example.org/i.png", "image/png"),
        arc_record(http(b"moved", "text/html", "301 Moved"), "http://example.org/moved"),
    ]
    documents, unreadable, counts = read(b"".join(map(member, [arc_begin(), *others])))
    assert (documents, unreadable) == ([], [])
    assert counts.by_type == {"filedesc": 1, "dns": 1, "response": 3}
    assert counts.by_status == {"none": 2, "404": 1, "200": 1, "301": 1}


HEADS = {
    "a space in the URL": ("http://example.org/a b?c=d e", "text/html"),
    "the URL looks like a head": ("http://example.org/ 192.0.2.9 20070101000000 text/html 12", "text/html"),
    "parameters of the type": ("http://example.org/a", "text/html; charset=utf-8"),
    "no type": ("http://example.org/a", "no-type"),
    "a type left out": ("http://example.org/a", ""),
    "a URL that is not ASCII": ("http://example.org/é", "text/html"),
    "a text on an FTP server": ("ftp://example.org/readme", "text/html"),
}


@pytest.mark.parametrize("packed", ["plain", "a gzip member a record"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_of_real_writers_are_read(head: str, packed: str) -> None:
    url, mime = HEADS[head]
    parts = [arc_begin(), arc_record(http(page("a"), "text/html"), url, mime), *records(1)[1:]]
    documents, unreadable, counts = read(PACKED[packed](parts))
    assert not unreadable
    assert [d.url for d in documents] == [url, *URLS]
    assert counts.num_records == 5


def test_a_page_without_an_http_head_is_typed_by_the_arc_head() -> None:
    parts = [
        arc_begin(),
        arc_record(page("a"), "ftp://example.org/a"),
        arc_record(page("b"), "http://b.org/", "no-type"),
    ]
    documents, _, counts = read(b"".join(map(member, parts)))
    assert [(d.url, d.payload) for d in documents] == [
        ("ftp://example.org/a", page("a")),
        ("http://b.org/", page("b")),
    ]
    assert counts.by_type == {"filedesc": 1, "resource": 1, "response": 1}


def test_an_id_covers_url_and_payload_alone() -> None:
    once, twice = arc_record(http(b"<p>a"), "http://a.org/"), arc_record(http(b"<p>a"), "http://b.org/")
    documents, _, _ = read(b"".join(map(member, [arc_begin(), once, twice, once])))
    ids = [d.doc_id for d in documents]
    assert ids[0] == ids[2] != ids[1]


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2] + b"\n",
    "garbage": lambda data: b"\xffgarbage\n" * 50,
    "a byte flipped in the length": lambda data: data.replace(b" text/html 1", b" text/html x1", 1),
    "longer than it is": lambda data: data.replace(b" text/html 1", b" text/html 11", 1),
    "shorter than it is": lambda data: data.replace(b" text/html 10", b" text/html 1", 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_a_plain_file_costs_only_what_it_touches(damage: str) -> None:
    first, one, two, three = records(1)
    damaged = DAMAGE[damage](two)
    assert damaged != two
    documents, unreadable, _ = read(first + one + damaged + three, "x.arc")
    assert [d.url for d in documents if d.url != URLS[0]] == [URLS[2]]
    end = len(first) if documents[0].url != URLS[0] else len(first + one)
    assert [(u.offset, u.length) for u in unreadable] == [(end, len(first + one + damaged) - end)]


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_damage_of_a_member_costs_only_that(damage: str) -> None:
    parts = [member(each) for each in records(2)]
    parts[2] = DAMAGE[damage](parts[2])
    documents, unreadable, _ = read(b"".join(parts))
    assert [d.url for d in documents] == [URLS[0], URLS[2]]
    assert [(u.offset, u.length) for u in unreadable] == [(len(parts[0] + parts[1]), len(parts[2]))]


def test_a_length_that_is_too_short_for_its_member_is_mended() -> None:
    first, one, two, three = records(1)
    short = DAMAGE["shorter than it is"](two)
    documents, unreadable, counts = read(b"".join(map(member, [first, one, short, three])))
    assert [d.payload for d in documents] == [page(url) for url in URLS]
    assert (unreadable, counts.notes) == ([], {"mended": 1})
