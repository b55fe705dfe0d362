"""Where the four variants of the published rules differ, one text for each difference."""

from __future__ import annotations

from typing import Any

import pytest
from fasttext.FastText import tokenize
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document, Finding, Rejection
from stages.quality.options import QualityTable
from stages.quality.rules import Variant
from stages.quality.step import every_rule
from stages.quality.text_view import TextView, fasttext_words, uax29_words
from stages.quality.words import Splitter
from tests.support.inputs.quality_texts import exactly, filler, fillers, gopher_words, judge, verdict

VARIANTS: tuple[Variant, ...] = ("datatrove", "paper", "dclm", "dolma")
Q, R, C, F = "gopher_quality", "gopher_repetition", "c4", "fineweb"


def verdicts(text: str, rules: str, **keys: Any) -> dict[str, str | None]:
    """What each variant says, without the rule set's name."""
    said = {variant: verdict(text, rules, variant=variant, **keys) for variant in VARIANTS}
    return {variant: rule and rule.removeprefix(f"{rules}.") for variant, rule in said.items()}


def measured(text: str, rules: str, rule: str, variant: Variant) -> float:
    """What one rule of a variant measures."""
    outcome = judge(text, rules, variant=variant, ledger="all")
    findings: tuple[Finding, ...]
    findings = (outcome.finding, *outcome.findings) if isinstance(outcome, Rejection) else outcome.findings
    (value,) = (finding.value for finding in findings if finding.rule == f"{rules}.{rule}")
    assert value is not None
    return value


@pytest.mark.differential("stages/quality")
@given(st.text(" \n\t\v\f\r\0\u00a0\u2028aB1-'\u0301\"é中", max_size=40))
def test_dclm_counts_the_words_that_fasttext_cuts_and_a_letter_or_digit_begins(text: str) -> None:
    # mlfoundations/dclm, baselines/mappers/core_utils.py: split_words with the default model and
    # ignore_punctuation.
    expected = [word for word in tokenize(text) if word[0].isalnum()]
    assert fasttext_words(TextView(text, Splitter(None, ()))) == expected


def lines(*texts: str) -> str:
    return "\n".join(texts)


def test_an_ordinary_text_passes_every_variant() -> None:
    assert verdicts(gopher_words(60), Q) == dict.fromkeys(VARIANTS)
    page = "\n\n".join(" ".join(fillers(60, 6, 60 * part)) + "." for part in range(2))
    assert verdicts(page, R) == dict.fromkeys(VARIANTS)
    assert verdicts(page.replace(" ", " x ", 1), F)["datatrove"] is None


def test_what_counts_as_a_word() -> None:
    contraction = gopher_words(49).rsplit(" ", 1)[0] + " don't"
    assert verdicts(contraction, Q) == {
        "datatrove": None,
        "paper": "too_few_words",
        "dclm": "too_few_words",
        "dolma": "too_few_words",
    }
    hyphened = gopher_words(49).rsplit(" ", 1)[0] + " half-way"
    assert verdicts(hyphened, Q)["dclm"] == verdicts(hyphened, Q)["paper"] == "too_few_words"
    symbols = gopher_words(49) + " — ! ?"
    assert verdicts(symbols, Q) == {
        "datatrove": "too_few_words",
        "paper": None,
        "dclm": "too_few_words",
        "dolma": None,
    }


def test_dolma_takes_the_median_length_and_the_others_the_mean() -> None:
    text = "the of " + " ".join([*fillers(50, 4), *fillers(10, 60)])
    assert verdicts(text, Q) == {
        "datatrove": "words_too_long",
        "paper": "words_too_long",
        "dclm": "words_too_long",
        "dolma": None,
    }
    assert measured(text, Q, "words_too_long", "dolma") == 4


def test_dclm_adds_hashes_and_ellipses_up_and_dolma_counts_words_that_hold_them() -> None:
    text = gopher_words(60) + " #a #b #c #d ... ... ... ... end"
    assert verdicts(text, Q) == {"datatrove": None, "paper": None, "dclm": "too_many_symbols", "dolma": None}
    one_word = gopher_words(60) + " " + "#" * 20
    assert verdicts(one_word, Q) == {
        "datatrove": "too_many_hashes",
        "paper": "too_many_hashes",
        "dclm": "too_many_symbols",
        "dolma": None,
    }


def test_dclm_knows_the_spaced_ellipsis() -> None:
    text = lines(
        *(" ".join(fillers(7, 6, 10 * row)) + " . . ." for row in range(4)), "the of " + gopher_words(60)
    )
    assert verdicts(text, Q)["dclm"] == "too_many_ellipsis_lines"
    assert verdicts(text, Q)["datatrove"] is None
    assert verdicts(text, Q)["paper"] is None


def test_dolma_knows_no_ellipsis_of_three_dots() -> None:
    rows = [" ".join(fillers(7, 6, 10 * row)) for row in range(9)]
    dots = lines(*(row + "..." for row in rows[:4]), *rows[4:], "the of")
    marks = lines(*(row + "…" for row in rows[:4]), *rows[4:], "the of")
    assert verdicts(dots, Q) == {
        "datatrove": "too_many_ellipsis_lines",
        "paper": "too_many_ellipsis_lines",
        "dclm": "too_many_ellipsis_lines",
        "dolma": None,
    }
    assert verdicts(marks, Q)["dolma"] == "too_many_ellipsis_lines"


@pytest.mark.parametrize(
    ("bullet", "known"),
    [
        ("•", {"datatrove", "paper", "dclm"}),
        ("●", {"dclm"}),
        ("*", {"paper", "dclm", "dolma"}),
        ("-", set(VARIANTS)),
    ],
)
def test_each_variant_has_its_own_bullets(bullet: str, known: set[str]) -> None:
    text = lines(*(f"{bullet} the of " + " ".join(fillers(20, 6, 20 * row)) for row in range(10)))
    expected = {variant: "too_many_bullet_lines" if variant in known else None for variant in VARIANTS}
    assert verdicts(text, Q) == expected


def test_dolma_sees_bullets_only_at_the_very_start_and_counts_empty_lines() -> None:
    rows = ["- the of " + " ".join(fillers(20, 6, 20 * row)) for row in range(10)]
    assert verdicts(lines(*(" " + row for row in rows)), Q)["dolma"] is None
    assert verdicts(lines(*(" " + row for row in rows)), Q)["dclm"] == "too_many_bullet_lines"
    assert verdicts("\n\n".join(rows), Q)["dolma"] is None
    assert verdicts("\n\n".join(rows), Q)["dclm"] == "too_many_bullet_lines"


def test_stop_words_by_case_and_by_difference() -> None:
    few = "too_few_stop_words"
    twice = gopher_words(60, stop="the the")
    assert verdicts(twice, Q) == {"datatrove": few, "paper": few, "dclm": None, "dolma": None}
    capitals = gopher_words(60, stop="The Of")
    assert verdicts(capitals, Q) == {"datatrove": few, "paper": None, "dclm": None, "dolma": few}


def test_the_order_of_paragraph_and_line_rules() -> None:
    text = "\n\n".join(["a line of words that repeats"] * 5)
    assert verdicts(text, R) == {
        "datatrove": "duplicate_paragraph_share",
        "paper": "duplicate_line_share",
        "dclm": "duplicate_line_share",
        "dolma": "duplicate_line_share",
    }


def test_dolma_has_no_paragraph_rules() -> None:
    parts = [lines(f"{filler(row, 5)} {filler(row + 1, 5)}", *fillers(3, 30, 50 * row)) for row in range(10)]
    text = "\n\n".join([*parts[:6], *[lines("zz", "yy")] * 4])
    names = {finding.rule for finding in _ledger(text, R, "dolma")}
    assert not any("paragraph" in name for name in names)
    assert any("paragraph" in finding.rule for finding in _ledger(text, R, "dclm"))


def _ledger(text: str, rules: str, variant: Variant) -> tuple[Finding, ...]:
    outcome = judge(text, rules, variant=variant, ledger="all")
    return (outcome.finding, *outcome.findings) if isinstance(outcome, Rejection) else outcome.findings


def test_whether_the_first_of_equal_lines_counts() -> None:
    rows = [" ".join(fillers(20, 6, 20 * row)) for row in range(8)]
    text = lines(*rows, "zz", "zz")
    assert measured(text, R, "duplicate_line_share", "datatrove") == pytest.approx(0.1)
    assert measured(text, R, "duplicate_line_share", "paper") == pytest.approx(0.1)
    assert measured(text, R, "duplicate_line_share", "dclm") == pytest.approx(0.2)
    assert measured(text, R, "duplicate_line_share", "dolma") == pytest.approx(0.2)


def test_dolma_counts_empty_lines_as_duplicates() -> None:
    text = "\n\n".join(" ".join(fillers(20, 6, 20 * row)) for row in range(4))
    assert measured(text, R, "duplicate_line_share", "dolma") == pytest.approx(3 / 7)
    assert measured(text, R, "duplicate_line_share", "dclm") == 0


def test_dolma_allows_more_characters_in_duplicate_lines() -> None:
    row = " ".join(fillers(1, 30))
    text = lines(row, *(" ".join(fillers(7, 6, 20 * number)) for number in range(5)), row)
    assert 0.2 < measured(text, R, "duplicate_line_chars", "dolma") < 0.3
    assert (
        verdict(text, R, variant="dolma", max_top_2_gram=1.0, max_top_3_gram=1.0, max_top_4_gram=1.0) is None
    )


def test_a_top_gram_that_occurs_once() -> None:
    text = "seven words are all that it has"
    assert measured(text, R, "top_2_gram", "datatrove") == pytest.approx(len("seven words") / len(text))
    assert measured(text, R, "top_2_gram", "paper") == 0
    assert measured(text, R, "top_2_gram", "dclm") == 0
    assert measured(text, R, "top_2_gram", "dolma") == pytest.approx(
        len("sevenwords") / len(text.replace(" ", ""))
    )


def test_of_equally_common_grams_paper_and_dclm_take_the_longest() -> None:
    text = "aa bb xx1 aa bb xx2 cccc dddd xx3 cccc dddd"
    chars = len(text.replace(" ", ""))
    assert measured(text, R, "top_2_gram", "datatrove") == pytest.approx(2 * 5 / len(text))
    assert measured(text, R, "top_2_gram", "paper") == pytest.approx(2 * 8 / chars)
    assert measured(text, R, "top_2_gram", "dclm") == pytest.approx(2 * 8 / chars)
    assert measured(text, R, "top_2_gram", "dolma") == pytest.approx(2 * 4 / chars)


def test_how_duplicate_grams_are_counted() -> None:
    phrase = "aa bb cc dd ee"
    text = exactly(f"{phrase} xxxx {phrase} yyyy {phrase} zzzz", 400)
    solid = len(text.replace(" ", ""))
    assert measured(text, R, "duplicate_5_grams", "datatrove") == pytest.approx(2 * 10 / len(text))
    assert measured(text, R, "duplicate_5_grams", "paper") == pytest.approx(3 * 10 / solid)
    assert measured(text, R, "duplicate_5_grams", "dclm") == pytest.approx(3 * 10 / solid)
    words = text.split()
    grams = sum(len("".join(words[start : start + 5])) for start in range(len(words) - 4))
    assert measured(text, R, "duplicate_5_grams", "dolma") == pytest.approx(3 * 10 / grams)


def test_overlapping_grams_count_once_for_dclm_and_often_for_dolma() -> None:
    text = "one " * 7 + " ".join(fillers(60))
    assert measured(text, R, "duplicate_5_grams", "dclm") == pytest.approx(7 * 3 / len(text.replace(" ", "")))
    assert measured(text, R, "duplicate_5_grams", "datatrove") == pytest.approx(5 * 3 / len(text))
    words = text.split()
    grams = sum(len("".join(words[start : start + 5])) for start in range(len(words) - 4))
    assert measured(text, R, "duplicate_5_grams", "dolma") == pytest.approx(3 * 15 / grams)


def test_dclm_rejects_a_page_without_lines_and_passes_one_line() -> None:
    assert verdicts(" \n ", R)["dclm"] == "empty"
    assert measured("x", R, "duplicate_line_share", "dclm") == 0


def test_c4_words_and_sentences() -> None:
    rows = lines(*(f"Line {filler(number)} here." for number in range(5)))
    assert verdicts(rows, C) == {
        "datatrove": None,
        "paper": "too_few_sentences",
        "dclm": "too_few_sentences",
        "dolma": None,
    }
    three = lines(*(f"This line {filler(number)} is longer." for number in range(3)))
    assert verdicts(three, C) == {
        "datatrove": "too_few_sentences",
        "paper": None,
        "dclm": None,
        "dolma": None,
    }


def test_an_apostrophe_ends_a_line_for_datatrove_alone() -> None:
    rows = lines(*(f"She said 'the line {filler(number)} ends'" for number in range(5)))
    assert verdicts(rows, C)["datatrove"] is None
    assert verdicts(rows, C)["paper"] == "too_few_sentences"


def test_datatrove_counts_words_before_citations_go_and_the_others_after() -> None:
    rows = lines(*(f"Four words {filler(number)} [12] ok." for number in range(5)))
    assert verdicts(rows, C)["paper"] == "too_few_sentences"
    assert verdicts(rows, C, c4_min_words_per_line=5)["datatrove"] is None


def test_dclm_rejects_a_page_that_lost_more_than_a_twentieth_of_its_words() -> None:
    good = [f"This is line {filler(number)} of text." for number in range(20)]
    lost = lines(*good, "a menu entry and some more words of it")
    assert verdicts(lost, C) == {
        "datatrove": None,
        "paper": None,
        "dclm": "too_many_words_removed",
        "dolma": None,
    }
    assert verdicts(lines(*good, "menu"), C)["dclm"] is None
    assert verdict(lost, C, variant="dclm", c4_max_removed_words=1.0) is None
    cited = lines(*(f"This is line {filler(number)} of [3] text." for number in range(20)))
    assert verdicts(cited, C)["dclm"] == "too_many_words_removed"


def test_dolma_rejects_pages_by_lines_that_go_anyway_and_keeps_lines_as_they_are() -> None:
    good = [f"This is [1] line {filler(number)} of text." for number in range(5)]
    assert verdicts(lines(*good, "code {"), C)["dolma"] == "curly_bracket"
    assert verdicts(lines(*good, "code {"), C)["paper"] is None
    assert verdicts(lines(*good, "enable javascript"), C)["dolma"] == "javascript"
    assert verdicts(lines(*good, "some JavaScript text"), C)["dolma"] == "javascript"
    assert verdicts(lines(*good, "some JavaScript: text"), C)["dolma"] is None
    assert verdicts(lines(*good, "lorem ipsum"), C)["dolma"] == "lorem_ipsum"
    outcome = judge(lines(*good, "the privacy policy is here.", "menu"), C, variant="dolma")
    assert isinstance(outcome, Document)
    assert outcome.text == lines(*good, "the privacy policy is here.")


def test_fineweb_bounds_are_inclusive_in_the_paper() -> None:
    rows = [" ".join(fillers(6, 6, 7 * row)) + ("." if row < 12 else " and") for row in range(100)]
    assert verdicts(lines(*rows), F, fineweb_max_short_lines=1.0) == {
        "datatrove": None,
        "paper": "too_little_line_punctuation",
        "dclm": None,
        "dolma": None,
    }


def test_the_paper_has_no_rule_on_line_feeds() -> None:
    rows = lines(*(f"{filler(row, 40)}." for row in range(10)))
    assert verdicts(rows, F) == {
        "datatrove": "too_many_newlines",
        "paper": None,
        "dclm": "too_many_newlines",
        "dolma": "too_many_newlines",
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_rule_of_every_variant_can_be_measured_on_any_text(variant: Variant) -> None:
    rules = [
        rule.name
        for found in every_rule(QualityTable(rules=(Q, R, C, F), variant=variant))
        for rule in found.rules
    ]
    for text in ("", " ", "\n", "x", "a b", ". . .", "\ud800", gopher_words(60), "字" * 300):
        judged = judge(text, Q, R, C, F, variant=variant, ledger="all")
        findings = (judged.finding, *judged.findings) if isinstance(judged, Rejection) else judged.findings
        names = [finding.rule for finding in findings]
        assert sorted(names) == sorted(rules)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("किताब की कीमत", ["किताब", "की", "कीमत"]),
        ("ex\u00adample of e\u0301t\u200ca", ["ex\u00adample", "of", "e\u0301t\u200ca"]),
        ("don't 3,000.5 a_b x: y", ["don't", "3,000.5", "a_b", "x", "y"]),
        ("שָׁלוֹם كِتَابٌ", ["שָׁלוֹם", "كِتَابٌ"]),
    ],
)
def test_dclm_s_words_end_at_the_boundaries_of_uax_29(text: str, words: list[str]) -> None:
    assert uax29_words(TextView(text, Splitter("en"))) == words
