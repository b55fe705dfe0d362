"""How often an epoch reads each document: the rows of [repeat] counted over the whole corpus, and the documents
of each row that are read once more than the others.

Those are the first ones by their keyed hash, whose order knows neither files nor lengths. How many they are is
exact (`stages.tokens.repeats.num_more`). So where a row's times are no whole number, the key of the last is
looked for in two more passes: counts by the keys' first bits, then the keys of the one range that it lies in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lineage.store.rows import shard_source
from pipeline.phases.percentiles import Weights
from pipeline.results.unit_results import RepeatSize
from stages.quality.languages import language_code
from stages.tokens.repeats import RepeatTable, curve_times, num_more

KeyPairs = npt.NDArray[np.uint64]
"""Keys of documents as pairs of integers, shape (num_documents, 2)."""


class OfSource(NamedTuple):
    """What [repeat] is carried out in: a source, its bucket, None where it has none, and its documents in the
    language of a [repeat.language.NAME], which this name tells, or those that follow repeat.table (None)."""

    source: str
    bucket: str | None
    language: str | None = None


_RANGE_BITS: Final = 12
_NUM_RANGES: Final = 1 << _RANGE_BITS


class RowTimes(NamedTuple):
    """A row's documents are read `times` times, those up to the key `last` once more; None: none is."""

    times: int
    last: tuple[int, int] | None = None

    def of(self, keys: KeyPairs) -> Weights:
        """How often the documents with these keys are read."""
        more = np.zeros(len(keys), bool) if self.last is None else _up_to(keys, self.last)
        return self.times + more.astype(np.int64)


class CountedRows(NamedTuple):
    """Kept documents of a unit that are counted together: the row of each, its key, its tokens."""

    of: OfSource
    rows: Weights
    keys: KeyPairs
    num_tokens: Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The times of the rows of what is counted together, and what they come to."""

    times: Mapping[OfSource, tuple[RowTimes, ...]]
    sizes: tuple[RepeatSize, ...]


NO_REPEATS: Final = Repeats(times={}, sizes=())
"""Of a recipe without [repeat]."""


class _RowCounts(NamedTuple):
    """The documents of each row, and their tokens."""

    num_documents: Weights
    num_tokens: Weights


_Wanted = Mapping[OfSource, Mapping[int, int]]
"""By source and row: how many of its documents are read once more."""
Firsts = Mapping[str | None, Sequence[int]]
"""Where the rows begin, by the name of the [repeat.language.NAME] that they stand in; None: of [repeat]."""


def own_tables(table: RepeatTable, languages: Iterable[str | None]) -> list[str | None]:
    """For each document's language, None where nobody named it, the name of the [repeat.language.NAME] that
    holds for it, by whatever label that names it; None where repeat.table does."""
    by_code = {language_code(name): name for name in table.by_language}
    names: dict[str | None, str | None] = {None: None}
    found = []
    for language in languages:
        if language not in names:
            names[language] = by_code.get(language_code(language or ""))
        found.append(names[language])
    return found


def plan_repeats(
    table: RepeatTable, firsts: Firsts, documents: Callable[[], Iterable[CountedRows]]
) -> Repeats:
    """The times of rows that begin at `firsts`, over all `documents`, which each call gives anew, in pieces of
    any size and order. RecipeError where a curve cannot be met."""
    counted = _count(firsts, documents())
    times = {of: _times_of(table, of.language, counted[of].num_tokens) for of in counted}
    wanted: dict[OfSource, dict[int, int]] = defaultdict(dict)
    sizes = []
    for of in sorted(counted, key=_size_order):
        for row, (first, each) in enumerate(zip(firsts[of.language], times[of], strict=True)):
            num = int(counted[of].num_documents[row])
            more = num_more(each, num)
            if more:
                wanted[of][row] = more
            if num:
                sizes.append(
                    RepeatSize(
                        source=shard_source(of.source, of.bucket),
                        language=of.language,
                        first=first,
                        times=float(each),
                        num_documents=num,
                        num_tokens=int(counted[of].num_tokens[row]),
                        num_readings=math.floor(each) * num + more,
                    )
                )
    last = _last_keys(wanted, documents) if wanted else {}
    return Repeats(
        times={
            of: tuple(RowTimes(math.floor(each), last.get((of, row))) for row, each in enumerate(of_source))
            for of, of_source in times.items()
        },
        sizes=tuple(sizes),
    )


def _size_order(of: OfSource) -> tuple[str, str]:
    """What sources are told in."""
    return shard_source(of.source, of.bucket), of.language or ""


def _count(firsts: Firsts, documents: Iterable[CountedRows]) -> dict[OfSource, _RowCounts]:
    counted: dict[OfSource, _RowCounts] = {}
    for piece in documents:
        if piece.of not in counted:
            num_rows = len(firsts[piece.of.language])
            counted[piece.of] = _RowCounts(np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64))
        np.add.at(counted[piece.of].num_documents, piece.rows, 1)
        np.add.at(counted[piece.of].num_tokens, piece.rows, piece.num_tokens)
    return counted


def _times_of(table: RepeatTable, language: str | None, num_tokens: Weights) -> Sequence[Fraction]:
    if table.target is None:
        return table.rows_for(language).times
    return [
        Fraction(each) for each in curve_times(num_tokens.tolist(), table.target, table.discard, table.most)
    ]


class _Rank(NamedTuple):
    """The range of keys that a rank lies in, and the rank within it, from 1."""

    number: int
    rank: int


def _last_keys(
    wanted: _Wanted, documents: Callable[[], Iterable[CountedRows]]
) -> dict[tuple[OfSource, int], tuple[int, int]]:
    """The key of the last of so many documents of each row."""
    by_range: dict[tuple[OfSource, int], Weights] = defaultdict(lambda: np.zeros(_NUM_RANGES, np.int64))
    for piece, row, keys in _of_rows(wanted, documents()):
        by_range[piece.of, row] += np.bincount(_ranges(keys), minlength=_NUM_RANGES)
    ranks = {(of, row): _rank(by_range[of, row], num) for of in wanted for row, num in wanted[of].items()}
    found: dict[tuple[OfSource, int], list[KeyPairs]] = defaultdict(list)
    for piece, row, keys in _of_rows(wanted, documents()):
        found[piece.of, row].append(keys[_ranges(keys) == ranks[piece.of, row].number])
    last = {}
    for which, rank in ranks.items():
        # Of one range of 4,096, so this fits into memory whatever the corpus is.
        keys = np.concatenate(found[which])
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        high, low = keys[order[rank.rank - 1]].tolist()
        last[which] = high, low
    return last


def _of_rows(
    wanted: _Wanted, documents: Iterable[CountedRows]
) -> Iterator[tuple[CountedRows, int, KeyPairs]]:
    """The keys of the documents of each wanted row, piece by piece."""
    for piece in documents:
        for row in wanted.get(piece.of, ()):
            yield piece, row, piece.keys[piece.rows == row]


def _rank(by_range: Weights, rank: int) -> _Rank:
    ends = np.cumsum(by_range)
    number = int(np.searchsorted(ends, rank))
    return _Rank(number, rank - (int(ends[number - 1]) if number else 0))


def _ranges(keys: KeyPairs) -> Weights:
    return (keys[:, 0] >> np.uint64(64 - _RANGE_BITS)).astype(np.int64)


def _up_to(keys: KeyPairs, last: tuple[int, int]) -> npt.NDArray[np.bool_]:
    high, low = (np.uint64(each) for each in last)
    found: npt.NDArray[np.bool_] = (keys[:, 0] < high) | ((keys[:, 0] == high) & (keys[:, 1] <= low))
    return found
