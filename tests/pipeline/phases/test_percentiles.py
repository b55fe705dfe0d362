"""Percentiles and bins as Nemotron-CC has them, found without all values at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.phases.buckets import bucket_numbers
from pipeline.phases.percentiles import Pieces, weighted_cuts

FLOATS = st.floats(allow_nan=False, allow_infinity=True, width=64)
WEIGHED = st.lists(st.tuples(FLOATS, st.integers(0, 10**6)), min_size=1, max_size=60)


def pieces(weighed: Sequence[tuple[float, int]], size: int) -> Pieces:
    cut = [weighed[at : at + size] for at in range(0, len(weighed), size)]
    return lambda: [
        (np.array([v for v, _ in piece], np.float64), np.array([w for _, w in piece])) for piece in cut
    ]


def by_sorting(weighed: Sequence[tuple[float, int]], percentile: int) -> float:
    """The definition: sort, sum up, search from the left."""
    ordered = sorted(weighed)
    total = sum(weight for _, weight in ordered)
    ends = list(accumulate(weight for _, weight in ordered))
    return next(
        value
        for (value, _), end in zip(ordered, ends, strict=True)
        if 100 * end >= percentile * total and end
    )


@given(WEIGHED, st.lists(st.integers(1, 100), min_size=1, max_size=5, unique=True), st.integers(1, 20))
def test_a_percentile_is_that_of_the_sorted_values(
    weighed: list[tuple[float, int]], percentiles: list[int], size: int
) -> None:
    found = weighted_cuts(pieces(weighed, size), percentiles)
    if not sum(weight for _, weight in weighed):
        assert found is None
        return
    assert found == [by_sorting(weighed, percentile) for percentile in percentiles]


def test_neither_order_nor_pieces_change_a_cut() -> None:
    rng = random.Random(3)
    weighed = [(rng.gauss(0, 1), rng.randint(1, 5_000)) for _ in range(3_000)]
    percentiles = list(range(5, 100, 5))
    first = weighted_cuts(pieces(weighed, 3_000), percentiles)
    for size in (1, 17, 999):
        rng.shuffle(weighed)
        assert weighted_cuts(pieces(weighed, size), percentiles) == first


def test_nemotrons_twenty_bins() -> None:
    # 20 documents of as many bytes: the cuts at 5, 10, …, 95 hundredths are the values of the first 19.
    weighed = [(number / 20, 100) for number in range(1, 21)]
    cuts = weighted_cuts(pieces(weighed, 7), list(range(5, 100, 5)))
    assert cuts == [number / 20 for number in range(1, 20)]
    assert bucket_numbers(np.array([0.0, 0.05, 0.07, 0.5, 0.95, 1.0]), cuts).tolist() == [0, 1, 1, 10, 19, 19]
    # One document with half of all bytes takes the cuts of 5 to 50 hundredths.
    heavy = [(0.1, 1_000), *((0.1 + number / 100, 100) for number in range(1, 11))]
    found = weighted_cuts(pieces(heavy, 4), list(range(5, 100, 5)))
    assert found is not None and found[:10] == [0.1] * 10 and found[10] == pytest.approx(0.11)
