"""The patterns find what trafilatura's find."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.trafilatura_patches.patterns import DOCTYPE, ForumPosting, linear_markup
from tests.support.steps.untouched_trafilatura import untouched

pytestmark = pytest.mark.differential("stages/html")

importlib.import_module("trafilatura.baseline")
BASELINE, CORE, UTILS = (untouched(name) for name in ("baseline", "core", "utils"))
MARKUP = linear_markup(BASELINE._HTML_MARKUP)


def written(*parts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=14).map("".join)


@given(written("<", ">", "/", " ", "!", "<!DOCTYPE", "doctype", "html", "\n", '"').map("<!DOCTYPE".__add__))
def test_a_doctype_with_a_slash_goes_alike(text: str) -> None:
    assert DOCTYPE.sub("", text, count=1) == UTILS.DOCTYPE_TAG.sub("", text, count=1)


@given(written("<", ">", "/", " ", "=", "a", "p", "<p", "<span", "<s", "</s", "\n", "x", "<H1"))
def test_markup_is_found_alike(text: str) -> None:
    ours, theirs = MARKUP.search(text), BASELINE._HTML_MARKUP.search(text)
    assert (ours and ours.span()) == (theirs and theirs.span())


@given(
    written(
        '"@type"',
        ":",
        "[",
        "]",
        " ",
        '"DiscussionForumPosting"',
        '"',
        "@type",
        "DiscussionForumPosting",
        ",",
        "\n",
    )
)
def test_forum_postings_are_found_alike(text: str) -> None:
    assert ForumPosting().search(text) == bool(CORE._DISCUSSION_FORUM_POSTING_RE.search(text))


def test_forum_postings_are_found_where_a_list_of_types_names_them() -> None:
    listed = '"@type": ["Article", "DiscussionForumPosting"]'
    for text, is_posting in (
        (listed, True),
        (listed.replace(", ", "], "), False),
        ('"@type":"DiscussionForumPosting"', True),
        ('"description": "DiscussionForumPosting"', False),
    ):
        assert ForumPosting().search(text) is is_posting
        assert bool(CORE._DISCUSSION_FORUM_POSTING_RE.search(text)) is is_posting


def test_the_patterns_end_on_long_texts() -> None:
    # Each of these took trafilatura's patterns minutes.
    assert not MARKUP.search("<p " + "=" * 1_000_000)
    assert not MARKUP.search("<p =" * 250_000)
    assert not DOCTYPE.search("<!DOCTYPE" + "/" * 1_000_000 + "<")
    assert not DOCTYPE.search("<!DOCTYPE" + "/<" * 500_000)
    assert not ForumPosting().search('"@type":[' * 100_000)
    assert not ForumPosting().search('"@type"' + " " * 1_000_000)
