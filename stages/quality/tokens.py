"""A text's words as numbers: what is counted of them, and their lengths and hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

BASE: Final = 0x9E3779B97F4A7C15
"""Odd base of the polynomial hashes mod 2^64: a token's is the sum of its characters times BASE^(places after)."""
_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over a text's tokens. A *word* is a token with a character that is no punctuation; `word_chars` are the
    characters of words; an alphabetic token has a letter; `num_stop_words` counts distinct stop words."""

    num_tokens: int
    num_words: int
    word_chars: int
    num_alphabetic: int
    num_stop_words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A text's tokens in order: number of characters and hash of each, shape (num_tokens,)."""

    lengths: Ints
    hashes: Hashes


def hash_of(token: str) -> int:
    """The polynomial hash of a token's characters mod 2^64."""
    value = 0
    for code in map(ord, token):
        value = (value * BASE + code) & _MASK
    return value
