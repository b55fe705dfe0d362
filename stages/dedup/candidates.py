"""Candidate pairs: which of the texts that share a bucket are compared."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stages.dedup.bands import I64

MAX_ALL_PAIRS: Final = 64
"""Distinct texts in a bucket up to which every pair is compared."""

_PAIRS_AT_ONCE: Final = 1 << 20
"""Pairs that are held, besides as many as are distinct, before they are made distinct: about 60 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandRows:
    """Entries of buckets, parallel arrays: bucket `key`, `text` (a prefix of the clean hash: equal texts have
    equal ones), `k` (prefix of the doc_id), place in the signature `order`, `preference` (the least is kept
    first), `node` (the document, unique), whether it is a document of an `earlier` run, and whether its text
    `stays` because one of them has it."""

    key: I64
    text: I64
    k: I64
    order: I64
    preference: I64
    node: I64
    earlier: npt.NDArray[np.bool_]
    stays: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[np.intp]) -> BandRows:
        return BandRows(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Distinct pairs of nodes, sorted; `a` has the lesser doc_id of the two. `num_capped` buckets were above
    the limit and did not give all their pairs."""

    a: I64
    b: I64
    num_capped: int


def collapse_equal_texts(rows: BandRows) -> BandRows:
    """One row for each (bucket, text), sorted by them: that of the document kept first, if possible one of
    this run. The text stays if any of its rows says so."""
    rows = rows.take(np.lexsort((rows.node, rows.k, rows.preference, rows.earlier, rows.text, rows.key)))
    # A text is kept as early as its most preferred copy: under another one's preference a large bucket would
    # pair all with a text that is itself dropped, and what resembles the kept one would pass.
    first = np.flatnonzero(begins_of(rows.key, rows.text))
    stays = np.logical_or.reduceat(rows.stays, first) if len(first) else rows.stays
    return replace(rows.take(first), stays=stays)


def repeats_earlier(values: I64) -> npt.NDArray[np.bool_]:
    """Where a value stands at another index too."""
    order = np.argsort(values)
    ordered = values[order]
    equal = np.zeros(len(values) + 1, np.bool_)
    np.equal(ordered[1:], ordered[:-1], out=equal[1:-1])
    found = np.empty(len(values), np.bool_)
    found[order] = equal[1:] | equal[:-1]
    return found


def candidate_pairs(rows: BandRows, max_all_pairs: int = MAX_ALL_PAIRS) -> Pairs:
    """The pairs worth comparing among whole buckets, in any order of rows.

    A bucket of up to `max_all_pairs` distinct texts gives every pair; a larger one pairs each with the least
    doc_id, with the one that is kept first (for whose sake those that resemble it are dropped) and with its
    two neighbours in signature order, which is linear in its size. Two documents of earlier runs are never
    paired: their run compared them."""
    # Most texts resemble no other and stand alone in all their buckets: a sort by key alone leaves them out,
    # for a quarter of what sorting whole rows costs.
    rows = collapse_equal_texts(rows.take(np.flatnonzero(repeats_earlier(rows.key))))
    rows = rows.take(np.lexsort((rows.node, rows.k, rows.key)))
    first, size = _runs(rows.key)
    pairs = _DistinctPairs(rows)
    for members in np.unique(size[(size > 1) & (size <= max_all_pairs)]):
        left, right = np.triu_indices(members, k=1)
        begins, at_once = first[size == members], max(1, _PAIRS_AT_ONCE // len(left))
        for start in range(0, len(begins), at_once):
            begin = begins[start : start + at_once, None]
            pairs.add((begin + left).ravel(), (begin + right).ravel())
    large = size > max_all_pairs
    for begin, members in zip(first[large], size[large], strict=True):
        pairs.add(*_linear_pairs(rows, begin, members))
    a, b = pairs.found()
    return Pairs(a=a, b=b, num_capped=int(np.count_nonzero(large)))


def _linear_pairs(
    rows: BandRows, begin: np.intp, members: np.intp
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row numbers of (least, each other), (kept first, each other) and (each, its successor in signature
    order) of a run of rows."""
    # All pairs of a bucket cost the square of its size, and one boilerplate page can fill a bucket.
    run = np.arange(begin, begin + members)
    ranked = run[np.argsort(rows.order[begin : begin + members], kind="stable")]
    kept_first = min(run, key=lambda row: (not rows.stays[row], rows.preference[row], row))
    others = run[run != kept_first]
    lefts = np.full(members - 1, begin), np.full(members - 1, kept_first), ranked[:-1]
    return np.concatenate(lefts), np.concatenate((run[1:], others, ranked[1:]))


class _DistinctPairs:
    """The pairs of nodes of pairs of rows, without repetition. Near texts share most of their bands and are
    proposed by each: held at once, those would take many times the memory of what is left of them."""

    def __init__(self, rows: BandRows) -> None:
        self._rows = rows
        self._distinct = np.empty(0, np.int64), np.empty(0, np.int64)
        self._more: list[tuple[I64, I64]] = []
        self._num_more = 0

    def add(self, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]) -> None:
        """Pairs of row numbers; those of two documents of earlier runs are left out."""
        # Rows of a bucket are in order of (k, node): the lesser row number is the lesser doc_id.
        low, high = np.minimum(left, right), np.maximum(left, right)
        wanted = ~(self._rows.earlier[low] & self._rows.earlier[high])
        self._more.append((self._rows.node[low[wanted]], self._rows.node[high[wanted]]))
        self._num_more += len(self._more[-1][0])
        # As many new ones as there are: so each is sorted a few times, however many come.
        if self._num_more > max(_PAIRS_AT_ONCE, len(self._distinct[0])):
            self._distinct = self.found()
            self._more, self._num_more = [], 0

    def found(self) -> tuple[I64, I64]:
        """All distinct pairs so far, sorted."""
        a, b = zip(self._distinct, *self._more, strict=True)
        return distinct_pairs(np.concatenate(a), np.concatenate(b))


def distinct_pairs(a: I64, b: I64) -> tuple[I64, I64]:
    """The pairs (a[i], b[i]) without repetition, sorted."""
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    kept = begins_of(a, b)
    return a[kept], b[kept]


def begins_of(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a row differs in any of the columns from the one before it; the first row does."""
    begins = np.zeros(len(columns[0]), np.bool_)
    begins[:1] = True
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def _runs(sorted_values: I64) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First index and length of each run of equal values."""
    first = np.flatnonzero(begins_of(sorted_values))
    return first, np.diff(np.append(first, len(sorted_values)))
