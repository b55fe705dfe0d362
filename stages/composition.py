"""Unicode's normal forms NFC and NFD in linear time, a text as it is kept, and how many marks it puts on one
character.

`unicodedata.normalize` sorts the marks behind a letter by insertion (Unicode, canonical ordering algorithm,
D109). That takes the square of their number where they are out of order: 240 kB of U+0301 and U+0316 by turns
take 14 s, and 20 MB a day, in one call that no clock ends. Marks that are in order already cost it nothing.
So of a long run they are put in order first, which changes no normal form: the two texts are canonically
equivalent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, groupby
from typing import Final, Literal
from unicodedata import combining, normalize

import regex

from stages.surrogates import without_surrogates

_LONG: Final = 33
"""Marks in a row that are put in order first; of fewer the square is small."""
_MARK: Final = regex.compile(r"\p{M}")
_LONG_RUN: Final = regex.compile(rf"\p{{M}}{{{_LONG},}}+")
_MOST_BY_LETTER: Final = 3
"""Marks that a single letter is composed with (U+1FAF and others)."""
_MOST_BY_MARK: Final = 2
"""Marks that a single one is composed of (U+0344, U+0F73, U+0F75, U+0F81)."""


def normalised_in(form: Literal["NFC", "NFD"], text: str) -> str:
    """`unicodedata.normalize(form, text)`, to the last character, in linear time."""
    if text.isascii():
        return text
    return normalize(form, _LONG_RUN.sub(_in_order, text) if _may_have_row(text, _LONG) else text)


def clean_text(text: str) -> tuple[str, bytes]:
    """A text as it is kept (NFC, lines end in "\\n", no NUL, U+FFFD for a lone surrogate, no outer white space), and in
    UTF-8."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    cleaned, encoded = _normalised(text)
    # In bytes it is found at once: in wide characters half of the bytes are zero.
    if b"\0" in encoded:
        cleaned, encoded = _normalised(text.replace("\0", ""))  # it may stand between a letter and its mark
    return cleaned, encoded


def _normalised(text: str) -> tuple[str, bytes]:
    if not text.isascii():
        text = normalised_in("NFC", text)
    text = text.strip()
    try:
        return text, text.encode("utf-8")
    except UnicodeEncodeError:
        text = without_surrogates(text)
        return text, text.encode("utf-8")


def most_marks(text: str, at_least: int = 1) -> int:
    """The most combining marks in a row (non-starters: combining class other than 0) of a text's canonical
    decomposition; 0 where no row has `at_least` of them.

    Unicode's stream-safe format (UAX #15, section 13) allows 30: what people write needs far fewer."""
    if text.isascii():
        return 0
    fewest = max(1, -(-(at_least - _MOST_BY_LETTER) // _MOST_BY_MARK))
    candidates = _rows_of_at_least(fewest).finditer(text) if _may_have_row(text, fewest) else ()
    rows = (_rows(text[max(found.start() - 1, 0) : found.end()]) for found in candidates)
    most = max(chain.from_iterable(rows), default=0)
    # A letter may bring marks of its own where none stands behind it.
    if at_least <= _MOST_BY_LETTER and most < _MOST_BY_LETTER:
        most = max(most, *map(max, (tuple(_rows(letter)) or (0,) for letter in set(text))))
    return most if most >= at_least else 0


def _may_have_row(text: str, fewest: int) -> bool:
    """Whether so many marks may stand in a row: then one stands at one of these places."""
    some = text[fewest - 1 :: fewest]
    return not some.isascii() and _MARK.search(some) is not None


@cache
def _rows_of_at_least(fewest: int) -> regex.Pattern[str]:
    return regex.compile(rf"\p{{M}}{{{fewest},}}+")


def _rows(text: str) -> Iterator[int]:
    """The lengths of the rows of marks, in the canonical decomposition of each character."""
    for is_mark, row in groupby(_decomposed(text), key=_is_mark):
        if is_mark:
            yield sum(1 for _ in row)


def _in_order(run: regex.Match[str]) -> str:
    pieces: list[str] = []
    for _, row in groupby(_decomposed(run[0]), key=_is_mark):
        pieces += sorted(row, key=combining)  # a stable sort, as the standard asks for
    return "".join(pieces)


def _decomposed(text: str) -> Iterator[str]:
    for character in text:
        yield from normalize("NFD", character)


def _is_mark(character: str) -> bool:
    return combining(character) > 0
