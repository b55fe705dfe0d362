"""A keyed bijection of [0, n) that needs no table: a Feistel network over a grid a x b >= n, with cycle
walking.

The two halves of x are its row and column in the grid (the generalised Feistel of Black and Rogaway, "Ciphers
with Arbitrary Finite Domains", 2002, section 5), each round adds a keyed hash of one half to the other modulo
the other's size, and a result at or above n is sent through again (cycle walking, section 3 there). The grid
exceeds n by less than one row, so hardly any value walks. The hash multiplies and folds: a round that is
linear modulo a power of two would leave low bits of the result a function of low bits of the argument."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

NUM_ROUNDS: Final = 6
# Odd constants of the 64-bit finalisers of MurmurHash3 and SplitMix64 (Steele et al. 2014), and the golden
# ratio.
_FIRST: Final = np.uint64(0xFF51AFD7ED558CCD)
_SECOND: Final = np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN: Final = 0x9E3779B97F4A7C15
_ROUND_CONSTANTS: Final = tuple(
    np.uint64((_GOLDEN * (2 * number + 1)) % (1 << 64)) for number in range(NUM_ROUNDS)
)
_HALF: Final = np.uint64(32)
_FOLD: Final = np.uint64(29)


class Domain(NamedTuple):
    """The sets that values live in, value by value: [0, size) on a grid of rows x columns. Equal shapes,
    uint64."""

    size: Keys
    rows: Keys
    columns: Keys
    key: Keys


def domain(size: Int64s, key: Keys) -> Domain:
    """The domain of permutations of [0, size) under `key`, each element of shape (n,), size >= 1 and below
    2^62."""
    # The square root may be off by one ulp: any number of rows is right, as the columns are computed from it.
    rows = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    unsigned = size.astype(np.uint64)
    return Domain(unsigned, rows, (unsigned + rows - np.uint64(1)) // rows, key)


def mix(keys: Keys) -> Keys:
    """A 64-bit hash of each key (the finaliser of MurmurHash3): derives keys from keys."""
    mixed = keys ^ (keys >> np.uint64(33))
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(33)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(33)
    return mixed


def derive(key: Keys, number: Int64s) -> Keys:
    """A key for each (key, number), number >= 0."""
    return mix(key + (number.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def permute(values: Int64s, where: Domain) -> Int64s:
    """The image of each value under its domain's permutation, shape (n,)."""
    return _walk(values, where, forward=True)


def unpermute(values: Int64s, where: Domain) -> Int64s:
    """The value whose image is given: the inverse of `permute`."""
    return _walk(values, where, forward=False)


def _walk(values: Int64s, where: Domain, *, forward: bool) -> Int64s:
    # The network permutes the whole grid, of which [0, size) is a part. Its cycle through a value comes back
    # to the value, which lies within, so the walk ends. The image is the next value within on the same cycle,
    # so no two values share one; the inverse network walks the cycle backwards (Black and Rogaway 2002,
    # section 3).
    result = _network(values.astype(np.uint64), where, forward=forward)
    outside = np.flatnonzero(result >= where.size)
    while outside.size:
        part = Domain(*(column[outside] for column in where))
        result[outside] = _network(result[outside], part, forward=forward)
        outside = outside[result[outside] >= part.size]
    return result.view(np.int64)


def _network(values: Keys, where: Domain, *, forward: bool) -> Keys:
    # Rounds alternate between the halves, and each changes only one by a function of the other: so each can be undone,
    # whatever the hash is.
    row, column = np.divmod(values, where.columns)
    for number in range(NUM_ROUNDS) if forward else reversed(range(NUM_ROUNDS)):
        key = where.key + _ROUND_CONSTANTS[number]
        if number % 2 == 0:
            _add(row, _hash_below(column, key, where.rows), where.rows, forward=forward)
        else:
            _add(column, _hash_below(row, key, where.columns), where.columns, forward=forward)
    row *= where.columns
    row += column
    return row


def _hash_below(half: Keys, key: Keys, bound: Keys) -> Keys:
    """A keyed hash of `half` in [0, bound), bound < 2^32: the upper 32 bits of the hash, scaled (Lemire
    2019)."""
    hashed = half * _FIRST
    hashed += key
    hashed ^= hashed >> _FOLD
    hashed *= _SECOND
    hashed ^= hashed >> _HALF
    hashed *= _FIRST
    hashed >>= _HALF
    hashed *= bound
    hashed >>= _HALF
    return hashed


def _add(half: Keys, addend: Keys, modulus: Keys, *, forward: bool) -> None:
    """half + addend (or half - addend) modulo `modulus`, in place; both are below it."""
    if not forward:
        np.subtract(modulus, addend, out=addend)
    # Both are below the modulus, so one subtraction is enough; a division takes several times as long.
    half += addend
    half -= modulus * (half >= modulus)
