"""Unions of time intervals. Times are int64 nanoseconds from the begin of a trace, so that they are exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in rising order, (N, 2) nanoseconds."""

    bounds_N2: Times

    @property
    def length(self) -> int:
        """Nanoseconds in all."""
        return int((self.bounds_N2[:, 1] - self.bounds_N2[:, 0]).sum())

    def within(self, starts: Times, ends: Times) -> Times:
        """Of each interval [start, end) the nanoseconds that lie in the union."""
        return self._before(ends) - self._before(starts)

    def minus(self, other: Intervals) -> Intervals:
        """What is in this union and not in `other`."""
        return self.both(other.outside())

    def both(self, other: Intervals) -> Intervals:
        """What is in both unions."""
        changes = np.concatenate([self.bounds_N2.ravel(), other.bounds_N2.ravel()])
        turns = np.tile(np.array([1, -1], dtype=np.int64), len(changes) // 2)
        # At equal times ends come first: intervals that only touch have nothing in common.
        order = np.lexsort((turns, changes))
        depth = np.cumsum(turns[order])
        begins = np.flatnonzero(depth == 2)
        times = changes[order]
        return union(times[begins], times[begins + 1]) if len(begins) else NOTHING

    def outside(self) -> Intervals:
        """All time that is not in the union."""
        edge = np.iinfo(np.int64).max // 4
        return Intervals(np.concatenate([[-edge], self.bounds_N2.ravel(), [edge]]).reshape(-1, 2))

    @cached_property
    def _lengths_before(self) -> Times:
        lengths = self.bounds_N2[:, 1] - self.bounds_N2[:, 0]
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def _before(self, times: Times) -> Times:
        """Nanoseconds of the union before each of these times."""
        if not len(self.bounds_N2):
            return np.zeros(len(times), dtype=np.int64)
        index = np.searchsorted(self.bounds_N2[:, 0], times, side="right")
        last = self.bounds_N2[np.maximum(index - 1, 0)]
        inside = np.clip(times - last[:, 0], 0, last[:, 1] - last[:, 0])
        return self._lengths_before[np.maximum(index - 1, 0)] + np.where(index > 0, inside, 0)


NOTHING = Intervals(np.zeros((0, 2), dtype=np.int64))


def union(starts: Iterable[int] | Times, ends: Iterable[int] | Times) -> Intervals:
    """The union of intervals in any order; empty ones add nothing."""
    begin, end = (np.asarray(list(side), dtype=np.int64) for side in (starts, ends))
    kept = end > begin
    begin, end = begin[kept], end[kept]
    if not len(begin):
        return NOTHING
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(np.stack([begin[first], end[last]], axis=1))
