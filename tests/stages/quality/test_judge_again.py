"""Other thresholds by what an earlier step measured: the verdict of a step that measures, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.document import Document, Outcome, Rejection
from stages.quality.options import QualityTable
from stages.quality.rules import Variant
from stages.quality.step import QualityStep, quality_rules, quality_step
from stages.rules import SIDES
from tests.support.inputs.quality_texts import EDGES, document, gopher_words

SETS = ("gopher_repetition", "gopher_quality", "c4", "fineweb", "length", "madlad")


def step(variant: Variant, rules: tuple[str, ...], **thresholds: float) -> QualityStep:
    table = QualityTable(rules=rules, variant=variant, no_table="pass", **thresholds)  # type: ignore[arg-type]
    return quality_step(table, keep_measured=True)


def thresholds_of(variant: Variant, rules: tuple[str, ...]) -> dict[str, float]:
    found = quality_rules(QualityTable(rules=rules, variant=variant, no_table="pass"))  # type: ignore[arg-type]
    has_one = [rule for rule in found if SIDES[rule.side].has_threshold and rule.threshold is not None]
    return {rule.keys[0].removeprefix("quality."): rule.threshold or 0.0 for rule in has_one}


def as_said(outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Rejection):
        return "rejected", outcome.finding, replace(outcome.document, measured=())
    return ("passed",)


def decided_by(outcome: Outcome) -> str | None:
    return outcome.finding.rule if isinstance(outcome, Rejection) else None


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(EDGES),
    st.sampled_from(["datatrove", "paper", "dclm", "dolma"]),
    st.lists(st.sampled_from(SETS), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_what_was_measured_gives_the_verdict_of_a_step_that_measures(
    edge: Any, variant: Variant, sets: list[str], data: st.DataObject
) -> None:
    rules = tuple(sets)
    known = thresholds_of(variant, rules)
    factors = st.sampled_from([0.0, 0.5, 0.99, 1.0, 1.01, 2.0])
    then, now = (
        {
            key: known[key] * data.draw(factors)
            for key in data.draw(st.sets(st.sampled_from(sorted(known)), max_size=4))
        }
        if known
        else {}
        for _ in range(2)
    )
    earlier, later = step(variant, rules, **then), step(variant, rules, **now)
    page = document(edge.text[:20_000])
    first = earlier(page)
    of = first.document if isinstance(first, Rejection) else first
    again = later.judge_again(page, earlier, dict(of.measured), decided_by(first))
    if again is not None:
        assert as_said(again) == as_said(later(page))
        if isinstance(again, Document) and isinstance(first, Rejection):
            assert again.text == page.text, "a text that goes on is as the step would have left it"


def test_a_stricter_threshold_is_always_told() -> None:
    earlier, later = (
        step("datatrove", ("gopher_quality", "gopher_repetition"), min_words=least) for least in (50, 80)
    )
    page = document(gopher_words(60))
    first = earlier(page)
    assert isinstance(first, Document)
    again = later.judge_again(page, earlier, dict(first.measured), None)
    assert isinstance(again, Rejection)
    assert (again.finding.rule, again.finding.value, again.finding.threshold) == (
        "gopher_quality.too_few_words",
        60.0,
        80.0,
    )


@pytest.mark.parametrize("turned_down_by", ["gopher_quality.too_few_words", "quality.error"])
def test_a_text_that_might_pass_now_has_to_be_measured(turned_down_by: str) -> None:
    earlier, later = (step("datatrove", ("gopher_quality",), min_words=least) for least in (80, 50))
    page = document(gopher_words(60))
    first = earlier(page)
    assert isinstance(first, Rejection)
    assert later.judge_again(page, earlier, dict(first.document.measured), turned_down_by) is None


def test_a_rejection_behind_an_edit_has_to_be_measured() -> None:
    """The text that the rule looked at is not kept."""
    sets = ("c4", "gopher_quality")
    earlier, later = (step("datatrove", sets, min_words=least, c4_min_sentences=0) for least in (2, 80))
    page = document(gopher_words(60) + ".")
    first = earlier(page)
    assert isinstance(first, Document), decided_by(first)
    assert later.judge_again(page, earlier, dict(first.measured), None) is None


def test_nothing_is_kept_without_being_asked_for() -> None:
    outcome = quality_step(QualityTable(rules=("gopher_quality",)))(document(gopher_words(60)))
    assert isinstance(outcome, Document) and outcome.measured == ()
