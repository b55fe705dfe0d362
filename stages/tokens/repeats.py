"""How often an epoch of training reads a document: by its cluster's size, or by the bucket of its score.

1. A document belongs to a row of the table, or of its language's own: the last one whose first size, or first
  bucket, is no greater than its own (`rows_of`).
2. Each row has its times: as the table gives them, or by Dolma 3's curve (`curve_times`).
3. Times that are no whole number are met over all documents of a row together: so many of them are read once
  more that the readings are exact (`num_more`). Which ones is for the caller to choose.

Nothing is copied: documents that are read equally often share shards, and the index says how often."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lineage.recipe import RecipeError, key

MOST_TIMES: Final = 100
"""The order lists a shard once for each time that an epoch reads it."""

_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")

_POWERS: Final = tuple(0.01 + number * (2 - 0.01) / 19 for number in range(20))
"""The curve's exponents: 20 from 0.01 to 2 (dolma3 at f7def58, mixing_dashboard.ipynb)."""
_MOST_GROWTH: Final = 2.0
_NUM_HALVINGS: Final = 60
_NUM_TERMS: Final = 40
"""Of the series of e^x for x up to 2: what follows is below 2^-100 of the sum."""


class _Rows:
    """What a table of first = times says, row by row."""

    __slots__ = ()
    table: dict[str, float]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first size, or bucket, of each row of the table, rising."""
        return tuple(sorted(int(first) for first in self.table))

    @property
    def times(self) -> tuple[Fraction, ...]:
        """The times of each row, as they are written."""
        return tuple(Fraction(str(self.table[str(first)])) for first in self.firsts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRepeatTable(_Rows):
    """[repeat.language.NAME]: how often an epoch reads the documents in one language."""

    table: dict[str, float] = key(
        {},
        at_least=0,
        at_most=MOST_TIMES,
        help="first = times by cluster size, instead of repeat.table, counted over the documents in "
        "that language only",
        source="FineWeb-2, misc/rehydration/weights, Italian, up to 10: {1 = 1, 2 = 3, 3 = 4, 4 = 5, …, 145 = 1}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatTable(_Rows):
    """[repeat]: how often an epoch of training reads a document."""

    by: Literal["cluster_size", "bucket"] | None = key(
        None,
        help="cluster_size: the number of documents in its cluster of duplicates; bucket: the part "
        "of a [[bucket]] of scores (its parts are then not separate sources)",
    )
    table: dict[str, float] = key(
        {},
        at_least=0,
        at_most=MOST_TIMES,
        help="first = times: an epoch reads documents of this cluster size or bucket number, up to "
        "the next row, this often (0: never); fractional times hold exactly over the row's "
        "documents",
        source="FineWeb-2: {1 = 1, 2 = 2, 3 = 3, 5 = 5, 100 = 8, 1000 = 1}",
    )
    bucket: str | None = key(
        None, help="by bucket: the name of the [[bucket]] (not given: the recipe's only one)"
    )
    target: float | None = key(
        None,
        above=0,
        help="by bucket, instead of a table: tokens that an epoch of a source reads, as a multiple "
        "of its tokens, distributed over its buckets by Dolma 3's curve",
    )
    discard: float = key(
        0.4, at_least=0, at_most=0.99, help="share of the tokens, from the lowest buckets, that is never read"
    )
    most: float = key(7.0, above=0, at_most=MOST_TIMES, help="maximum times for the highest bucket")
    language: dict[str, LanguageRepeatTable] | None = key(
        None, help="by cluster size: language = the table that its documents follow instead"
    )

    @property
    def by_language(self) -> dict[str, LanguageRepeatTable]:
        """The [repeat.language.NAME] by their names."""
        return self.language or {}

    def rows_for(self, language: str | None) -> RepeatTable | LanguageRepeatTable:
        """The table of the [repeat.language.NAME] of this name; None: repeat.table."""
        return self if language is None else self.by_language[language]


def check_repeat(table: RepeatTable) -> None:
    """RecipeError where [repeat] contradicts itself."""
    if table.by is None:
        if table != RepeatTable():
            raise RecipeError(
                "[repeat] does not say by what documents are repeated: give repeat.by (cluster_size or"
                " bucket), or leave the table out",
                "repeat.by",
            )
        return
    if table.by == "cluster_size":
        for name in ("bucket", "target"):
            if (value := getattr(table, name)) is not None:
                raise RecipeError(
                    f'repeat.{name} = {value!r} is for by = "bucket", and repeat.by is "cluster_size": leave'
                    " one of them out",
                    f"repeat.{name}",
                )
    elif table.language is not None:
        raise RecipeError(
            '[repeat.language] is for by = "cluster_size", and repeat.by is "bucket": leave one of them out',
            "repeat.language",
        )
    if bool(table.table) == (table.target is not None):
        if table.table:
            raise RecipeError(
                "[repeat] has both table and target, and each says how often documents are read: expected"
                " one of them",
                "repeat.target",
            )
        also = "" if table.by == "cluster_size" else ", or a target"
        raise RecipeError(
            f"[repeat] says by what documents are repeated and not how often: give repeat.table{also}",
            "repeat.table",
        )
    if table.target is not None:
        _check_curve(table, table.target)
    else:
        _check_no_curve(table)
        _check_rows(table, table.by, "repeat.table", "an epoch would hold nothing")
    if table.language is not None and not table.language:
        raise RecipeError(
            "[repeat.language] names no language: give a [repeat.language.NAME] with a table, or leave it out",
            "repeat.language",
        )
    for language, own in table.by_language.items():
        name = f"repeat.language.{language}.table"
        if not own.table:
            raise RecipeError(
                f"{name} is empty and says nothing of how often documents in that language are read: add rows,"
                f" as in 1 = 1, or leave [repeat.language.{language}] out, so that they follow repeat.table",
                name,
            )
        _check_rows(own, table.by, name, "an epoch would hold nothing in that language")


def _check_curve(table: RepeatTable, target: float) -> None:
    reachable = table.most * (1 - table.discard)
    if target > reachable:
        raise RecipeError(
            f"repeat.target = {target:g} cannot be reached: with discard = {table.discard:g} and most ="
            f" {table.most:g} an epoch reads at most {reachable:g} times the tokens that there are",
            "repeat.target",
        )


def _check_no_curve(table: RepeatTable) -> None:
    for name in ("discard", "most"):
        if getattr(table, name) != getattr(RepeatTable(), name):
            raise RecipeError(
                f"repeat.{name} is for a curve, and repeat.table says how often each row is read: leave one"
                " of them out",
                f"repeat.{name}",
            )


def _check_rows(rows: _Rows, by: Literal["cluster_size", "bucket"], name: str, lost: str) -> None:
    """RecipeError where the table of this name has rows that cannot be; `lost` says what none of them read
    would mean."""
    least, what = (1, "cluster sizes") if by == "cluster_size" else (0, "numbers of buckets")
    for first in rows.table:
        if not _WHOLE.fullmatch(first) or int(first) < least:
            raise RecipeError(
                f"{name}.{first}: expected {what}, whole numbers from {least} on of at most 15 digits", name
            )
    if rows.firsts[0] != least:
        raise RecipeError(
            f"{name} begins at {rows.firsts[0]} and says nothing of what comes before: add a row"
            f" {least} = 1, or with other times",
            name,
        )
    if not any(rows.table.values()):
        raise RecipeError(f"{name}: every row is read 0 times, so that {lost}: give one more", name)


def rows_of(values: npt.NDArray[np.int64], firsts: Sequence[int]) -> npt.NDArray[np.int64]:
    """The row of each cluster size or bucket number: the last whose first is no greater."""
    return (np.searchsorted(np.array(firsts, np.int64), values, side="right") - 1).astype(np.int64)


def num_more(times: Fraction, num_documents: int) -> int:
    """How many of a row's documents are read once more than ⌊times⌋ times, so that their readings are times ×
    num_documents, rounded half up to a whole number."""
    readings = math.floor(times * num_documents + Fraction(1, 2))
    return readings - math.floor(times) * num_documents


def curve_times(tokens: Sequence[int], target: float, discard: float, most: float) -> list[float]:
    """How often the documents of each bucket are read by Dolma 3's curve; `tokens` are those of each bucket,
    from the lowest score on. RecipeError where no curve meets `target` and `most`.

    With x in [0, 1] by cumulative tokens, f(x) = C (x - a)^p e^(l (x - a)) above the share a = `discard` and 0
    below, and the integral of f is `target`. A bucket's times are the mean of f over it. Of 20 exponents p from
    0.01 to 2 the largest is taken with which the highest bucket has `most` at most (l = 0), then the largest l
    up to 2 (dolma3 at f7def58, mixing_dashboard.ipynb)."""
    total = sum(tokens)
    if not total:
        return [0.0] * len(tokens)
    edges = [end / total for end in itertools.accumulate(tokens, initial=0)]
    # Which is above the discarded share, since the last edge is 1.
    highest = max(number for number, each in enumerate(tokens) if each)

    def times(power: float, growth: float) -> list[float]:
        below = [_integral(power, growth, edge - discard) for edge in edges]
        scale = target / below[-1]
        return [
            scale * (after - before) / (end - begin) if end > begin else 0.0
            for (before, after), (begin, end) in zip(
                itertools.pairwise(below), itertools.pairwise(edges), strict=True
            )
        ]

    def fits(power: float, growth: float) -> bool:
        return times(power, growth)[highest] <= most

    feasible = [power for power in _POWERS if fits(power, 0)]
    if not feasible:
        raise RecipeError(
            f"repeat.target = {target:g} cannot be reached: the flattest curve with discard = {discard:g} reads"
            f" the highest bucket, which holds {tokens[highest] / total:.3g} of the tokens,"
            f" {times(_POWERS[0], 0)[highest]:.3g} times, and most is {most:g}",
            "repeat.target",
        )
    power = feasible[-1]
    if fits(power, _MOST_GROWTH):
        return times(power, _MOST_GROWTH)
    # What the highest bucket has rises with the growth: halve the stretch in which it passes `most`.
    low, high = 0.0, _MOST_GROWTH
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(power, middle) else (low, middle)
    return times(power, low)


def _integral(power: float, growth: float, end: float) -> float:
    """The integral of u^power e^(growth u) from 0 to `end`, by the series of e^x; 0 for no stretch."""
    if end <= 0:
        return 0.0
    terms, factor = [], 1.0
    for number in range(_NUM_TERMS):
        terms.append(factor * end ** (power + 1 + number) / (power + 1 + number))
        factor *= growth / (number + 1)
    return math.fsum(terms)
