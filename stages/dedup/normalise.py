"""What is made alike in two texts before they are compared, as the recipes that published it have it.

- `none`: nothing.
- `fineweb`: `simplify_text` of datatrove 0.10.1, with which FineWeb and FineWeb-2 are deduplicated (Penedo et
  al. 2024, section 3.4). In this order: lower case; each number, in the digits of any script, becomes 0;
  punctuation and control characters become spaces; white space becomes one space; canonical decomposition
  (NFD), of which non-spacing marks go.
- `slimpajama`: `clean_text` of SlimPajama (Soboleva et al. 2023), which Dolma 3 has too: lower case, ASCII
  punctuation is deleted, white space becomes one space.

Every one is linear in the text and depends on nothing else.
"""

from __future__ import annotations

import re
import string
import unicodedata
from itertools import chain
from typing import Final

import regex

from stages.composition import normalised_in
from stages.dedup.options import Normalise

_DECIMAL_POINTS: Final = ".,\u060c\u066b\u2396\u2397\u2398"
_CONTROLS: Final = "".join(map(chr, chain(range(9), range(11, 13), range(13, 32), range(127, 160))))
_PUNCTUATION: Final = (
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    "\u00ab\u00b4\u00bb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501\u25ba"
    "\u3001\u3002\u3008\u3009\u300a\u300b\u300c\u300d\u3010\u3011\uff01\uff05\uff08\uff09\uff0c\uff0e\uff11\uff1a\uff1b\uff1f\uff5e"
)
"""datatrove's own list, which is no category of Unicode; the full-width digit 1 is in it too."""

_NUMBER: Final = re.compile(r"[0-9]+(?:[.,][0-9]+)?")
_NUMBER_OF_ANY_SCRIPT: Final = regex.compile(rf"\p{{Nd}}+(?:[{_DECIMAL_POINTS}]\p{{Nd}}+)?")
_PUNCTUATION_TO_SPACE: Final = str.maketrans(
    dict.fromkeys(filter(str.isascii, _PUNCTUATION + _CONTROLS), " ")
)
_PUNCTUATION_MARK: Final = re.compile(f"[{re.escape(_PUNCTUATION + _CONTROLS)}]")
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ASCII_PUNCTUATION: Final = re.compile(f"[{re.escape(string.punctuation)}]+")
_FEW_MARKS: Final = 32
"""A search through the text for each of so many different marks costs less than one look at every
character."""


def normalised(text: str, normalise: Normalise) -> str:
    """`text` as it is compared."""
    match normalise:
        case "none":
            return text
        case "fineweb":
            return _fineweb(text.lower())
        case "slimpajama":
            return _slimpajama(text.lower())


def _fineweb(text: str) -> str:
    is_ascii = text.isascii()
    text = (_NUMBER if is_ascii else _NUMBER_OF_ANY_SCRIPT).sub("0", text)
    if is_ascii:
        return " ".join(text.translate(_PUNCTUATION_TO_SPACE).split())
    # Of other text str.translate asks a table for each character, six times the cost of a search.
    text = " ".join(_PUNCTUATION_MARK.sub(" ", text).split())
    # Marks go last: where one stood alone, two spaces stay.
    return _without_marks(normalised_in("NFD", text)).strip()


def _without_marks(text: str) -> str:
    """Non-spacing marks (category Mn, as this Python's Unicode database has it) taken out."""
    marks = [char for char in set(text) if char > "\x7f" and unicodedata.category(char) == "Mn"]
    if len(marks) > _FEW_MARKS:
        return text.translate(dict.fromkeys(map(ord, marks)))
    for mark in marks:
        text = text.replace(mark, "")
    return text


def _slimpajama(text: str) -> str:
    text = text.translate(_WITHOUT_PUNCTUATION) if text.isascii() else _ASCII_PUNCTUATION.sub("", text)
    return " ".join(text.split())
