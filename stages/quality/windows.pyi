from array import array

class Windows:
    """The n-grams of the words of `solid`, whose numbers of characters are `lengths` (int32, shape (num_words,))."""

    def __init__(self, solid: str, lengths: array[int], base: int | None = None) -> None:
        """`base` of the hashes: a random one where none is given. ValueError where the words are not all of the
        text."""

    def __len__(self) -> int:
        """Number of words."""

    def num_chars(self, start: int, n: int) -> int:
        """Characters of the words of the n-gram at `start`."""

    def most_common(self, n: int) -> tuple[int, int] | None:
        """First position and number of occurrences of the most common n-gram, the first seen of equals; None where the
        text has fewer than n words."""

    def counts(self, n: int) -> array[int]:
        """For each n-gram how often it occurs; int32, shape (num_words - n + 1,), empty for a shorter text."""

    def sizes(self, n: int) -> array[int]:
        """Characters of each n-gram's words; int32, shape as `counts`."""

    def greedy_duplicate_chars(self, n: int) -> int:
        """Characters of n-grams spelled like an earlier one ("ab c" is "a bc"), taken from the left without overlap (as
        datatrove counts: a repeat is skipped whole, and what it spans is not remembered)."""
