"""Repeated n-grams of a list of words, exactly: every n-gram gets a number, equal ones the same.

The numbers of (n+1)-grams come from those of n-grams and of words by sorting pairs, so nothing is hashed and nothing
needs to be confirmed; a text costs a few sorts for each n, whatever it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Grams:
    """The n-grams of `words`; `num_chars` is the sum of the words' characters."""

    __slots__ = ("_ends", "_lengths", "_n", "_numbers", "_words", "num_chars")

    def __init__(self, words: Sequence[str]) -> None:
        known = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self._words: Ints = np.fromiter(map(known.__getitem__, words), np.int64, len(words))
        self._lengths: Ints = np.fromiter(map(len, words), np.int64, len(words))
        self._ends: Ints = np.cumsum(self._lengths)
        self.num_chars = int(self._lengths.sum())
        self._n, self._numbers = 1, self._words

    def numbers(self, n: int) -> Ints:
        """The number of each n-gram; shape (num_words - n + 1,), empty for a shorter text."""
        if n < self._n:
            self._n, self._numbers = 1, self._words
        while self._n < n:
            pairs = self._numbers[:-1] * (len(self._words) + 1) + self._words[self._n :]
            self._numbers = np.unique(pairs, return_inverse=True)[1]
            self._n += 1
        return self._numbers

    def sizes(self, n: int) -> Ints:
        """Characters of each n-gram's words."""
        starts = (self._ends - self._lengths)[: max(len(self._words) - n + 1, 0)]
        sizes: Ints = self._ends[n - 1 :] - starts
        return sizes

    def counts(self, n: int) -> Ints:
        """For each n-gram how often it occurs."""
        numbers = self.numbers(n)
        counts: Ints = np.bincount(numbers)[numbers] if len(numbers) else numbers
        return counts

    def covered_chars(self, n: int) -> int:
        """Characters of words that lie in an n-gram that occurs twice, each word once."""
        starts = np.flatnonzero(self.counts(n) > 1)
        depth = np.zeros(len(self._words) + 1, np.int64)
        depth[starts] += 1
        depth[starts + n] -= 1
        return int(self._lengths[np.cumsum(depth)[:-1] > 0].sum())

    def most_common(self, n: int) -> tuple[int, int]:
        """Characters and occurrences of the most common n-gram, the first seen of equals; (0, 0) for none."""
        counts = self.counts(n)
        if not len(counts):
            return 0, 0
        start = int(np.argmax(counts))
        return int(self.sizes(n)[start]), int(counts[start])

    def longest_of_most_common(self, n: int) -> tuple[int, int]:
        """Characters and occurrences of the most common n-gram, the longest of equals; (0, 0) if none comes twice."""
        counts = self.counts(n)
        most = int(counts.max(initial=0))
        return (int(self.sizes(n)[counts == most].max()), most) if most > 1 else (0, 0)
