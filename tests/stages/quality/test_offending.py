"""The lines that count against a text are those that the rules count."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.quality import offending
from stages.quality.options import QualityTable
from stages.quality.rule_sets.catalogue import RULE_SETS
from stages.quality.rules import TextRule
from stages.quality.step import quality_rules, rule_sets
from stages.quality.text_view import TextView
from stages.quality.words import Splitter
from stages.rules import Rule, offending_lines

LINES = st.sampled_from(
    ["- one", "• two", "* three", "The boats came home.", "and so on...", "more…", "#tag", "12 34", "{ x }", "",
     "The harbour was quiet that evening, said the keeper of the light.", "Short"]
)  # fmt: skip
TEXTS = st.lists(LINES, min_size=1, max_size=12).map("\n".join)


SPLITTER = functools.cache(lambda: Splitter("en", ("the", "and")))


@functools.cache
def rules_by_name(**keys: Any) -> dict[str, Rule]:
    return {each.name: each for each in quality_rules(QualityTable(rules=RULE_SETS, **keys))}


@functools.cache
def english_rules(**keys: Any) -> dict[str, TextRule]:
    sets = rule_sets(QualityTable(rules=RULE_SETS, **keys), "en")
    return {each.name: each for rules in sets for each in rules.rules}


def marked_by(rule: str, text: str, **keys: Any) -> frozenset[int]:
    return offending_lines(rules_by_name(**keys), rule, text)


def measured(rule: str, text: str, **keys: Any) -> float:
    return float(english_rules(**keys)[rule].measure(TextView(text, SPLITTER())))


@pytest.mark.parametrize(
    ("rule", "text", "marked"),
    [
        ("gopher_quality.too_many_bullet_lines", "- a\nb\n • c\n* d", {0, 2}),
        ("gopher_quality.too_many_ellipsis_lines", "a...\nb\nc…\nd.", {0, 2}),
        ("gopher_quality.too_many_ellipses", "a... b\nb\nc… d", {0, 2}),
        ("gopher_quality.too_many_hashes", "a #b\nc", {0}),
        ("gopher_quality.too_few_alphabetic_words", "1 2\na 3\n\n4", {0, 3}),
        ("gopher_quality.too_few_words", "a\nb", set()),
        ("gopher_repetition.duplicate_line_share", "a\nb\na\n\n\nc", {0, 2}),
        ("gopher_repetition.duplicate_line_chars", "a\nb\na", {0, 2}),
        ("gopher_repetition.duplicate_paragraph_share", "a\nb\n\nc\n\na\nb", {0, 1, 5, 6}),
        ("gopher_repetition.top_2_gram", "buy now\nand then\nbuy now\nso", {0, 2}),
        ("gopher_repetition.duplicate_5_grams", "a b c d e\nx\na b c d e\ny", {0, 2}),
        ("c4.lorem_ipsum", "a\nLorem Ipsum dolor", {1}),
        ("c4.curly_bracket", "a { b\nc", {0}),
        ("c4.too_few_sentences", "No end here at all\nThis one has its end.\nToo short.", {0, 2}),
        ("fineweb.too_little_line_punctuation", "No end\nAn end.", {0}),
        ("fineweb.too_many_short_lines", "short\n" + "long " * 20, {0}),
        ("fineweb.duplicate_line_chars", "a\nb\na", {0, 2}),
        ("language.low_score", "a", set()),
    ],
)
def test_the_lines_that_a_rule_counts_are_marked(rule: str, text: str, marked: set[int]) -> None:
    assert marked_by(rule, text) == marked


@pytest.mark.parametrize("variant", ["datatrove", "paper", "dclm", "dolma"])
@pytest.mark.parametrize("name", ["too_many_bullet_lines", "too_many_ellipsis_lines"])
@given(text=TEXTS)
def test_as_many_lines_are_marked_as_the_rule_has_in_its_share(variant: Any, name: str, text: str) -> None:
    lines = text.split("\n") if variant == "dolma" else text.splitlines() or [""]
    if variant in ("paper", "dclm"):
        lines = [line for line in text.split("\n") if line.strip()]
    share = measured(f"gopher_quality.{name}", text, variant=variant)
    marked = marked_by(f"gopher_quality.{name}", text, variant=variant)
    assert share == pytest.approx(len(marked) / len(lines) if lines else 0.0)


def test_of_a_long_text_the_first_words_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offending, "_MOST_WORDS", 8)
    text = "a b c\na b c\nd e\na b c"
    assert marked_by("gopher_repetition.top_3_gram", text) == {0, 1}


@given(text=TEXTS)
def test_no_line_without_text_is_ever_marked_and_a_rule_at_zero_marks_none(text: str) -> None:
    lines = text.split("\n")
    for rule in english_rules().values():
        marked = marked_by(rule.name, text)
        assert all(lines[number].strip() for number in marked)
        if rule.side == "above" and "gram" not in rule.name and marked and "c4" not in rule.name:
            assert measured(rule.name, text) > 0, rule.name
