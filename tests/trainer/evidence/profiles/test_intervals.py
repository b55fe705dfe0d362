"""Unions of intervals beside sets of nanoseconds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trainer.evidence.profiles.intervals import Intervals, union

LENGTH = 40


def points(intervals: Intervals) -> set[int]:
    return {time for start, end in intervals.bounds_N2.tolist() for time in range(start, end)}


@pytest.mark.parametrize("seed", range(200))
def test_unions_are_those_of_sets(seed: int) -> None:
    chosen = random.Random(seed)

    def some() -> tuple[list[int], list[int]]:
        starts = [chosen.randrange(LENGTH) for _ in range(chosen.randrange(6))]
        return starts, [start + chosen.randrange(8) for start in starts]

    (first, second), (third, fourth) = some(), some()
    one, other = union(first, second), union(third, fourth)
    mine = {time for start, end in zip(first, second, strict=True) for time in range(start, end)}
    theirs = {time for start, end in zip(third, fourth, strict=True) for time in range(start, end)}
    assert points(one) == mine and one.length == len(mine)
    assert points(one.both(other)) == mine & theirs
    assert points(one.minus(other)) == mine - theirs
    starts, ends = np.array(third, dtype=np.int64), np.array(fourth, dtype=np.int64)
    inside = [len(mine & set(range(*pair))) for pair in zip(third, fourth, strict=True)]
    assert one.within(starts, ends).tolist() == inside
