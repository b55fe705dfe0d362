"""Edits of lines and texts: cases worked from DCLM's modifiers.py, datamap-rs and datatrove's formatters."""

from __future__ import annotations

import pytest

from stages.document import Document, Rejection
from stages.quality.options import QualityTable
from stages.quality.rule_sets.madlad import is_suspect, sentences
from stages.quality.step import quality_step
from stages.quality.text_view import TextView
from stages.quality.words import Splitter
from tests.support.inputs.quality_texts import document

LONG = " ".join(f"words of plain prose number {number}" for number in range(40))
"""So many words that a line can go without the page."""


def edited(text: str, rules: str, **keys: object) -> Document | str:
    outcome = quality_step(QualityTable(rules=(rules,), **keys))(document(text, None))  # type: ignore[arg-type]
    return outcome.finding.rule if isinstance(outcome, Rejection) else outcome


def lines_left(*lines: str, manner: str) -> list[str]:
    """What becomes of the lines between two long ones."""
    outcome = edited("\n".join([LONG, *lines, LONG]), "line_edits", line_edits=manner)
    assert isinstance(outcome, Document)
    left = outcome.text.split("\n")
    assert (left[0], left[-1]) == (LONG, LONG)
    return left[1:-1]


CASES = [
    # a line, then what DCLM and Dolma 3 leave of it (None: nothing)
    ("HALF half of it", "HALF half of it", "HALF half of it"),
    ("MORE than A HALF IS", None, None),
    ("ÄÖÜ ä", None, "ÄÖÜ ä"),  # 3 of 5 characters, and of 9 bytes
    ("2024 2025", "2024 2025", "2024 2025"),  # the space is no digit
    ("20242025", None, None),
    ("٢٠٢٤٢٠٢٥ ", None, None),  # one word
    ("3 likes", None, None),
    ("1,234.5K Likes!", None, None),
    ("- 12 comments -", None, None),
    ("4.2M VIEWS now", "4.2M VIEWS now", "4.2M VIEWS now"),
    ("7b\tfollowers", None, None),
    ("12 thumbs up", "12 thumbs up", "12 thumbs up"),
    ("K likes all", "K likes all", "K likes all"),  # a digit comes first
    ("12 comments on this page", "12 comments on this page", "12 comments on this page"),
    ("comments 12", "comments 12", "comments 12"),
    ("Single", None, None),
    ("well-known", None, "well-known"),  # two words for Unicode, one between white space
    ("", "", ""),
    ("   ", None, None),
    ("3 items in cart", "3", "3 "),
    ("3 Items In Cart", "3", "3 Items In Cart"),
    ("items in cart", None, None),
    ("see items in cart now", "see now", "see now"),
    ("a b c d e f g h items in cart", "a b c d e f g h items in cart", "a b c d e f g h items in cart"),
    ("The news of the day Read more...", "The news of the day", "The news of the day"),
    ("The news of the day read more...", "The news of the day", "The news of the day read more..."),
    ("The news Read moreABC", "The news", "The news"),
    ("Read more... of the news", "Read more... of the news", "Read more... of the news"),
    ("Sign-in to read", "to read", "to read"),
    ("sign-in to read", "to read", "sign-in to read"),
    ("Please Sign-in to read", "Please Sign-in to read", "Please Sign-in to read"),
]


@pytest.mark.parametrize(("line", "by_dclm", "by_dolma3"), CASES, ids=[repr(case[0]) for case in CASES])
def test_what_becomes_of_a_line(line: str, by_dclm: str | None, by_dolma3: str | None) -> None:
    assert lines_left(line, manner="dclm") == ([] if by_dclm is None else [by_dclm])
    assert lines_left(line, manner="dolma3") == ([] if by_dolma3 is None else [by_dolma3])


def test_a_page_goes_with_more_than_a_twentieth_of_its_words() -> None:
    prose = "\n".join("some plain words of a line" for _ in range(19))
    at_the_bound = f"{prose}\nSIX WORDS IN LOUD CAPITALS HERE"  # 6 of 120 words
    kept = edited(at_the_bound, "line_edits")
    assert isinstance(kept, Document) and kept.text == prose
    assert [(edit.kind, edit.count) for edit in kept.edits] == [
        ("line_edits.uppercase", 1),
        ("line_edits.chars_removed", 32),
    ]
    assert edited(f"{at_the_bound}\nONE MORE", "line_edits") == "line_edits.too_many_words_removed"
    assert edited("LOUD\nLOUDER", "line_edits") == "line_edits.empty"
    assert isinstance(
        edited(f"{at_the_bound}\nONE MORE", "line_edits", line_edits_max_removed_words=0.2), Document
    )


def test_dclm_strips_a_page_and_dolma3_does_not() -> None:
    kept = edited(f"  {LONG}\nLOUD LINE\n\n", "line_edits")
    assert isinstance(kept, Document) and kept.text == LONG
    other = edited(f"  {LONG}\r\nLOUD LINE\n\n\n\n\n{LONG}", "line_edits", line_edits="dolma3")
    assert isinstance(other, Document) and other.text == f"  {LONG}\n\n\n{LONG}".replace("\n\n\n", "\n\n")


def test_runs_of_line_feeds_and_short_pages() -> None:
    kept = edited("a\n\n\n\nb\n\nc\n\n\nd", "newlines")
    assert isinstance(kept, Document) and kept.text == "a\n\nb\n\nc\n\nd"
    assert [(edit.kind, edit.count) for edit in kept.edits] == [
        ("newlines.runs", 2),
        ("newlines.chars_removed", 3),
    ]
    assert edited("x" * 149, "length") == "length.too_few_chars"
    assert isinstance(edited("漢" * 150, "length"), Document)
    assert isinstance(edited("x", "length", min_chars=1), Document)


def of_sentences(*each: str) -> str:
    return " ".join(f"{sentence}." for sentence in each)


TITLE = "The Twelve Words Of This Title Begin With Capitals and Small ones"
PLAIN = "this is a plain sentence"


@pytest.mark.parametrize(
    ("sentence", "suspect"),
    [
        (PLAIN, False),
        (TITLE, True),
        ("The Eleven Words Of This Title All Begin With Capital Letters", False),
        ("One Two Three Four Five Six seven eight nine ten eleven twelve", False),  # just half
        ("download it", True),
        ("Download it", True),
        ("an mp3 of it", True),
        ("Developing", True),
        ("the sex of bees", True),
        ("the sexes of bees", False),
        ("end |", False),  # that entry was meant as an expression, and is looked for letter by letter
        ("Vol. 3", False),
        ("a b c d e f g h i j k", True),  # nine letters with spaces around
        ("one two", False),
    ],
)
def test_a_sentence_is_suspect_by_its_case_or_a_phrase(sentence: str, suspect: bool) -> None:
    assert is_suspect(sentence) == suspect


def test_a_page_needs_five_sentences_of_which_less_than_a_fifth_are_suspect() -> None:
    assert edited(of_sentences(*[PLAIN] * 4), "madlad") == "madlad.too_few_sentences"
    assert isinstance(edited(of_sentences(*[PLAIN] * 5), "madlad"), Document)
    assert edited(of_sentences(*[PLAIN] * 4, TITLE), "madlad") == "madlad.too_many_suspect_sentences"
    assert isinstance(edited(of_sentences(*[PLAIN] * 5, TITLE), "madlad"), Document)
    view = TextView("a! b?? c... d. \n\n e", Splitter(None, ()))
    assert sentences(view) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    "text",
    [
        "a\n| |\n||\nb",
        "|\n|\n\n|\nx | y\n",
        "no table",
        "",
        "   \n | \n",
        "caf\u00c3\u00a9 \x1b[31mred\x1b[0m &amp; \u201cquoted\u201d \ufb01sh",
        "l\u2019\u00e9t\u00e9 \u00e2\u20ac\u0153x\u00e2\u20ac\x9d \x07 end\r\nline",
    ],
)
def test_texts_are_mended_as_by_datatroves_formatters(text: str) -> None:
    formatters = pytest.importorskip("datatrove.pipeline.formatters")
    for rules, formatter in (
        ("ftfy", formatters.FTFYFormatter()),
        ("symbol_lines", formatters.SymbolLinesFormatter(symbols_to_remove=["|"], replace_char="\n")),
    ):
        kept = edited(text, rules)
        assert isinstance(kept, Document) and kept.text == formatter.format(text)
        assert bool(kept.edits) == (kept.text != text)


def test_edits_without_rules_are_seen_by_the_sets_behind_them() -> None:
    text = "x" * 140 + "\n" * 20 + "y"
    assert edited(text, "length") != "length.too_few_chars"
    outcome = quality_step(QualityTable(rules=("newlines", "length")))(document(text, None))
    assert isinstance(outcome, Rejection) and outcome.finding.value == 143
