from array import array
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

class Memo:
    """Substrings between white space with what is counted of their tokens. Each has a number, which stays as
    long as the memo."""

    num_bytes: int
    """What the memo weighs, about."""

    def __init__(self, stop_bits: dict[str, int], bits_of: Callable[[str], int]) -> None:
        """`stop_bits` gives each stop word a bit of its own (63 at most); `bits_of` tells of a character,
        as bits: a token of it alone ends a sentence (1), it is of Unicode category P (2), it is in `PUNCTUATION` (4),
        it is a letter (8)."""

    def add(self, substring: str, tokens: Iterable[str], first: int, last: int) -> None:
        """Remember a new substring's tokens, and the numbers of its ends (see `touching`)."""

    def numbers(self, substrings: list[str], learn: Callable[[list[str]], None]) -> array[int]:
        """The substrings' numbers; `learn` is called with those that are not known, each once, and adds them."""

    def sums(self, numbers: array[int]) -> tuple[int, int, int, int, int]:
        """Tokens, words, characters of words and tokens with a letter of the substrings with these numbers; the bits of
        the stop words among them."""

    def touching(
        self, numbers: array[int], neighbours: npt.NDArray[np.uint8], last: int
    ) -> tuple[list[int], int]:
        """Places k of `numbers` where `neighbours` [last of k - 1, first of k] is set, and the last of the last;
        `last` is that of the substring before."""

    def lengths(self, numbers: array[int]) -> array[int]:
        """Characters of every token of the substrings with these numbers; shape (num_tokens,)."""

    def kinds(self, number: int) -> bytes:
        """The kind of every token of a substring."""

def longest(substrings: list[str]) -> int:
    """Characters of the longest substring."""

def join_touching(text: str, substrings: list[str], touching: list[int]) -> list[str]:
    """The substrings between white space of `text`, substring k joined to the one before where they stand one
    space apart, for each k of `touching`."""
