"""N-gram measures against plain implementations without hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.quality.grams import Grams
from stages.quality.tokens import Tokens, hash_of
from stages.quality.windows import Windows, greedy_duplicate_chars, most_common, repeated

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


def windows(words: Sequence[str]) -> Windows:
    lengths = np.array([len(word) for word in words], np.int64)
    hashes = np.array([hash_of(word) for word in words], np.uint64)
    return Windows(Tokens(lengths=lengths, hashes=hashes), "".join(words))


def colliding(words: Sequence[str]) -> Windows:
    """The same words, all hashes equal: as if a hostile page had made every window collide."""
    solid = "".join(words)
    lengths = np.array([len(word) for word in words], np.int64)
    return Windows(Tokens(lengths=lengths, hashes=np.zeros(len(words), np.uint64)), solid)


@pytest.mark.parametrize("make", [windows, colliding], ids=["hashed", "all hashes collide"])
@settings(max_examples=150, deadline=None)
@given(words=words, n=sizes)
def test_the_most_common_gram_is_the_one_that_counting_gives(make: type, words: list[str], n: int) -> None:
    grams = make(words)
    found, expected = most_common(grams, n), plain_top(words, n)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (" ".join(grams.words(found[0], n)), found[1]) == expected


@pytest.mark.parametrize("make", [windows, colliding], ids=["hashed", "all hashes collide"])
@settings(max_examples=150, deadline=None)
@given(words=words, n=sizes)
def test_greedy_duplicates_are_those_of_the_plain_scan(make: type, words: list[str], n: int) -> None:
    assert greedy_duplicate_chars(make(words), n) == plain_greedy(words, n)


@settings(max_examples=150, deadline=None)
@given(words=words, n=sizes)
def test_grams_of_words_are_counted_as_plain_counting_does(words: list[str], n: int) -> None:
    listed = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    counts = Counter(listed)
    grams = Grams(words)
    assert grams.counts(n).tolist() == [counts[gram] for gram in listed]
    assert grams.sizes(n).tolist() == [len("".join(gram)) for gram in listed]
    assert grams.covered_chars(n) == plain_covered(words, n)
    top = counts.most_common(1)
    assert grams.most_common(n) == ((len("".join(top[0][0])), top[0][1]) if top else (0, 0))
    most = max(counts.values(), default=0)
    longest = max((len("".join(gram)) for gram, count in counts.items() if count == most), default=0)
    assert grams.longest_of_most_common(n) == ((longest, most) if most > 1 else (0, 0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=60))
def test_repeated_positions_are_all_occurrences_of_what_comes_twice(values: list[int]) -> None:
    counts = Counter(values)
    expected = [at for at, value in enumerate(values) if counts[value] > 1]
    assert repeated(np.array(values, np.uint64)).tolist() == expected


def test_windows_can_be_asked_in_any_order() -> None:
    text = list("ababcababd")
    up, down = windows(text), windows(text)
    ascending = [up.worded(n).tolist() for n in range(1, 8)]
    assert [down.worded(n).tolist() for n in range(7, 0, -1)] == ascending[::-1]
    rising, falling = Grams(text), Grams(text)
    numbers = [rising.numbers(n).tolist() for n in range(1, 8)]
    assert [falling.numbers(n).tolist() for n in range(7, 0, -1)] == numbers[::-1]


def test_words_longer_than_the_table_of_powers_keep_their_place_in_the_hash() -> None:
    long = ["q" * 300, "r" * 255, "s" * 256]
    text = [*long, "x", *long]
    assert greedy_duplicate_chars(windows(text), 3) == plain_greedy(text, 3) == 811
