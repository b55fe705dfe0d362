"""N-gram matching: which items of a benchmark stand in a document, how much of each, and where.

Two schemes. `13w`: 13-grams of lower-cased words without punctuation (GPT-3, 2005.14165 appendix C). `8t`:
8-grams of the tokens of the same words (Tülu 3, 2411.15124 section 3.2, and Llama 3, 2407.21783 section 4.2,
use 8), each word encoded by itself behind a space: so capitals, line breaks and punctuation, of which a
text's own tokens are full, hide an item from neither. An item's *overlap* with a document is the share of the
item's words or tokens that lie in an n-gram which both have (Tülu 3). An item shorter than an n-gram counts
as found, overlap 1, where all its words stand in a row; fewer than 5 words say nothing.

Hashes of windows (a window is the n elements from one place on) find candidates; words and tokens are then
compared themselves, so no crafted collision makes a match and nothing depends on the process's hash seed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

ElementKind = Literal["words", "tokens"]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.uint32]
Encode = Callable[[Sequence[str]], Sequence[Tokens]]
"""The tokens of each of some texts."""

NGRAM_SIZES: Final = {"13w": 13, "8t": 8}
LEAST_WORDS: Final = 5
_NOT_A_LETTER = re.compile(r"[^\w\s]|_")
_POINTS = re.compile(
    "[\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Points of Hebrew and Arabic, and variation selectors, which are no part of a word."""
_NOT_SPACE = re.compile(r"\S+")
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio; odd, so that no word's bits are lost
_MOST_PLACES: Final = 16  # of one n-gram in a document; more would let a repeated line cost its square
_KNOWN_WORDS: Final = 1 << 16
_LONGEST_KNOWN: Final = 64  # characters of a word whose tokens are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramMatch:
    """An item that shares text with a document. `spans` are half-open ranges of the document's words, longest
    first and each in one piece in both; `longest` is the first one's length in elements, which are words or
    tokens."""

    item: int
    overlap: float
    element_kind: ElementKind
    longest: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elements:
    """What n-grams of a text are made of: its words, or their tokens with how many each word has."""

    ids: Sequence[object]
    num_of_words: Sequence[int] | None = None

    def word_of(self) -> Places:
        """The number of each element's word."""
        if self.num_of_words is None:
            return np.arange(len(self.ids))
        return np.repeat(np.arange(len(self.num_of_words)), self.num_of_words)


def words_of(text: str) -> list[str]:
    """The words of a text as GPT-3 compared them: lower case, punctuation gone, split at white space.

    The vowel signs of scripts such as Devanagari and Thai are no punctuation. The points of Hebrew and Arabic
    go, since most texts leave them out."""
    words = (part if part.isalnum() else _without_punctuation(part) for part in text.lower().split())
    return [word for word in words if word]


@lru_cache(maxsize=1 << 16)
def _without_punctuation(part: str) -> str:
    if part.isascii():
        return _NOT_A_LETTER.sub("", part)
    word = "".join(char for char in part if char.isalnum() or _is_sign(char))
    return word if any(map(str.isalnum, word)) else ""


def _is_sign(char: str) -> bool:
    """Whether it is a mark that tells words apart."""
    return unicodedata.category(char) in ("Mn", "Mc") and not _POINTS.match(char)


def word_places(text: str) -> list[tuple[int, int]]:
    """Where each word (see `words_of`) stands in the text itself."""
    return [match.span() for match in _NOT_SPACE.finditer(text) if words_of(match[0])]


def character_spans(
    places: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Where spans of words stand in a text whose words have these places."""
    return [(places[start][0], places[end - 1][1]) for start, end in spans]


class _WordTokens:
    """The tokens of words, those of short ones remembered: a text is mostly made of words that came
    before."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._known: dict[str, list[int]] = {}

    def __call__(self, words: Sequence[str]) -> list[list[int]]:
        known = self._known
        new = [word for word in dict.fromkeys(words) if word not in known]
        encoded = self._encode([f" {word}" for word in new]) if new else ()
        fresh = {word: tokens.tolist() for word, tokens in zip(new, encoded, strict=True)}
        found = [known[word] if word in known else fresh[word] for word in words]
        if len(known) + len(fresh) > _KNOWN_WORDS:
            known.clear()
        known.update((word, tokens) for word, tokens in fresh.items() if len(word) <= _LONGEST_KNOWN)
        return found


class NgramIndex:
    """The n-grams of a list of items, ready to be looked for in documents. Made once for each process."""

    def __init__(
        self, items: Sequence[str], ngram: Literal["13w", "8t"], encode: Encode | None = None
    ) -> None:
        """`encode` gives the tokens of texts and is needed for `8t`."""
        if ngram == "8t" and encode is None:
            raise ValueError(
                "n-grams of tokens (8t) need an encoding: give the function that makes tokens of texts"
            )
        self.ngram = ngram
        self.size = NGRAM_SIZES[ngram]
        self._tokens = _WordTokens(encode) if ngram == "8t" and encode is not None else None
        long_items, short_items, skipped = self._sort_out(items)
        self.num_items = len(items)
        self.skipped: tuple[int, ...] = tuple(skipped)
        """Items that are too short to be looked for."""
        self._windows = _WindowTable(long_items, self.size)
        by_length: dict[int, dict[int, Sequence[str]]] = {}
        for item, words in short_items.items():
            by_length.setdefault(len(words), {})[item] = words
        self._whole = {length: _WindowTable(group, length) for length, group in sorted(by_length.items())}

    @property
    def num_ngrams(self) -> int:
        """How many distinct n-grams the items have (whole short items not among them)."""
        return self._windows.num_ngrams

    def ngrams_in(self, text: str) -> Places:
        """The numbers (0 to num_ngrams - 1, the same in every process) of the n-grams that a text holds,
        sorted."""
        return self._windows.ngrams_in(self._elements(words_of(text)).ids)

    def match(self, text: str, ignore: npt.NDArray[np.bool_] | None = None) -> list[NgramMatch]:
        """The items that share an n-gram with `text`, by item number; `ignore[k]` leaves n-gram k out (then
        nothing that is common to many documents counts)."""
        kind: ElementKind = "words" if self._tokens is None else "tokens"
        words = words_of(text)
        found = {match.item: match for match in self._windows.match(self._elements(words), kind, ignore)}
        found |= {match.item: match for match in self._match_short(words)}
        return [found[item] for item in sorted(found)]

    def match_short(self, text: str) -> list[NgramMatch]:
        """The items of few elements that stand in `text` as a whole."""
        return self._match_short(words_of(text)) if self._whole else []

    def _match_short(self, words: Sequence[str]) -> list[NgramMatch]:
        elements = _Elements(ids=words)
        return [match for table in self._whole.values() for match in table.match(elements, "words", None)]

    def _elements(self, words: Sequence[str]) -> _Elements:
        if self._tokens is None:
            return _Elements(ids=words)
        of_words = self._tokens(words)
        return _Elements(ids=list(chain.from_iterable(of_words)), num_of_words=list(map(len, of_words)))

    def _sort_out(
        self, items: Sequence[str]
    ) -> tuple[dict[int, Sequence[object]], dict[int, Sequence[str]], list[int]]:
        """Items with n-grams as elements, those of few elements as words, and the numbers of those that are
        neither."""
        long_items: dict[int, Sequence[object]] = {}
        short_items: dict[int, Sequence[str]] = {}
        skipped: list[int] = []
        for item, text in enumerate(items):
            words = words_of(text)
            elements = self._elements(words).ids
            if len(elements) >= self.size:
                long_items[item] = elements
            elif len(words) >= LEAST_WORDS:
                short_items[item] = words
            else:
                skipped.append(item)
        return long_items, short_items, skipped


class _WindowTable:
    """Every window of `size` elements of some items, by hash."""

    def __init__(self, items: dict[int, Sequence[object]] | dict[int, Sequence[str]], size: int) -> None:
        self._size = size
        self._items: dict[int, Sequence[object]] = dict(items)
        windows = [window_hashes(_element_hashes(elements), size) for elements in self._items.values()]
        hashes = np.concatenate(windows) if windows else np.empty(0, np.uint64)
        owners = np.repeat(np.array(list(self._items), dtype=np.int64), [len(w) for w in windows])
        places = np.concatenate([np.arange(len(w)) for w in windows]) if windows else np.empty(0, np.int64)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owners, self._places = hashes[order], owners[order], places[order]
        self._numbers = _first_seen_numbers(self._hashes, order)
        self.num_ngrams = int(self._numbers.max(initial=-1)) + 1
        # Most documents share nothing with a benchmark. This table says which leading bits occur among the
        # items' hashes; it is at most a sixteenth full, so a look at it rules nearly every window out before
        # any search.
        bits = max(int(np.ceil(np.log2(max(len(hashes), 1) * 16))), 10)
        self._shift = np.uint64(64 - min(bits, 26))
        self._seen = np.zeros(1 << min(bits, 26), dtype=np.bool_)
        self._seen[self._hashes >> self._shift] = True

    def ngrams_in(self, elements: Sequence[object]) -> Places:
        rows, _ = self._candidates(elements, None)
        return np.unique(self._numbers[rows])

    def match(
        self, of_text: _Elements, element_kind: ElementKind, ignore: npt.NDArray[np.bool_] | None
    ) -> list[NgramMatch]:
        elements = of_text.ids
        rows, found_at = self._candidates(elements, ignore)
        if not len(rows):
            return []
        owners, places = self._owners[rows], self._places[rows]
        # A run: windows that follow one another in the item and in the document. All of a run lie on one
        # diagonal (place in the document minus place in the item), so sorted by item, diagonal and place they
        # stand together.
        order = np.lexsort((found_at, found_at - places, owners))
        owners, places, found_at = owners[order], places[order], found_at[order]
        same_run = (np.diff(owners) == 0) & (np.diff(found_at) == 1) & (np.diff(places) == 1)
        starts = np.flatnonzero(np.concatenate([[True], ~same_run]))
        ends = np.append(starts[1:], len(owners))
        runs: dict[int, list[tuple[int, int, int]]] = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            owner, place, found = int(owners[start]), int(places[start]), int(found_at[start])
            runs.setdefault(owner, []).extend(self._verified(elements, owner, place, found, end - start))
        word_of = of_text.word_of()
        return [
            self._as_match(owner, word_of, element_kind, pieces) for owner, pieces in runs.items() if pieces
        ]

    def _candidates(
        self, elements: Sequence[object], ignore: npt.NDArray[np.bool_] | None
    ) -> tuple[Places, Places]:
        """Rows of the table and places in the document whose hashes agree, each n-gram at its first few
        places."""
        none = np.empty(0, np.int64)
        if len(elements) < self._size or not len(self._hashes):
            return none, none
        windows = window_hashes(_element_hashes(elements), self._size)
        near = np.flatnonzero(self._seen[windows >> self._shift])
        if not len(near):
            return none, none
        near = _first_few(near, windows[near])
        # [low, low + count) are the rows of a window's hash; `rows` lists these ranges one after another.
        low = np.searchsorted(self._hashes, windows[near], "left")
        count = np.searchsorted(self._hashes, windows[near], "right") - low
        found_at = np.repeat(near, count)
        rows = np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        if ignore is not None:
            wanted = ~ignore[self._numbers[rows]]
            rows, found_at = rows[wanted], found_at[wanted]
        return rows, found_at

    def _verified(
        self, elements: Sequence[object], owner: int, place: int, found: int, num_windows: int
    ) -> Iterator[tuple[int, int, int]]:
        """(place in the item, place in the document, elements) of what is really equal in a run of equal
        hashes."""
        item, length = self._items[owner], num_windows + self._size - 1
        if list(item[place : place + length]) == list(elements[found : found + length]):
            yield place, found, length
            return
        for offset in range(num_windows):  # two hashes met by chance or by design: go window by window
            a, b = place + offset, found + offset
            if list(item[a : a + self._size]) == list(elements[b : b + self._size]):
                yield a, b, self._size

    def _as_match(
        self, owner: int, word_of: Places, element_kind: ElementKind, pieces: list[tuple[int, int, int]]
    ) -> NgramMatch:
        covered = np.zeros(len(self._items[owner]), dtype=np.bool_)
        for place, _, length in pieces:
            covered[place : place + length] = True
        spans = sorted(
            {(found, found + length) for _, found, length in pieces}, key=lambda s: (s[0] - s[1], s[0])
        )
        return NgramMatch(
            item=owner,
            overlap=float(covered.mean()),
            element_kind=element_kind,
            longest=spans[0][1] - spans[0][0],
            spans=tuple((int(word_of[start]), int(word_of[end - 1]) + 1) for start, end in spans),
        )


def _element_hashes(elements: Sequence[object]) -> Hashes:
    """A well-mixed 64-bit hash of each word or token, shape (len(elements),), from Python's own, which
    differs by process."""
    raw = np.fromiter(map(hash, elements), dtype=np.int64, count=len(elements)).view(np.uint64)
    mixed = (raw ^ (raw >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))


def window_hashes(hashes: Hashes, size: int) -> Hashes:
    """A hash of every `size` consecutive hashes, shape (len(hashes) - size + 1,), none of fewer: a polynomial
    over them modulo 2^64, so that equal windows have equal hashes wherever they stand."""
    num_windows = max(len(hashes) - size + 1, 0)
    total = np.zeros(num_windows, np.uint64)
    # Horner's rule for all windows at once: one pass over the array for each place in the window.
    for place in range(size):
        total *= _BASE
        total += hashes[place : place + num_windows]
    return total


def _first_seen_numbers(hashes: Hashes, order: Places) -> Places:
    """For each entry of the sorted `hashes` its n-gram's number: n-grams count in the order in which items
    show them, which no hash seed changes. `order[i]` is where entry i stood before sorting."""
    if not len(hashes):
        return np.empty(0, np.int64)
    group = np.cumsum(np.concatenate([[False], hashes[1:] != hashes[:-1]])).astype(np.int64)
    first = order[
        np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    ]  # stable sort: the least
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[group]


def _first_few(places: Places, hashes: Hashes) -> Places:
    """`places` without those where a hash has come `_MOST_PLACES` times before."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    nth = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.append(begins, len(ordered))))
    return np.sort(places[order[nth < _MOST_PLACES]])
