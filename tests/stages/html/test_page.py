"""A page that came in UTF-8 goes to the extractor as it came."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document, Place
from stages.html.extraction import Extractor, extract
from stages.html.page import Bounds, HtmlPage, read_page

BOUNDS = Bounds(num_bytes=1_000_000, num_tags=100_000, depth=1_000, num_options=1_000)
RESILIPARSE = Extractor(name="resiliparse", favor="balance", fast=True, timeout_seconds=60.0)
WORDS = "<p>Größe, 長さ und noch einmal dieselben Wörter 🙂 in einem Satz, der lang genug ist.</p>"


def page(payload: bytes) -> HtmlPage:
    place = Place(file="", offset=0, length=0)
    document = Document(doc_id=b"", source="", place=place, raw_hash=b"", payload=payload, is_html=True)
    return read_page(document, BOUNDS)


@pytest.mark.parametrize(
    ("payload", "came_so"),
    [
        (WORDS.encode(), True),
        (b"<p>plain words alone</p>", True),
        (codecs.BOM_UTF8 + WORDS.encode(), False),
        (WORDS.encode() * 9 + b"\xff", False),
        ((WORDS + "\ufffd").encode(), False),
        ((WORDS + "<math><mi>x</mi></math>").encode(), False),
        (WORDS.encode("utf-16"), False),
        ("<p>Größe und Länge</p>".encode("cp1252"), False),
    ],
    ids=["utf-8", "ascii", "marked", "does not fit", "a replacement character", "formula", "utf-16", "cp1252"],
)  # fmt: skip
def test_only_a_page_whose_text_is_its_bytes_goes_on_as_bytes(payload: bytes, came_so: bool) -> None:
    read = page(payload)
    assert (read.utf8 is not None) == came_so
    if read.utf8 is not None:
        assert read.utf8 == read.html.encode()


@given(
    st.lists(
        st.sampled_from([WORDS.encode(), codecs.BOM_UTF8, b"\xff", b"\0", b"\xc3", b"<p>a", b"&#0;", b"\r\n"])
    )
)
def test_whatever_the_bytes_are_they_and_the_text_are_one_page(parts: list[bytes]) -> None:
    read = page(b"".join(parts))
    if read.utf8 is not None:
        assert read.utf8 == read.html.encode()
        assert extract(read.html, RESILIPARSE, read.utf8) == extract(read.html, RESILIPARSE)
