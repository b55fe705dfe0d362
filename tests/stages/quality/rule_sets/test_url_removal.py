"""URLs go from texts as DCLM's url_removal_modifier takes them out."""

from __future__ import annotations

import importlib.resources
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document, Rejection
from stages.quality.options import QualityTable
from stages.quality.step import quality_step
from tests.support.inputs.quality_texts import document


def edited(text: str) -> Document | str:
    outcome = quality_step(QualityTable(rules=("url_removal",)))(document(text, None))
    return outcome.finding.rule if isinstance(outcome, Rejection) else outcome


def published(text: str) -> str:
    """mlfoundations/dclm, baselines/mappers/modifiers.py at 361714b, with one alternative for each domain in
    place of retrie's trie. Its trie escapes what is escaped already."""
    tlds = importlib.resources.files("stages.quality.dclm").joinpath("tlds.txt").read_text(encoding="utf-8")
    any_of = "|".join(re.escape(re.escape(tld)) for tld in tlds.splitlines())
    if re.compile(any_of, re.IGNORECASE).match(text):
        text = re.sub(
            rf"\s{{0,10}}(?:((https?|ftp)://)?)[-a-zA-Z0-9@:%._\+~#=]{{1,256}}\.(?:{any_of})\b([-a-zA-Z0-9()@:%_\+.~#?&//=]*)",
            "",
            text,
        )
    return re.sub(
        r"\s{0,10}\b((https?|ftp)://)?(?:[0-2]?[0-9]{1,2}\.){3}[0-2]?[0-9]{1,2}[-a-zA-Z0-9()@:%_\+.~#?&//=]*",
        "",
        text,
    )


CASES = [
    ("This URL https://www.example.com/a?b=c#d should go.", "This URL should go."),
    ("This URL example.co.uk:9000 should go", "This URL should go"),
    ("This line\nftp://user:word@ftp.example.com\nstays a line", "This line\nstays a line"),
    ("See blog.example.org, please", "See, please"),  # .see is a domain: the text begins as one
    ("We see blog.example.org", "We see blog.example.org"),  # and here it does not
    ("We ask 192.168.1.1:80 or 1.1.1.1 now", "We ask or now"),  # addresses go from every text
    (
        "This 1.123.456.7899 and v3.12.7.4 stay, e.g. U.S.A.",
        "This 1.123.456.7899 and v3.12.7.4 stay, e.g. U.S.A.",
    ),
    (
        "The site xn--p1ai.xn--p1ai stays",
        "The site xn--p1ai.xn--p1ai stays",
    ),  # no name of its list has a hyphen
    ("The file a.com_b stays, a.comb too", "The file a.com_b stays, a.comb too"),
    ("The" + " " * 12 + "a.com end", "The" + " " * 2 + " end"),
]


@pytest.mark.parametrize(("text", "left"), CASES)
def test_urls_go_from_texts_that_begin_as_a_top_level_domain(text: str, left: str) -> None:
    outcome = edited(text)
    assert isinstance(outcome, Document) and outcome.text == left == published(text)


def test_what_went_is_counted() -> None:
    outcome = edited("The a.com, b.org/c and 1.1.1.1.")
    assert isinstance(outcome, Document)
    assert [(edit.kind, edit.count) for edit in outcome.edits] == [
        ("url_removal.urls", 3), ("url_removal.chars_removed", 23),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["com.example.org", "1.1.1.1", "org.com http://a.org"])
def test_a_text_of_urls_alone_is_turned_down(text: str) -> None:
    assert edited(text) == "url_removal.empty"
    assert published(text) == ""


PIECES = (
    "The ", "a.com", "www.example.org/x?y=1", " ", "\n", "            ", "https://", "http://", ".com", ".co", ".uk",
    ".xn\\-\\-p1ai", ".\u0440\u0444", "\u00e9", "_", "1.2.3.4", "256.1.1.1", "1.123.456.7899", "a" * 250, "b" * 300,
    ".", "-", "/", "com", "word", "@", "(", ",", "\u2003", "\u0663", "99",
)  # fmt: skip


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=20))
def test_texts_are_left_as_dclm_leaves_them(pieces: list[str]) -> None:
    text = "The " + "".join(pieces)
    outcome = edited(text)
    assert outcome == "url_removal.empty" if not (left := published(text)) else outcome.text == left  # type: ignore[union-attr]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["a", "a.a.", " .com", " ", "http://", "1.1.1.", "a.com "])
def test_hostile_texts_are_edited_in_time_linear_in_their_length(piece: str) -> None:
    edited("The " + piece * (500_000 // len(piece)) + ".com")
