"""How often an epoch reads a document: FineWeb-2's tables, Dolma 3's curve, exact counts, contradictions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, parse_table
from stages.tokens.repeats import RepeatTable, check_repeat, curve_times, num_more, rows_of

FINEWEB2 = {"1": 1, "2": 2, "3": 3, "5": 5, "100": 8, "1000": 1}
"""huggingface/fineweb-2 at d0defb2, the default of misc/rehydration."""
ITALIAN = {
    "1": 1, "2": 3, "3": 4, "4": 5, "5": 6, "7": 7, "8": 8, "11": 9, "17": 10, "26": 9, "31": 8, "46": 7, "52": 6,
    "63": 5, "76": 4, "96": 3, "118": 2, "122": 3, "125": 2, "145": 1,
}  # fmt: skip
"""misc/rehydration/weights/up_to_10_reps.json, of ita_Latn."""


def table_of(**keys: Any) -> RepeatTable:
    table = parse_table(RepeatTable, keys)
    check_repeat(table)
    return table


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (FINEWEB2, {1: 1, 2: 2, 3: 3, 4: 3, 5: 5, 99: 5, 100: 8, 999: 8, 1000: 1, 10**9: 1}),
        (ITALIAN, {1: 1, 2: 3, 6: 6, 7: 7, 10: 8, 16: 9, 17: 10, 25: 10, 30: 9, 121: 2, 124: 3, 145: 1}),
    ],
)
def test_a_cluster_is_read_as_fineweb2_rehydrates_it(rows: dict[str, int], expected: dict[int, int]) -> None:
    table = table_of(by="cluster_size", table=rows)
    found = rows_of(np.array(list(expected)), table.firsts)
    assert [table.times[row] for row in found] == list(expected.values())


def test_a_language_has_rows_of_its_own() -> None:
    table = table_of(by="cluster_size", table=FINEWEB2, language={"ita_Latn": {"table": ITALIAN}})
    italian = table.rows_for("ita_Latn")
    assert (italian.firsts[3], italian.times[3]) == (4, 5) and table.rows_for(None) is table
    assert table.firsts == (1, 2, 3, 5, 100, 1000)


def test_rows_are_in_order_of_their_sizes_however_they_are_written() -> None:
    table = table_of(by="cluster_size", table={"10": 4, "9": 3, "1": 0.1})
    assert table.firsts == (1, 9, 10) and table.times == (Fraction(1, 10), 3, 4)


def test_the_curve_is_dolmas() -> None:
    # Computed from dolma3's notebook: 20 buckets of equal tokens, the lowest 0.4 discarded, 7 times at most.
    found = curve_times([5] * 20, 1.5, 0.4, 7)
    expected = [0.016, 0.116, 0.317, 0.621, 1.03, 1.546, 2.171, 2.907, 3.756, 4.72, 5.8, 7.0]
    assert np.allclose(found, [0] * 8 + expected, atol=5e-4)
    assert curve_times([5] * 20, 1.0, 0.4, 7)[-1] == pytest.approx(5.764, abs=5e-4)  # the steepest curve


@given(
    st.lists(st.integers(0, 10**5), min_size=1, max_size=30).filter(any),
    st.floats(0.05, 3),
    st.floats(0, 0.9),
    st.floats(1, 20),
)
def test_a_curve_reads_what_is_asked_and_no_bucket_more_often_than_a_higher_one(
    tokens: list[int], target: float, discard: float, most: float
) -> None:
    try:
        times = curve_times(tokens, target, discard, most)
    except RecipeError as error:
        assert "cannot be reached" in str(error)
        return
    total = sum(tokens)
    read = math.fsum(each * num / total for each, num in zip(times, tokens, strict=True))
    assert read == pytest.approx(target, rel=1e-9)
    held = [each for each, num in zip(times, tokens, strict=True) if num]
    assert all(low <= high * (1 + 1e-6) for low, high in itertools.pairwise(held))
    assert held[-1] <= most * (1 + 1e-9)
    below = np.cumsum(tokens) / total <= discard * (1 - 1e-12)
    assert all(each == 0 for each, discarded in zip(times, below.tolist(), strict=True) if discarded)


def test_a_curve_over_nothing_is_read_never() -> None:
    assert curve_times([0, 0, 0], 1.5, 0.4, 7) == [0, 0, 0]


@given(st.fractions(0, 100), st.integers(0, 10**12))
def test_readings_are_exact(times: Fraction, num: int) -> None:
    more = num_more(times, num)
    assert 0 <= more <= num
    assert abs(math.floor(times) * num + more - times * num) <= Fraction(1, 2)


WRONG = [
    ({"table": {"1": 2}}, r"\[repeat\] does not say by what"),
    ({"target": 1.5}, r"\[repeat\] does not say by what"),
    ({"by": "cluster_size"}, r"not how often: give repeat\.table$"),
    ({"by": "bucket"}, r"not how often: give repeat\.table, or a target"),
    ({"by": "bucket", "table": {"0": 1}, "target": 1.5}, "both table and target"),
    ({"by": "cluster_size", "table": {"1": 1}, "target": 1.5}, r'repeat\.target = 1\.5 is for by = "bucket"'),
    ({"by": "cluster_size", "table": {"1": 1}, "bucket": "q"}, r"repeat\.bucket = 'q' is for by"),
    ({"by": "cluster_size", "table": {"1": 1}, "most": 3}, r"repeat\.most is for a curve"),
    ({"by": "bucket", "table": {"0": 1}, "discard": 0.1}, r"repeat\.discard is for a curve"),
    ({"by": "cluster_size", "table": {"2": 2}}, r"repeat\.table begins at 2 .*add a row 1 = 1"),
    ({"by": "bucket", "table": {"1": 2}}, r"repeat\.table begins at 1 .*add a row 0 = 1"),
    ({"by": "cluster_size", "table": {"0": 2}}, r"repeat\.table\.0: expected cluster sizes.* from 1"),
    ({"by": "cluster_size", "table": {"1": 1, "01": 2}}, r"repeat\.table\.01: expected cluster sizes"),
    ({"by": "cluster_size", "table": {"1": 1, "2.5": 2}}, r"repeat\.table\.2\.5: expected cluster sizes"),
    ({"by": "cluster_size", "table": {"1": 1, "²": 2}}, r"repeat\.table\.²: expected cluster sizes"),
    (
        {"by": "cluster_size", "table": {"1": 1, "9" * 5000: 2}},
        "whole numbers from 1 on of at most 15 digits",
    ),
    ({"by": "cluster_size", "table": {"1": 0, "2": 0}}, "every row is read 0 times"),
    ({"by": "cluster_size", "table": {"1": -1}}, "expected at least 0"),
    ({"by": "cluster_size", "table": {"1": 101}}, "expected at most 100"),
    ({"by": "cluster_size", "table": {"1": float("nan")}}, "expected a finite number"),
    ({"by": "bucket", "target": 4.3}, r"repeat\.target = 4\.3 cannot be reached: .*at most 4\.2 times"),
    ({"by": "url", "table": {"1": 1}}, "cluster_size"),
    ({"language": {"de": {"table": {"1": 2}}}}, r"\[repeat\] does not say by what"),
    ({"by": "cluster_size", "language": {"de": {"table": {"1": 2}}}}, r"not how often: give repeat\.table$"),
    ({"by": "cluster_size", "table": {"1": 1}, "language": {}}, r"\[repeat\.language\] names no language"),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {}}},
        r"repeat\.language\.de\.table is empty",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"table": {}}}},
        r"repeat\.language\.de\.table is empty and says nothing of how often",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"table": {"3": 1}}}},
        r"repeat\.language\.de\.table begins at 3 .*add a row 1 = 1",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"table": {"1": 1, "-2": 1}}}},
        r"repeat\.language\.de\.table\.-2: expected cluster sizes",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"table": {"1": 0, "4": 0}}}},
        r"repeat\.language\.de\.table: every row is read 0 times, so that an epoch would hold nothing in that",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"table": {"1": 101}}}},
        r"language\.de\.table\.1 = 101\.0: expected at most 100",
    ),
    (
        {"by": "cluster_size", "table": {"1": 1}, "language": {"de": {"by": "bucket", "table": {"1": 1}}}},
        r"unknown key 'language\.de\.by'",
    ),
    (
        {"by": "bucket", "table": {"0": 1}, "language": {"de": {"table": {"1": 1}}}},
        r'\[repeat\.language\] is for by = "cluster_size"',
    ),
]


@pytest.mark.parametrize(("keys", "says"), WRONG)
def test_a_table_that_contradicts_itself_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says) as raised:
        table_of(**keys)
    assert "\n" not in str(raised.value)


def test_a_curve_that_real_buckets_do_not_allow_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"the highest bucket, which holds 0\.01 of the tokens, 7\.\d+ times"
    ):
        curve_times([99, 1], 4.199, 0.4, 7)
