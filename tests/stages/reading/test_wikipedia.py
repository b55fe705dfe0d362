"""A MediaWiki dump: a document for each page, and damage costs the page that it lies in."""

from __future__ import annotations

import bz2
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.document import Document
from stages.reading import wikipedia
from stages.reading.content_types import kind_of, namespaces_of
from stages.reading.options import InputCounts, ReadOptions, Unreadable
from stages.reading.reader import detect_format, read_documents, read_one, why_no_reader
from tests.support.inputs.document_files import END, SITE, dump, wiki_page

PAGES = [
    wiki_page(1, "Ebbe & Flut", "Das '''Meer'''."),
    wiki_page(2, "Gezeiten", "#WEITERLEITUNG [[Ebbe & Flut]]", redirect="Ebbe & Flut"),
    wiki_page(3, "Diskussion:Ebbe", "Wer war das?", namespace=1),
    wiki_page(4, "Mond/Bahn?", "Der Mond <ref>x</ref> kreist."),
]
DUMP = dump(*PAGES)


def read(data: bytes, **more: object) -> tuple[list[Document | Unreadable], InputCounts]:
    counts = InputCounts()
    options = ReadOptions(source="s", file="wiki.xml", **({"size": len(data)} | more))  # type: ignore[arg-type]
    return list(read_documents(io.BytesIO(data), options, counts)), counts


def ids(found: list[Document | Unreadable]) -> list[str | None]:
    return [item.record_id if isinstance(item, Document) else "unreadable" for item in found]


@pytest.mark.parametrize(
    "pack", [bytes, bz2.compress, lambda data: bz2.compress(data[:900]) + bz2.compress(data[900:])]
)
def test_pages_are_documents_with_their_title_url_revision_and_date(pack) -> None:
    found, counts = read(pack(DUMP))
    ebbe, mond = found
    assert isinstance(ebbe, Document) and isinstance(mond, Document)
    assert ebbe.payload.decode() == "Das '''Meer'''."
    assert ebbe.url == "https://de.wikipedia.org/wiki/Ebbe_%26_Flut"
    assert mond.url == "https://de.wikipedia.org/wiki/Mond/Bahn%3F"
    assert json.loads(ebbe.metadata or "") == {"page_id": "1", "revision_id": "10", "title": "Ebbe & Flut"}
    assert ebbe.captured_at == "2026-01-02T03:04:05Z"
    assert namespaces_of(ebbe.content_type) == (
        {"media", "medium", "file", "image", "datei"},
        {"category", "kategorie"},
    )
    assert DUMP[mond.place.offset : mond.place.offset + mond.place.length].decode() == PAGES[3].strip()
    assert counts.by_type == {"page": 2, "redirect": 1, "namespace 1": 1}


def test_other_namespaces_are_read_where_they_are_asked_for() -> None:
    found, counts = read(DUMP, namespaces=(1,))
    assert ids(found) == ["3"]
    assert counts.by_type == {"page": 1, "namespace 0": 3}


@pytest.mark.parametrize("pack", [bytes, bz2.compress])
def test_a_page_is_read_alone_at_its_place(pack) -> None:
    data = pack(DUMP)
    for item in read(data)[0]:
        assert isinstance(item, Document)
        options = ReadOptions(source="s", file="wiki.xml", size=len(data))
        assert read_one(io.BytesIO(data), item.place.offset, options) == item
    with pytest.raises(ValueError, match="no page with a document begins at byte 7"):
        read_one(io.BytesIO(data), 7, ReadOptions(source="s", file="wiki.xml"))


def test_a_dump_is_known_by_its_first_bytes() -> None:
    for data in (DUMP, b'<?xml version="1.0" encoding="utf-8"?>\n' + DUMP, bz2.compress(DUMP)):
        assert detect_format(io.BytesIO(data), ReadOptions(source="s", file="any")) == "wikipedia"
        assert why_no_reader(data, "any.xml", 1 << 27) is None
    assert (
        detect_format(io.BytesIO(b'<?xml version="1.0"?><rss/>'), ReadOptions(source="s", file="any"))
        != "wikipedia"
    )


def test_the_last_of_several_revisions_counts() -> None:
    page = PAGES[0].replace("</revision>", "</revision><revision><id>11</id><text>newest</text></revision>")
    ((found,), _) = read(dump(page))
    assert isinstance(found, Document)
    assert (found.payload, json.loads(found.metadata or "")["revision_id"]) == (b"newest", "11")
    older = "<revision><id>9</id><timestamp>2025-01-02T03:04:05Z</timestamp><text>older</text></revision>"
    ((found,), _) = read(dump(PAGES[0].replace("</revision>", f"</revision>{older}")))
    assert isinstance(found, Document) and json.loads(found.metadata or "")["revision_id"] == "10"


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (PAGES[0].replace("</title>", ""), "cannot be read as XML of a dump: ParseError"),
        (PAGES[0].replace("&amp;", "&hack;"), "ParseError"),
        (PAGES[0].replace("<ns>0", "<ns>x"), "ValueError"),
        (
            PAGES[0].replace("<title>", "<title>" + "E" * 600),
            "a title of 611 characters, expected at most 512",
        ),
        (PAGES[0].replace("</page>", ""), "does not end before the next one begins"),
        (PAGES[0].replace("<page>", ""), "a page without the tag that it begins with"),
        (PAGES[0].replace("Das", "<b>" * 20_000), "tags, expected at most"),
        (PAGES[0].replace("<page>", '<page><!DOCTYPE a [<!ENTITY b "c">]>'), "ParseError"),
        (
            PAGES[0].replace("Das", "Das " * 40_000),
            "limits.max_document_bytes = 1000: raise it, or take a dump with",
        ),
    ],
)
def test_a_damaged_page_costs_itself_alone(broken: str, error: str) -> None:
    found, _ = read(dump(broken, PAGES[3]), max_document_bytes=1000)
    bad, mond = found
    assert isinstance(bad, Unreadable) and error in bad.error
    assert isinstance(mond, Document) and mond.record_id == "4"
    assert bad.offset + bad.length <= mond.place.offset


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (DUMP[: -len(END)], "the dump ends before </mediawiki>"),
        (DUMP[: DUMP.index(b"Der Mond")], "the dump ends within a page"),
        (bz2.compress(DUMP)[:-20], "the file ends inside a bzip2 stream"),
        (SITE.encode(), "the dump ends before </mediawiki>"),
    ],
)
def test_a_dump_that_is_cut_off_says_so(data: bytes, error: str) -> None:
    last = read(data)[0][-1]
    assert isinstance(last, Unreadable) and error in last.error and last.breaks_off


def test_a_dump_without_a_head_has_pages_without_urls() -> None:
    for head in (
        "<mediawiki>",
        "<mediawiki><siteinfo><base>javascript:/x</base></siteinfo>",
        "<mediawiki><siteinfo><b</siteinfo>",
    ):
        found, _ = read((head + PAGES[0] + END).encode())
        assert [(item.record_id, item.url) for item in found if isinstance(item, Document)] == [("1", None)]
        assert isinstance(found[0], Document) and kind_of(found[0].content_type) is not None


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=60)


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=8), st.lists(st.integers(1, 70), min_size=1, max_size=12))
def test_pages_are_the_same_in_whatever_pieces_a_dump_comes(texts: list[str], sizes: list[int]) -> None:
    data = dump(*(wiki_page(number, f"T{number}", text) for number, text in enumerate(texts, 1)))
    splitter, found, at = wikipedia._Splitter(0, 10**6), [], 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        found += splitter.add(data[at : at + size])
        at += size
    assert splitter.why_not_whole is None
    whole, _ = read(data)
    assert [(each.offset, each.length) for each in found] == [
        (item.place.offset, item.place.length) for item in whole if isinstance(item, Document)
    ]
    assert [item.payload.decode() for item in whole if isinstance(item, Document)] == texts


def test_memory_is_bounded_whatever_stands_between_two_tags() -> None:
    splitter = wikipedia._Splitter(0, 10_000)
    for _ in range(200):
        assert list(splitter.add(b"x" * 100_000)) == []
        assert len(splitter._held) < 200_000
    list(splitter.add(b"<page>"))
    for _ in range(200):
        assert list(splitter.add(b"x" * 100_000)) == []
        assert len(splitter._held) < 200_000
    (page,) = splitter.add(b"</page>")
    assert (page.offset, page.length) == (20_000_000, 20_000_013)
