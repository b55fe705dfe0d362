"""Intervals from replicates, and the curve of repetitions, beside populations that are known."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pricing.estimate import Repetition, kept_share, product, with_interval
from pipeline.results.estimates import Estimate


@given(st.lists(st.floats(50, 60), min_size=16, max_size=16))
def test_the_interval_of_a_mean_is_that_of_student(values: list[float]) -> None:
    found = with_interval(lambda used: sum(values[at] for at in used) / len(used), 16, is_all=False)
    mean = sum(values) / 16
    assert found.value == pytest.approx(mean)
    # To first order the jackknife of log(mean) is the standard error over the mean; t(15) at .95 is 1.753.
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / 16 / 15) / mean
    assert math.log(found.high / found.value) == pytest.approx(1.753 * error, rel=0.05, abs=1e-6)
    assert found.low <= found.value <= found.high


def test_what_was_read_whole_has_no_interval_but_that_of_its_timing() -> None:
    assert with_interval(lambda used: float(sum(used)), 16, is_all=True).high == 120
    timed = with_interval(lambda used: float(sum(used)), 16, is_all=True, error=0.1)
    assert math.log(timed.high / timed.value) == pytest.approx(0.16449, rel=1e-3)


def test_independent_errors_add_as_squares() -> None:
    found = product(Estimate(value=2, low=1, high=4), Estimate(value=3, low=3, high=3))
    assert (found.value, found.low, found.high) == (6, pytest.approx(3), pytest.approx(12))


def seen_in(population: list[int], num: int, seed: int) -> Repetition:
    """What a sample of `num` documents finds, a document to a cell; `population` is the text of each."""
    texts = Counter(random.Random(seed).sample(population, num))
    incidence = Counter(texts.values())
    return Repetition(
        num_documents=num, num_cells=num, num_texts=len(texts), num_once=incidence[1], num_twice=incidence[2]
    )


@pytest.mark.parametrize("times", [2, 10])
def test_texts_that_stand_twice_are_foreseen_from_few(times: int) -> None:
    num = 20_000
    population = [number // 2 for number in range(num // 2)] + list(range(num, num + num // 2))
    real = len(set(population)) / num
    found = [kept_share(seen_in(population, num // times, seed), num) for seed in range(40)]
    assert sum(each.value for each in found) / 40 == pytest.approx(real, abs=0.03)
    assert sum(each.low <= real <= each.high for each in found) >= 32


def test_a_sample_without_repetition_promises_nothing_for_much_more() -> None:
    seen = Repetition(num_documents=500, num_cells=500, num_texts=500, num_once=500, num_twice=0)
    near, far = kept_share(seen, 1_000), kept_share(seen, 500_000)
    assert near.value == far.value == near.high == 1.0
    assert 0.9 < near.low < 1.0
    assert far.low < near.low


@given(st.integers(1, 200), st.integers(0, 50), st.integers(1, 10_000))
def test_more_documents_never_raise_the_share_that_stays(once: int, twice: int, more: int) -> None:
    seen = Repetition(
        num_documents=once + 2 * twice, num_cells=once + 2 * twice, num_texts=once + twice, num_once=once,
        num_twice=twice,
    )  # fmt: skip
    first, second = (kept_share(seen, seen.num_cells + cells) for cells in (more, 2 * more))
    assert 0 <= second.low <= second.value <= second.high <= 1
    assert second.value <= first.value + 1e-9


def test_everything_compared_is_no_extrapolation() -> None:
    seen = Repetition(num_documents=10, num_cells=4, num_texts=8, num_once=6, num_twice=2)
    assert kept_share(seen, 4) == Estimate(value=0.8, low=0.8, high=0.8)
