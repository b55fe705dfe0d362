"""A text as the rules look at it: what several rules measure of it is worked out once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import regex

from stages.quality.splitters import AnySplitter, TextWords
from stages.quality.windows import Windows
from stages.quality.words import Counts, Split

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

_PARAGRAPH_BREAK: Final = re.compile(r"\n{2,}")

_FASTTEXT_SPACE: Final = re.compile(r"[ \n\r\t\v\f\0]")
_UAX29_WORD: Final = regex.compile(
    r"[\p{L}\p{N}](?:[\p{L}\p{N}\p{Pc}]|[\p{M}\u00ad\u200c\u200d\u2060]"
    r"|(?<=\p{L}\p{M}*)[':.\u00b7\u2019](?=\p{L})|(?<=\d)[',.;\u2019](?=\d))*"
)
"""Marks, soft hyphens and joiners part no word (rule WB4)."""


class Reader(Protocol[T_co]):
    """Something worked out from a text; hashable, so that a view remembers it."""

    def __call__(self, view: TextView, /) -> T_co: ...

    def __hash__(self) -> int: ...


class TextView:
    """A text and its words in one language; `path` is that of a source file, where its name counts."""

    __slots__ = ("_known", "path", "splitter", "text")

    def __init__(self, text: str, splitter: AnySplitter, path: str = "") -> None:
        self.text = text
        self.splitter = splitter
        self.path = path
        self._known: dict[Hashable, Any] = {}

    def once(self, reader: Reader[T]) -> T:
        """What `reader` says of this text, asked once."""
        if reader not in self._known:
            self._known[reader] = reader(self)
        return cast(T, self._known[reader])


def share(part: float, whole: float) -> float:
    """part / whole; 0 of nothing is 0."""
    return part / whole if whole else 0.0


def split(view: TextView) -> Split | TextWords:
    """The text's words as its language's splitter gives them."""
    return view.splitter.split(view.text)


def counts(view: TextView) -> Counts:
    """Sums over the text's words."""
    return view.once(split).counts


def whitespace_words(view: TextView) -> list[str]:
    """What stands between white space."""
    return view.text.split()


def fasttext_words(view: TextView) -> list[str]:
    """What stands between fastText's white space (`Dictionary::readWord` in its dictionary.cc) and begins
    with a letter or a digit."""
    return [word for word in _FASTTEXT_SPACE.split(view.text) if word[:1].isalnum()]


def uax29_words(view: TextView) -> list[str]:
    """Words between the word boundaries of Unicode's UAX #29 that begin with a letter or a digit; scripts
    without spaces are not cut."""
    return uax29_words_of(view.text)


def uax29_words_of(text: str) -> list[str]:
    """As `uax29_words`, of a text that is no page's."""
    words: list[str] = _UAX29_WORD.findall(text)
    return words


def windows(view: TextView) -> Windows:
    """N-grams of the text's words."""
    words = view.once(split)
    return Windows(words.solid(), words.lengths())


def windows_of(words: Sequence[str]) -> Windows:
    """N-grams of these words."""
    return Windows("".join(words), array("i", map(len, words)))


def all_lines(view: TextView) -> list[str]:
    """Lines by any line boundary of Unicode."""
    return view.text.splitlines()


def feed_lines(view: TextView) -> list[str]:
    """What stands between line feeds."""
    return view.text.split("\n")


def written_lines(view: TextView) -> list[str]:
    """Lines between line feeds that hold more than white space."""
    return [line for line in view.once(feed_lines) if line and not line.isspace()]


def line_blocks(view: TextView) -> list[str]:
    """Lines between runs of line feeds."""
    lines = view.once(feed_lines)
    if "\n\n" not in view.text:
        return lines
    written = [line for line in lines if line]
    return [""] * (lines[0] == "") + written + [""] * (lines[-1] == "")


def paragraphs(view: TextView) -> list[str]:
    """Paragraphs of the stripped text between runs of two line feeds or more."""
    text = view.text.strip()
    return _PARAGRAPH_BREAK.split(text) if "\n\n\n" in text else text.split("\n\n")


def repeats(segments: Sequence[str]) -> tuple[int, int]:
    """How many segments repeat an earlier one, and their characters."""
    distinct = set(segments)
    if len(distinct) == len(segments):
        return 0, 0
    return len(segments) - len(distinct), sum(map(len, segments)) - sum(map(len, distinct))


Measure = Callable[[TextView], float]
