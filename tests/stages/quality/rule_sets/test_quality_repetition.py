"""N-gram measures against plain implementations without hashes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.quality.rule_sets import gopher_repetition
from stages.quality.text_view import TextView, windows_of
from stages.quality.windows import Windows
from stages.quality.words import Splitter

words = st.lists(st.sampled_from(["a", "b", "ab", "ba", "aa", "c", "bc", "abc", "字", "x🙂"]), max_size=80)
sizes = st.integers(2, 10)


def plain_top(words: Sequence[str], n: int) -> tuple[str, int] | None:
    grams = [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]
    return Counter(grams).most_common(1)[0] if grams else None


def plain_greedy(words: Sequence[str], n: int) -> int:
    """datatrove 0.10.1, find_all_duplicate, in our words."""
    seen, chars, start = set(), 0, 0
    while start < len(words) - n + 1:
        gram = "".join(words[start : start + n])
        chars += len(gram) if gram in seen else 0
        start += n if gram in seen else 1
        seen.add(gram)
    return chars


def plain_covered(words: Sequence[str], n: int) -> int:
    """DCLM's repeated_word_indices."""
    grams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    counts = Counter(grams)
    covered = {at for start, gram in enumerate(grams) if counts[gram] > 1 for at in range(start, start + n)}
    return sum(len(words[at]) for at in covered)


def windows(words: Sequence[str], base: int | None = None) -> Windows:
    return Windows("".join(words), array("i", map(len, words)), base)


bases = st.sampled_from([None, None, 0, 1])
"""At 0 an n-gram's hash is its last letter, at 1 the sum of its letters: many are alike."""


@settings(max_examples=300, deadline=None)
@given(words=words, n=sizes, base=bases)
@example(words=["ab", "c", "a", "bc"], n=2, base=0)
def test_the_most_common_gram_is_the_one_that_counting_gives(
    words: list[str], n: int, base: int | None
) -> None:
    found, expected = windows(words, base).most_common(n), plain_top(words, n)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        start, count = found
        assert (" ".join(words[start : start + n]), count) == expected
        assert words[start : start + n] not in [words[before : before + n] for before in range(start)]


@settings(max_examples=300, deadline=None)
@given(words=words, n=sizes, base=bases)
def test_greedy_duplicates_are_those_of_the_plain_scan(words: list[str], n: int, base: int | None) -> None:
    assert windows(words, base).greedy_duplicate_chars(n) == plain_greedy(words, n)


@settings(max_examples=150, deadline=None)
@given(words=words, n=sizes, base=bases)
def test_every_place_of_a_gram_is_counted_as_plain_counting_does(
    words: list[str], n: int, base: int | None
) -> None:
    listed = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    counts = Counter(listed)
    grams = windows(words, base)
    assert grams.counts(n).tolist() == [counts[gram] for gram in listed]
    assert grams.sizes(n).tolist() == [len("".join(gram)) for gram in listed]


@settings(max_examples=150, deadline=None)
@given(words=words, n=sizes)
def test_the_shares_of_the_word_variants_are_those_of_plain_counting(words: list[str], n: int) -> None:
    counts = Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
    most, whole = max(counts.values(), default=0), max(len("".join(words)), 1)
    longest = max((len("".join(gram)) for gram, count in counts.items() if count == most), default=0)
    view = TextView(" ".join(words), Splitter(None))
    top = gopher_repetition._longest_top_gram(view, n=n, grams=gopher_repetition._whitespace_word_grams)
    assert top == (longest * most / whole if most > 1 else 0)
    covered = gopher_repetition._covered_duplicates(view, n=n, grams=gopher_repetition._whitespace_word_grams)
    assert covered == plain_covered(words, n) / whole
    first = max(counts, key=counts.__getitem__, default=())
    assert gopher_repetition._dolma_top_gram(view, n=n) == len("".join(first)) * most / whole
    sizes = [(len("".join(gram)) * count, count) for gram, count in counts.items()]
    duplicates = sum(size for size, count in sizes if count > 1)
    assert gopher_repetition._dolma_duplicates(view, n=n) == duplicates / max(
        sum(size for size, _ in sizes), 1
    )


def test_windows_can_be_asked_in_any_order() -> None:
    text = list("ababcababd")
    up, down = windows(text), windows(text)
    ascending = [(up.most_common(n), up.greedy_duplicate_chars(n)) for n in range(1, 8)]
    assert [(down.most_common(n), down.greedy_duplicate_chars(n)) for n in range(7, 0, -1)] == ascending[::-1]
    rising, falling = windows_of(text), windows_of(text)
    counts = [rising.counts(n).tolist() for n in range(1, 8)]
    assert [falling.counts(n).tolist() for n in range(7, 0, -1)] == counts[::-1]


def test_words_of_any_length_keep_their_place_in_the_hash() -> None:
    long = ["q" * 300, "r" * 255, "s" * 256]
    text = [*long, "x", *long]
    assert windows(text).greedy_duplicate_chars(3) == plain_greedy(text, 3) == 811


@pytest.mark.parametrize("lengths", [[], [1, 1], [2, 2], [4, -1], [2**31 - 1]])
def test_lengths_that_are_not_the_texts_are_an_error(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="characters"):
        Windows("abc", array("i", lengths))


def test_windows_beyond_the_text_are_an_error() -> None:
    for start, n in ((0, 4), (3, 1), (-1, 1), (0, -1)):
        with pytest.raises(IndexError, match="words"):
            windows(["a", "b", "c"]).num_chars(start, n)
