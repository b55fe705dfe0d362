"""The step as a chain sees it: order, ledger, edits, languages, and what the recipe may ask."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.recipe import RecipeError, parse_table
from stages.document import Document, Edit, Rejection
from stages.quality.options import QualityTable, limits
from stages.quality.rules import Variant
from stages.quality.step import quality_step
from tests.support.inputs.quality_texts import EDGES, document, filler, gopher_words, judge, verdict


def table(**keys: Any) -> QualityTable:
    return parse_table(
        QualityTable, {name: list(v) if isinstance(v, tuple) else v for name, v in keys.items()}
    )


def test_rule_sets_are_evaluated_in_the_order_listed() -> None:
    assert verdict("", "gopher_quality", "gopher_repetition") == "gopher_quality.too_few_words"
    assert verdict("", "gopher_repetition", "gopher_quality") == "gopher_repetition.empty"
    assert verdict("", "fineweb", "c4") == "fineweb.empty"


def test_a_rejection_carries_rule_value_and_threshold() -> None:
    outcome = judge(gopher_words(49), "gopher_quality")
    assert isinstance(outcome, Rejection)
    assert outcome.finding.stage == "quality"
    assert (outcome.finding.value, outcome.finding.threshold, outcome.finding.rejected) == (49.0, 50.0, True)
    assert outcome.findings == ()


def test_with_the_whole_ledger_every_rule_is_kept_and_the_first_decides() -> None:
    outcome = judge("#" * 30, "gopher_quality", "gopher_repetition", ledger="all")
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "gopher_quality.too_few_words"
    rejected = [finding.rule for finding in outcome.findings if finding.rejected]
    assert "gopher_quality.too_many_hashes" in rejected
    assert len(outcome.findings) == 10 + 14 - 1
    kept = judge(gopher_words(60), "gopher_quality", ledger="all")
    assert isinstance(kept, Document)
    assert len(kept.findings) == 10
    assert not any(finding.rejected for finding in kept.findings)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(EDGES), st.sampled_from(["datatrove", "paper", "dclm", "dolma"]))
def test_the_ledger_changes_no_verdict(edge: Any, variant: Variant) -> None:
    sets = ("gopher_repetition", "gopher_quality", "c4", "fineweb")
    text = edge.text[:20_000]
    first, everything = judge(text, *sets, variant=variant), judge(text, *sets, variant=variant, ledger="all")
    assert isinstance(first, Rejection) == isinstance(everything, Rejection)
    if isinstance(first, Rejection) and isinstance(everything, Rejection):
        assert first.finding == everything.finding
        assert first.document.text == everything.document.text
    elif isinstance(first, Document) and isinstance(everything, Document):
        assert (first.text, first.edits) == (everything.text, everything.edits)


def test_c4_removes_lines_and_says_how_many() -> None:
    good = [f"This is line {filler(number)} of text." for number in range(6)]
    page = "\n".join([good[0], "menu", "", good[1] + " [3]", *good[2:], "Please enable javascript here."])
    outcome = judge(page, "c4", c4_terminal_punctuation=False)
    assert isinstance(outcome, Document)
    assert outcome.text == "\n".join([good[0], good[1] + " ", *good[2:]])
    assert outcome.edits == (
        Edit(stage="quality", kind="c4.lines_removed", count=2),
        Edit(stage="quality", kind="c4.citations_removed", count=1),
    )


def test_c4_leaves_a_clean_page_alone_and_names_a_change_of_white_space() -> None:
    good = "\n".join(f"This is line {filler(number)} of text." for number in range(6))
    clean = judge(good, "c4")
    assert isinstance(clean, Document)
    assert (clean.text, clean.edits) == (good, ())
    spaced = judge("  " + good + "\n\n", "c4")
    assert isinstance(spaced, Document)
    assert (spaced.text, spaced.edits) == (good, (Edit(stage="quality", kind="c4.white_space", count=1),))


def test_rule_sets_after_c4_see_the_text_that_it_left() -> None:
    good = [f"This is a line {filler(number)} of text, long enough for it." for number in range(6)]
    page = "\n".join([*good, *["menu entry"] * 40])
    assert verdict(page, "fineweb") == "fineweb.too_many_short_lines"
    assert verdict(page, "c4", "fineweb") is None
    assert verdict(page, "fineweb", "c4") == "fineweb.too_many_short_lines"


def test_a_rejection_after_c4_holds_the_edited_document() -> None:
    good = [f"This is a line {filler(number)} of text, long enough for it." for number in range(6)]
    outcome = judge("\n".join([*good, "menu"]), "c4", "gopher_quality", min_words=5000)
    assert isinstance(outcome, Rejection)
    assert outcome.document.text == "\n".join(good)
    assert outcome.document.edits[0].kind == "c4.lines_removed"


def test_words_at_white_space_can_be_asked_for() -> None:
    text = " ".join(["didn't"] * 30)
    assert verdict(text, "gopher_quality", min_words=60, stop_words_off=("en",)) is None
    bare = {"stop_words_off": ("en",), "white_space_words": ("en",)}
    assert verdict(text, "gopher_quality", min_words=60, **bare) == "gopher_quality.too_few_words"


def test_own_stop_words_replace_the_built_in_ones() -> None:
    assert verdict(gopher_words(60), "gopher_quality", stop_words={"en": ("xx", "yy")}) is not None
    assert verdict(gopher_words(60, stop="xx yy"), "gopher_quality", stop_words={"en": ("xx", "yy")}) is None
    with pytest.raises(RecipeError, match=r"stop_words\.en has 0 words"):
        quality_step(QualityTable(stop_words={"en": ()}))


def test_a_threshold_that_the_variant_does_not_have_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"quality\.max_symbols_per_word = 0\.2: variant 'datatrove'"):
        quality_step(QualityTable(max_symbols_per_word=0.2))
    assert limits(QualityTable(max_symbols_per_word=0.2, variant="dclm"))["max_symbols_per_word"] == 0.2
    with pytest.raises(RecipeError, match=r"quality\.c4_min_sentences"):
        quality_step(QualityTable(variant="dolma", c4_min_sentences=2))


@pytest.mark.parametrize("variant", ["datatrove", "paper", "dclm", "dolma"])
def test_every_threshold_named_in_the_recipe_is_used(variant: Variant) -> None:
    used = limits(QualityTable(variant=variant))
    for name, default in used.items():
        changed = limits(dataclasses.replace(QualityTable(variant=variant), **{name: 7}))
        assert changed[name] == 7 != default
        assert {key: value for key, value in changed.items() if key != name} == {
            key: value for key, value in used.items() if key != name
        }


def test_thresholds_come_from_the_recipe() -> None:
    assert verdict(gopher_words(49), "gopher_quality", min_words=49) is None
    assert verdict(gopher_words(60), "gopher_quality", max_word_length=5) == "gopher_quality.words_too_long"


def test_the_table_is_read_from_a_recipe() -> None:
    read = table(rules=("fineweb",), variant="dolma", min_words=3, stop_words={"tr": ["ve"]})
    assert (read.rules, read.variant, read.min_words, read.stop_words) == (
        ("fineweb",),
        "dolma",
        3,
        {"tr": ("ve",)},
    )
    assert table().rules == ("gopher_quality", "gopher_repetition")
    for wrong in ({"rules": ("gopher",)}, {"variant": "redpajama"}, {"min_words": -1}, {"min_word": 3}):
        with pytest.raises(RecipeError):
            table(**wrong)


def test_no_state_passes_from_one_document_to_the_next() -> None:
    texts = [edge.text[:5000] for edge in EDGES if "100,00" not in edge.name]
    sets = ("gopher_repetition", "gopher_quality", "c4", "fineweb")
    step = quality_step(QualityTable(rules=sets))
    forward = [step(document(text)) for text in texts]
    backward = [step(document(text)) for text in reversed(texts)]
    assert forward == backward[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["datatrove", "paper", "dclm", "dolma"])
@pytest.mark.parametrize(
    "text",
    [
        "word and more. " * 700_000,
        "x\n" * 1_000_000,
        "".join(f"{number} " for number in range(1_400_000)),
        "{[(" * 1_000_000,
        "Yes. " * 2_000_000,
    ],
    ids=["one line of 10 MB", "a million lines", "numbers", "brackets", "sentences"],
)
def test_a_huge_page_is_judged_by_every_rule(text: str, variant: Variant) -> None:
    step = quality_step(
        QualityTable(
            rules=("gopher_repetition", "gopher_quality", "c4", "fineweb"), variant=variant, ledger="all"
        )
    )
    assert isinstance(step(document(text)), Rejection)
