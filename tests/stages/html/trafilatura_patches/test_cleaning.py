"""Readability cleans a page to the same tree, and looks at each sibling a few times at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html
from trafilatura import readability_lxml

from stages.html.trafilatura_patches import cleaning
from tests.support.steps.untouched_trafilatura import untouched

pytestmark = pytest.mark.differential("stages/html")

THEIRS = untouched("readability_lxml").Document
WORDS = [
    "",
    "x ",
    "a, word. ",
    "some words that go on, and on; ",
    "\n",
    "long enough to be a text of its own, this is. " * 9,
]
NAMES = ["div", "p", "td", "table", "ul", "li", "a href=x", "h2", "form", "section", "br", "img", "embed", "iframe",
    "input type=hidden", "iframe src='https://youtube.com/x'", "textarea", "!--x--"]  # fmt: skip
texts = st.sampled_from(WORDS)
attributes = st.sampled_from(["", "", " class=article", " class=sidebar", " id=comment", " class=promo"])


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def written(name: str, given: str, inner: list[str], tail: str) -> str:
        if name.startswith("!"):
            return f"<{name}>{tail}"
        first = name.split(maxsplit=1)[0]
        end = "" if first in ("br", "img", "embed", "input") else f"{''.join(inner)}</{first}>"
        return f"<{name}{given}>{end}{tail}"

    return st.builds(written, st.sampled_from(NAMES), attributes, st.lists(children, max_size=4), texts)


def repeated(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The same again and again, as in rows of empty blocks."""
    return st.builds(lambda inner, number: inner * number, element(children), st.integers(1, 5))


pages = st.lists(st.recursive(texts, repeated, max_leaves=20), min_size=1, max_size=6).map(
    lambda parts: f"<html><body><div>{''.join(parts)}</div></body></html>"
)


class Ours(readability_lxml.Document):
    """Readability's document as it is patched, whether or not this process is."""

    remove_unlikely_candidates = cleaning._remove_unlikely_candidates
    transform_misused_divs_into_paragraphs = cleaning._divisions_as_paragraphs
    sanitize = cleaning._sanitized


@given(pages)
def test_readability_cleans_a_page_alike(written: str) -> None:
    assert (
        Ours(html.document_fromstring(written)).summary()
        == THEIRS(html.document_fromstring(written)).summary()
    )


EMPTY = "<div><img src=x></div>"
LONG = f"<p>{'These are words of a text, which goes on for long. ' * 30}</p>"


@pytest.mark.parametrize(
    "written",
    [
        EMPTY * 30,
        f"{LONG}{EMPTY * 30}",
        f"{EMPTY * 30}{LONG}",
        f"{LONG}{EMPTY * 30}{LONG}{EMPTY * 3}<p>word</p>{EMPTY}",
        f"<div>{LONG}{f'<div>{EMPTY}word</div>' * 9}</div>word{EMPTY * 9}",
        f"{LONG}{'<h2 class=comment>x</h2>word ' * 30}{'<form>x</form>word ' * 30}{'<iframe></iframe>word ' * 30}",
        f"{LONG}{'<div class=comment>x</div>word ' * 30}{'<div class=promo>x</div>word ' * 30}",
        f"words<br> <br>\n{LONG}{'<b>x</b>word ' * 30}{'<br> ' * 30}<i>x</i>{'<br> ' * 3}word<br>word<!--x--> <br>",
        f"<br> <br>{LONG}<div> <br> <br> {LONG}</div>",
    ],
)
def test_rows_of_what_goes_are_cleaned_alike(written: str) -> None:
    written = f"<html><body><div>{written}</div></body></html>"
    ours, theirs = (kind(html.document_fromstring(written)).summary() for kind in (Ours, THEIRS))
    assert ours == theirs


@pytest.mark.parametrize("around", ["{}", f"{LONG}{{}}", f"{{}}{LONG}", f"{LONG}{{}}{LONG}"])
def test_a_row_of_empty_blocks_takes_a_few_looks_at_each(
    around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, text_length = [], readability_lxml.text_length

    def counted(element: html.HtmlElement) -> int:
        looks.append(element)
        return int(text_length(element))

    monkeypatch.setattr(readability_lxml, "text_length", counted)
    node = html.fromstring(f"<div>{around.format(EMPTY * 500)}</div>")
    cleaning._sanitized(Ours(node), node, {})
    assert 500 < len(looks) < 5000


def test_what_is_behind_a_row_of_headings_that_go_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    end = cleaning.Deletions.end

    def counted(deletions: cleaning.Deletions) -> None:
        ended.append(deletions._before is not None)
        end(deletions)

    monkeypatch.setattr(cleaning.Deletions, "end", counted)
    node = html.fromstring(
        f"<div>{LONG}{'<h2 class=comment>x</h2>word ' * 500}{'<div class=promo>x</div>word ' * 500}</div>"
    )
    cleaned = etree.fromstring(cleaning._sanitized(Ours(node), node, {}))
    assert "".join(cleaned.itertext()).count("word ") == 1000
    assert sum(ended) == 2
