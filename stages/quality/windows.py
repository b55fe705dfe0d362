"""Repeated n-grams of a text's tokens, found by hashes of all windows at once and confirmed on the characters.

The hash of a window is the polynomial hash of its tokens' characters without separators, put together from the tokens'
hashes in two vector operations per n. Equal n-grams have equal hashes; the converse fails only by accident or by design
(such hashes can be made to collide), so every number below is counted on the characters of the windows whose hash
occurs twice, and on no others. Most pages have few of those.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from stages.quality.tokens import BASE, Hashes, Ints, Tokens

_SEPARATOR: Final = np.uint64(0xD6E8FEB86659FD93)
_NUM_POWERS: Final = 256
_POWERS: Final = np.array([pow(BASE, length, 2**64) for length in range(_NUM_POWERS)], np.uint64)


class Windows:
    """The n-grams of one text: `tokens` of the text whose characters without white space are `solid`."""

    __slots__ = ("_joined", "_n", "_powers", "_separate", "_tokens", "ends", "solid", "starts")

    def __init__(self, tokens: Tokens, solid: str) -> None:
        self._tokens = tokens
        self.solid = solid
        self.ends: Ints = np.cumsum(tokens.lengths)
        self.starts: Ints = self.ends - tokens.lengths
        self._powers = _powers_of(tokens.lengths)
        self._n = 1
        self._joined = self._separate = tokens.hashes

    def __len__(self) -> int:
        return len(self.ends)

    def spelled(self, n: int) -> Hashes:
        """Hashes of all n-grams by their characters alone ("ab c" is "a bc"); shape (num_tokens - n + 1,)."""
        self._grow(n)
        return self._joined

    def worded(self, n: int) -> Hashes:
        """Hashes of all n-grams by their tokens; shape (num_tokens - n + 1,)."""
        self._grow(n)
        return self._separate

    def _grow(self, n: int) -> None:
        if n < self._n:
            self._n, self._joined, self._separate = 1, self._tokens.hashes, self._tokens.hashes
        while self._n < n:
            hashes, powers = self._tokens.hashes[self._n :], self._powers[self._n :]
            self._joined = self._joined[:-1] * powers + hashes
            self._separate = self._separate[:-1] * _SEPARATOR + hashes
            self._n += 1

    def characters(self, start: int, n: int) -> str:
        """The n-gram at `start` without separators."""
        return self.solid[self.starts[start] : self.ends[start + n - 1]]

    def words(self, start: int, n: int) -> tuple[str, ...]:
        """The n-gram at `start`, word by word."""
        return tuple(self.characters(position, 1) for position in range(start, start + n))


def _powers_of(lengths: Ints) -> Hashes:
    powers = _POWERS[np.minimum(lengths, _NUM_POWERS - 1)]
    for position in np.flatnonzero(lengths >= _NUM_POWERS).tolist():
        powers[position] = pow(BASE, int(lengths[position]), 2**64)
    return powers


def repeated(hashes: Hashes) -> Ints:
    """Positions, ascending, of the hashes that occur more than once."""
    ordered = np.sort(hashes)
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return np.zeros(0, np.int64)
    twice = ordered[1:][again]
    nearest = np.minimum(np.searchsorted(twice, hashes), len(twice) - 1)
    return np.flatnonzero(twice[nearest] == hashes)


def most_common(windows: Windows, n: int) -> tuple[int, int] | None:
    """First position and number of occurrences of the most common n-gram, the first seen of equals; None where the
    text has fewer than n tokens."""
    hashes = windows.worded(n)
    if len(windows) < n:
        return None
    ordered = np.sort(hashes)
    bounds = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
    runs = np.diff(bounds)
    count = int(runs.max())
    if count == 1:
        return 0, 1
    top = ordered[bounds[:-1][runs == count]]
    nearest = np.minimum(np.searchsorted(top, hashes), len(top) - 1)
    start = int(np.argmax(top[nearest] == hashes))
    expected = windows.words(start, n)
    if all(windows.words(other, n) == expected for other in np.flatnonzero(hashes == hashes[start]).tolist()):
        return start, count
    return _most_common_exactly(windows, n)


def _most_common_exactly(windows: Windows, n: int) -> tuple[int, int]:
    """The same without trust in hashes."""
    first: dict[tuple[str, ...], int] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for start in repeated(windows.worded(n)).tolist():
        words = windows.words(start, n)
        first.setdefault(words, start)
        counts[words] += 1
    words, count = counts.most_common(1)[0]
    return (first[words], count) if count > 1 else (0, 1)


def greedy_duplicate_chars(windows: Windows, n: int) -> int:
    """Characters of n-grams spelled like an earlier one, taken from the left without overlap (as datatrove counts:
    a repeat is skipped whole, and what it spans is not remembered)."""
    seen: set[str] = set()
    chars, free = 0, 0
    for start in repeated(windows.spelled(n)).tolist():
        if start < free:
            continue
        gram = windows.characters(start, n)
        if gram in seen:
            chars += len(gram)
            free = start + n
        else:
            seen.add(gram)
    return chars
