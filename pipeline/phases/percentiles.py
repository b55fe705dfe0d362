"""Exact weighted percentiles over values that no process holds at once.

The p-th percentile is the least value up to which at least p hundredths of the whole weight lie (the inverted
distribution: sort, sum up, search from the left), as Nemotron-CC cuts its scores (Su et al. 2024). It is
found digit by digit: each pass over the values sums the weights by the next 16 bits of their order-preserving
bit pattern, so that the fourth knows the value to the last bit. Weights are whole numbers, and so are all
sums: any order gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]
Pieces = Callable[[], Iterable[tuple[Values, Weights]]]
"""Gives all values with their weights anew at each call, in pieces of any size and order."""

_DIGIT_BITS: Final = 16
_NUM_DIGITS: Final = 4
_SIGN: Final = np.uint64(1 << 63)


def weighted_cuts(pieces: Pieces, percentiles: Sequence[float]) -> list[float] | None:
    """The value at each percentile (0 to 100); None where all weights together are 0."""
    total = sum(int(weights.sum()) for _, weights in pieces())
    if not total:
        return None
    # The rank of a weight, from 1: the least whole number that is no less than p hundredths of all.
    ranks = [max(1, math.ceil(Fraction(str(p)) * total / 100)) for p in percentiles]
    prefixes = [0] * len(ranks)
    for digit in range(_NUM_DIGITS):
        sums = {prefix: np.zeros(1 << _DIGIT_BITS, np.int64) for prefix in prefixes}
        for values, weights in pieces():
            _add_digits(sums, _ordered(values), weights, digit)
        for at, (prefix, rank) in enumerate(zip(prefixes, ranks, strict=True)):
            ends = np.cumsum(sums[prefix])
            chosen = int(np.searchsorted(ends, rank))
            prefixes[at] = prefix << _DIGIT_BITS | chosen
            ranks[at] = rank - (int(ends[chosen - 1]) if chosen else 0)
    return [_value(prefix) for prefix in prefixes]


def _add_digits(sums: dict[int, Weights], bits: npt.NDArray[np.uint64], weights: Weights, digit: int) -> None:
    """Add the weights of the values that begin with each prefix, by their next digit."""
    shift = np.uint64(64 - _DIGIT_BITS * (digit + 1))
    digits = (bits >> shift) & np.uint64((1 << _DIGIT_BITS) - 1)
    # numpy shifts by less than a word's length: all values begin with the empty prefix.
    before = bits >> shift >> np.uint64(_DIGIT_BITS) if digit else np.zeros_like(bits)
    for prefix, of_prefix in sums.items():
        chosen = before == np.uint64(prefix)
        np.add.at(of_prefix, digits[chosen].astype(np.int64), weights[chosen])


def _ordered(values: Values) -> npt.NDArray[np.uint64]:
    """Numbers that are ordered as the values are: of the two zeros the one without a sign counts."""
    bits = (values + 0.0).view(np.uint64)
    # Positive numbers of IEEE 754 are ordered as their bits are, negative ones backwards: those are inverted, and the
    # sign bit puts them below all others.
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _value(ordered: int) -> float:
    bits = ordered & ~int(_SIGN) if ordered & int(_SIGN) else ~ordered & (1 << 64) - 1
    return float(np.array([bits], np.uint64).view(np.float64)[0])
