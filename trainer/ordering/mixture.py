"""Which source the n-th sequence of a run comes from, and which of that source's sequences it is.

Shares become whole numbers of every `mixture_block` (M) consecutive sequences. A keyed permutation lays the
sources out over M places once for a segment; each block of a segment starts at its own keyed place of that
ring. So how many sequences of a source came before any place is known without a table of blocks, however a
later segment cuts one short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from trainer.ordering.permutation import Int64s, Keys, derive, domain, permute


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of steps with one mixture: the whole-number shares of M, sources sorted by name."""

    first_step: int
    counts: tuple[tuple[str, int], ...]

    @property
    def mixture_block(self) -> int:
        """M, the sum of the counts."""
        return sum(count for _, count in self.counts)

    @property
    def weights(self) -> dict[str, float]:
        """The quantised shares, which are what the run really uses."""
        return {source: count / self.mixture_block for source, count in self.counts}


def quantise(shares: Mapping[str, float], mixture_block: int) -> tuple[tuple[str, int], ...]:
    """`shares` (they need not sum to one) as whole numbers of `mixture_block`, sorted by source, by largest
    remainder; ties go to the lesser name. ValueError for a negative share, none above zero, or one that
    rounds to zero."""
    exact = {source: Fraction(str(share)) for source, share in sorted(shares.items())}
    for source, share in exact.items():
        if share < 0:
            raise ValueError(f"the share of source {source!r} is {float(share)}: expected at least 0")
    total = sum(exact.values())
    if total == 0:
        raise ValueError(f"the shares of {', '.join(map(repr, exact))} are all 0: expected one above 0")
    # Largest remainder (Hamilton's method): every source gets the whole part of its quota, and those with the
    # largest fractions one more each until the block is full, so each count is within one of its quota.
    # Shares are the exact decimals as written: rounding errors could order two equal remainders, and the plan
    # would hang on them.
    quotas = {source: share * mixture_block / total for source, share in exact.items()}
    counts = {source: int(quota) for source, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda source: (counts[source] - quotas[source], source))
    for source in by_remainder[: mixture_block - sum(counts.values())]:
        counts[source] += 1
    lost = [source for source in exact if exact[source] > 0 and counts[source] == 0]
    if lost:
        least = min(share for share in exact.values() if share > 0)
        raise ValueError(
            f"the share of source {lost[0]!r}, {float(exact[lost[0]] / total):.3g}, rounds to 0 of"
            f" {mixture_block} "
            f"sequences: set train.order.mixture_block to at least {-(-total // least)}, or its weight to 0"
        )
    return tuple(counts.items())


class Drawn(NamedTuple):
    """For each sequence of a run: the source's number (sources sorted by name) and its place in the source's
    count."""

    source: Int64s
    number: Int64s


class Ring:
    """The layout of one segment: from a place in the segment to (source, count within the segment) and
    back."""

    def __init__(self, counts: Int64s, key: int) -> None:
        self.counts = counts
        self.size = int(counts.sum())
        places = np.arange(self.size, dtype=np.int64)
        layout_key, start_key = derive(np.full(2, key, np.uint64), np.arange(2, dtype=np.int64))
        same_key: Keys = np.full(self.size, layout_key, np.uint64)
        slots = permute(places, domain(np.full(self.size, self.size, np.int64), same_key))
        self._first_slot = np.concatenate(([0], np.cumsum(counts)))
        self._source = np.searchsorted(self._first_slot, slots, side="right") - 1
        # Places of the ring, sorted by (source, place): entry first_slot[s] + i is the i-th place of source
        # s.
        self._places = np.argsort(self._source, kind="stable").astype(np.int64)
        self._sorted = self._source[self._places] * self.size + self._places
        self._number = np.empty(self.size, np.int64)
        self._number[self._places] = places - self._first_slot[self._source[self._places]]
        self._start_key: Keys = np.array([start_key], np.uint64)

    def _start(self, block: Int64s) -> Int64s:
        """Where on the ring each block starts."""
        hashed = derive(np.broadcast_to(self._start_key, block.shape), block) >> np.uint64(32)
        return (hashed * np.uint64(self.size) >> np.uint64(32)).astype(np.int64)

    def _before(self, source: Int64s, place: Int64s) -> Int64s:
        """How many places of `source` lie before `place` on the ring; place may be `size`."""
        before: Int64s = np.searchsorted(self._sorted, source * self.size + place) - self._first_slot[source]
        return before

    def draw(self, offset: Int64s) -> Drawn:
        """What the sequences at `offset` from the segment's start are, shape (n,)."""
        block, within = np.divmod(offset, self.size)
        start = self._start(block)
        place = start + within
        wrapped = place >= self.size
        place -= self.size * wrapped
        source = self._source[place]
        rank = self._number[place] - self._before(source, start) + wrapped * self.counts[source]
        return Drawn(source, block * self.counts[source] + rank)

    def offset(self, drawn: Drawn) -> Int64s:
        """Where in the segment each (source, count within the segment) comes: the inverse of `draw`."""
        share = self.counts[drawn.source]
        block, rank = np.divmod(drawn.number, share)
        start = self._start(block)
        number = (rank + self._before(drawn.source, start)) % share
        place = self._places[self._first_slot[drawn.source] + number]
        offset: Int64s = block * self.size + (place - start) % self.size
        return offset

    def counts_before(self, offset: int) -> Int64s:
        """How many sequences of each source the first `offset` ones of the segment hold, shape
        (num_sources,)."""
        block, within = divmod(offset, self.size)
        sources = np.arange(len(self.counts), dtype=np.int64)
        start = self._start(np.array([block], dtype=np.int64))
        end = start + within
        tail = self._before(sources, np.minimum(end, self.size)) - self._before(sources, start)
        tail += self._before(sources, np.maximum(end - self.size, 0))
        counted: Int64s = block * self.counts + tail
        return counted


class Mixture:
    """Every segment of a run: from a sequence number to (source, count) and back."""

    def __init__(self, segments: Sequence[Segment], global_batch: int, keys: Sequence[int]) -> None:
        self.first = np.array([segment.first_step * global_batch for segment in segments], np.int64)
        self._rings = [
            Ring(np.array([count for _, count in segment.counts], np.int64), key)
            for segment, key in zip(segments, keys, strict=True)
        ]
        base = [np.zeros(len(segments[0].counts), np.int64)]
        for number, ring in enumerate(self._rings[:-1]):
            base.append(base[-1] + ring.counts_before(int(self.first[number + 1] - self.first[number])))
        self._base = np.stack(base)

    def draw(self, n: Int64s) -> Drawn:
        """What each sequence number is, shape (n,)."""
        segment = np.searchsorted(self.first, n, side="right") - 1
        if segment.size == 0 or segment.min() == segment.max():
            return self._draw_in(int(segment[0]) if segment.size else 0, n)
        source, count = np.empty_like(n), np.empty_like(n)
        for number in np.unique(segment):
            rows = segment == number
            source[rows], count[rows] = self._draw_in(int(number), n[rows])
        return Drawn(source, count)

    def _draw_in(self, segment: int, n: Int64s) -> Drawn:
        source, count = self._rings[segment].draw(n - self.first[segment])
        return Drawn(source, count + self._base[segment, source])

    def number_of(self, source: int, count: Int64s) -> Int64s:
        """The sequence number of each `count` of one source; -1 where no segment ever reaches it."""
        segment = np.searchsorted(self._base[:, source], count, side="right") - 1
        n = np.full(len(count), -1, np.int64)
        for number in np.unique(segment):
            ring, rows = self._rings[number], segment == number
            if ring.counts[source]:
                drawn = Drawn(
                    np.full(int(rows.sum()), source, np.int64), count[rows] - self._base[number, source]
                )
                n[rows] = ring.offset(drawn) + self.first[number]
        return n

    def counts_before(self, n: int) -> Int64s:
        """How many sequences of each source the run has read before sequence `n`, shape (num_sources,)."""
        segment = int(np.searchsorted(self.first, n, side="right")) - 1
        counted: Int64s = self._base[segment] + self._rings[segment].counts_before(
            n - int(self.first[segment])
        )
        return counted
