"""Shares become whole numbers of each block; a source's own count runs on without a gap or a repeat."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.ordering.mixture import Mixture, Segment, quantise


@pytest.mark.parametrize(
    ("shares", "block", "counts"),
    [
        ({"b": 0.5, "a": 0.5}, 3, {"a": 2, "b": 1}),
        ({"a": 0.15, "b": 0.35, "c": 0.5}, 10, {"a": 2, "b": 3, "c": 5}),
        ({"a": 1, "b": 1, "c": 1}, 1000, {"a": 334, "b": 333, "c": 333}),
        ({"a": 0.7, "b": 0.3}, 1000, {"a": 700, "b": 300}),
        ({"a": 7, "b": 0}, 4, {"a": 4, "b": 0}),
    ],
)
def test_shares_are_rounded_by_largest_remainder_and_ties_by_name(
    shares: dict[str, float], block: int, counts: dict[str, int]
) -> None:
    assert dict(quantise(shares, block)) == counts


def test_a_share_that_rounds_to_nothing_names_the_block_that_would_do() -> None:
    shares = {"big": 0.9996, "small": 0.0004}
    with pytest.raises(ValueError, match=r"'small'.*rounds to 0 of 1000.*at least 2500"):
        quantise(shares, 1000)
    assert dict(quantise(shares, 2500))["small"] == 1


@pytest.mark.parametrize(
    ("shares", "message"), [({"a": -0.1, "b": 1}, "'a' is -0.1"), ({"a": 0, "b": 0}, "are all 0")]
)
def test_negative_or_empty_shares_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantise(shares, 10)


def counts_strategy(num_sources: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 9), min_size=num_sources, max_size=num_sources).filter(any)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Mixture, list[Segment], int]:
    num_sources = draw(st.integers(1, 4))
    names = [f"s{number}" for number in range(num_sources)]
    steps = sorted({0, *draw(st.lists(st.integers(1, 30), max_size=3))})
    segments = [
        Segment(first_step=step, counts=tuple(zip(names, draw(counts_strategy(num_sources)), strict=True)))
        for step in steps
    ]
    global_batch = draw(st.integers(1, 9))
    keys = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(steps), max_size=len(steps)))
    return Mixture(segments, global_batch, keys), segments, global_batch


@given(mixtures())
def test_each_source_counts_on_through_blocks_and_segments(case: tuple[Mixture, list[Segment], int]) -> None:
    mixture, segments, _ = case
    n = np.arange(400, dtype=np.int64)
    drawn = mixture.draw(n)
    for source in range(len(segments[0].counts)):
        numbers = drawn.number[drawn.source == source]
        assert np.array_equal(numbers, np.arange(len(numbers)))
        assert np.array_equal(mixture.number_of(source, numbers), n[drawn.source == source])
        for end in (0, 1, 37, 399):
            assert mixture.counts_before(end)[source] == np.count_nonzero(drawn.source[:end] == source)


@given(mixtures())
def test_every_whole_block_holds_exactly_the_shares(case: tuple[Mixture, list[Segment], int]) -> None:
    mixture, segments, global_batch = case
    ends = [segment.first_step * global_batch for segment in segments[1:]] + [400]
    for segment, end in zip(segments, ends, strict=True):
        for first in range(
            segment.first_step * global_batch, end - segment.mixture_block, segment.mixture_block
        ):
            drawn = Counter(mixture.draw(np.arange(first, first + segment.mixture_block)).source.tolist())
            assert [drawn[source] for source in range(len(segment.counts))] == [
                count for _, count in segment.counts
            ]


def test_blocks_of_one_segment_start_at_different_places_of_the_layout() -> None:
    segment = Segment(first_step=0, counts=(("a", 500), ("b", 500)))
    source = Mixture([segment], 8, [5]).draw(np.arange(20_000)).source.reshape(20, 1000)
    assert len({row.tobytes() for row in source}) == 20


def test_a_source_that_no_later_segment_reads_is_never_reached_again() -> None:
    segments = [
        Segment(first_step=0, counts=(("a", 1), ("b", 1))),
        Segment(first_step=5, counts=(("a", 2), ("b", 0))),
    ]
    mixture = Mixture(segments, 4, [1, 2])
    assert mixture.number_of(1, np.array([9, 10, 11])).tolist()[1:] == [-1, -1]
