"""The text of HTML files is BeautifulSoup's, of sound and of damaged markup."""

from __future__ import annotations

import sys
import warnings
from html.parser import HTMLParser

import pytest
from bs4 import BeautifulSoup
from bs4.exceptions import ParserRejectedMarkup
from hypothesis import given
from hypothesis import strategies as st

from stages.quality.code.page_text import NoPageError, page_text

pytestmark = pytest.mark.differential("stages/quality")


def get_text(html: str) -> str | None:
    """As StarCoder's filter_html asks for it; None where BeautifulSoup refuses the markup."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            soup = BeautifulSoup(html, features="html.parser")
        except ParserRejectedMarkup:
            return None
    for element in soup(["script", "style"]):
        element.extract()
    return str(soup.get_text())


def ours(html: str) -> str | None:
    try:
        return page_text(html)
    except NoPageError:
        return None


CASES = [
    ("<p> a </p>\n   <p>b</p>  <p>c", " a \nb c"),  # white space alone is one line feed or one space
    ("<pre>\n   <b>  </b></pre>  <b></b>", "\n      "),  # but in pre, and in textarea
    ("a<!-- b > -->c<?d?>e<!DOCTYPE f>g", "aceg"),
    ("a<script>b<p></script>c<STYLE x>d</style >e", "ace"),
    ("a<script>b", "a"),
    ("a<template>b<i>c</i></template><ruby>d<rt>e</rt></ruby>f", "adf"),
    ("<![CDATA[ a <b> ]]><![if IE]>b<![endif]>", " a <b> b"),
    ("&amp;&lt;&nbsp;&#65;&#x42;&#128;&#0;&copy &unknown; &fjlig;", "&<\xa0AB\u20ac\ufffd\xa9 &unknown fj"),
    ("<br>  </br>  a", "    a"),  # a void element's end tag parts no text
    ("<![nothing]>", None),
]


@pytest.mark.parametrize(("html", "text"), CASES)
def test_the_text_of_a_page_is_what_beautifulsoup_gives(html: str, text: str | None) -> None:
    assert ours(html) == text
    assert get_text(html) == text


class _Comments(HTMLParser):
    def handle_comment(self, data: str) -> None:
        self.found = True


def _reads_damage_otherwise() -> bool:
    """Whether this Python's html.parser is a later one, which ends a comment at `<!-->`."""
    parser = _Comments()
    parser.feed("<!-->")
    return hasattr(parser, "found")


SOUND = (
    "<p>", "</p>", "<br>", "<br/>", "<pre>", "</pre>", "<script>x<y</script>", "<style> </style>", "<!-- a -->",
    "<div>", "</div>", "<!DOCTYPE html>", "<a href='x>y'>", "</a>", "<img src=a>", "&amp;", "&#65;", "&eacute;", " ",
    "\n", "\n   ", "text", "a b", "\u00e9", "<textarea>", "</textarea>", "<template>", "</template>", "<rt>", "</rt>",
)  # fmt: skip
DAMAGED = (
    "<", "</", ">", "<a ", "<a href=", "<!--", "-->", "--", "<!", "<?", "?>", "<![CDATA[", "]]>", "<![if x]>", "<![",
    "<script>", "</script>", "<style/>", "&", "&#", "&#x", "&#x41", "&amp", "&foo;", "&#xD800;", ";", "'", '"', "=",
    "/", "</ a >", "</>", "</1>", "</br>", "<a\0>", "<x:y b=c/>", "\u2003", "\v",
)  # fmt: skip


@given(pieces=st.lists(st.sampled_from(SOUND), max_size=30))
def test_sound_markup_has_the_text_of_beautifulsoup(pieces: list[str]) -> None:
    html = "".join(pieces)
    assert ours(html) == get_text(html)


@pytest.mark.skipif(_reads_damage_otherwise(), reason=f"html.parser of {sys.version} reads damage otherwise")
@given(pieces=st.lists(st.sampled_from(SOUND + DAMAGED), max_size=30))
def test_damaged_markup_has_the_text_of_beautifulsoup(pieces: list[str]) -> None:
    html = "".join(pieces)
    assert ours(html) == get_text(html)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    ["<", "<a ", "<a b='", "<a b='>' ", "<!--", "<![if ", "</", "<div></b>", "<br></br>", "&#a;", "<a b "],
)
def test_hostile_markup_is_read_in_time_linear_in_its_length(piece: str) -> None:
    # html.parser begins anew at each piece: half a minute for 100 kB, an hour for 1 MB.
    assert ours(piece * (1_000_000 // len(piece))) is not None
