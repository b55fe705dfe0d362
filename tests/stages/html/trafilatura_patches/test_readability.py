"""Readability is left out only where its text, never longer than the bound, would not be taken."""

from __future__ import annotations

from copy import copy

import pytest
import trafilatura.core
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html
from trafilatura.external import _prefer_readability, try_readability
from trafilatura.settings import Extractor
from trafilatura.utils import load_html, trim

from stages.html.trafilatura_patches.apply import apply_patches
from stages.html.trafilatura_patches.readability import longest_text, may_be_taken

pytestmark = pytest.mark.differential("stages/html")

WORDS = ["a", "word, ", " of", "\n the  page.", " &amp; ", " &lt;b&gt;", " &nbsp;", "\t", ""]
NAMES = [
    "div", "p", "td", "table", "ul", "li", "a", "span", "h2", "form", "section", "br", "header", "pre", "textarea",
    "script", "style", "iframe", "title", "noscript",
]  # fmt: skip
texts = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
attributes = st.sampled_from(
    [
        "",
        " class='article'",
        " class='sidebar'",
        " id='comment'",
        " src='https://youtube.com/x'",
        " class='promo'",
    ]
)


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda name, given, inner, tail: f"<{name}{given}>{inner}</{name}>{tail}",
        st.sampled_from(NAMES),
        attributes,
        st.lists(children, max_size=4).map("".join),
        texts,
    )


pages = st.lists(st.recursive(texts, element, max_leaves=25), min_size=1, max_size=5).map(
    lambda parts: f"<html><head><title>t</title></head><body>{''.join(parts)}</body></html>"
)


def readability_text(page: html.HtmlElement) -> str:
    return trim(etree.tostring(try_readability(page), method="text", encoding="utf-8").decode())


@given(pages)
def test_what_readability_makes_of_a_page_is_never_longer_than_said(written):
    tree = load_html(written)
    assert len(readability_text(copy(tree))) <= longest_text(copy(tree))


def test_what_readability_never_reads_does_not_count_and_what_it_adds_does():
    tree = load_html("<html><body><script>var x</script><p>two  words</p><style>p {}</style></body></html>")
    assert longest_text(copy(tree)) == len("two words")
    tree = load_html(
        "<html><body><p>a,</p><p>b</p><iframe src='https://youtube.com/x'></iframe></body></html>"
    )
    assert "VIDEO" in readability_text(copy(tree))
    assert longest_text(copy(tree)) >= len(readability_text(copy(tree))) > len("a,b")


parts = st.sampled_from(["<p>text</p>", "<p/>", "<table/>", "<head>text</head>", "<quote>text</quote>"])
options = st.builds(
    lambda focus, size: sized(Extractor(precision=focus == "precision", recall=focus == "recall"), size),
    st.sampled_from(["precision", "balanced", "recall"]),
    st.integers(0, 20),
)


def sized(options: Extractor, min_extracted_size: int) -> Extractor:
    options.min_extracted_size = min_extracted_size
    return options


@given(st.lists(parts, max_size=5), st.integers(0, 60), st.integers(0, 130), st.data(), options)
def test_where_the_longest_text_is_not_taken_no_shorter_one_is(inside, num_chars, longest, data, options):
    body = etree.fromstring(f"<body>{''.join(inside)}</body>")
    if not may_be_taken(body, num_chars, longest, options):
        length = data.draw(st.integers(0, longest))
        article = html.fromstring(data.draw(st.sampled_from(["<div>x</div>", "<div><h3>x</h3></div>"])))
        beginning = data.draw(st.sampled_from(["", "{"]))
        assert not _prefer_readability(body, article, beginning, num_chars, length, options)


def test_a_text_more_than_twice_as_long_may_be_taken_and_one_of_twice_the_length_may_not():
    body, options = etree.fromstring("<body><p>text</p></body>"), Extractor(precision=True)
    assert not may_be_taken(body, 500, 1000, options)
    assert may_be_taken(body, 500, 1001, options)
    assert may_be_taken(etree.fromstring("<body><p/></body>"), 510, 510, options)
    assert may_be_taken(body, 0, 0, options)


def test_where_recall_is_favoured_a_longer_text_with_a_heading_may_be_taken():
    options = Extractor(recall=True)
    assert may_be_taken(etree.fromstring("<body><p>text</p></body>"), 500, 501, options)
    assert not may_be_taken(etree.fromstring("<body><head>text</head><p>text</p></body>"), 500, 750, options)
    assert may_be_taken(etree.fromstring("<body><head>text</head><p>text</p></body>"), 500, 751, options)


def test_readability_looks_at_few_pages(monkeypatch):
    apply_patches()
    looked: list[int] = []

    def look(page: html.HtmlElement) -> html.HtmlElement:
        looked.append(len(page))
        return try_readability(page)

    monkeypatch.setattr("trafilatura.external.try_readability", look)
    article = f"<article><p>{'A sentence of the article, with a comma. ' * 40}</p></article>"
    menu = "<div class='navigation'><a href='/'>an item of a menu</a></div>"
    for outside, looks in [
        ("", False),
        (menu * 20, False),
        (menu * 400, False),
        ("<p>some text more</p>" * 400, True),
    ]:
        looked.clear()
        written = f"<html><body>{outside}{article}</body></html>"
        trafilatura.extract(written, favor_precision=True, include_comments=False)
        assert looked[0] > 0 if looks else looked == [0], outside[:20]
