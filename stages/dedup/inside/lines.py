"""Lines as CCNet compares them (Wenzek et al. 2020, "CCNet"; cc_net/dedup.py and text_normalizer.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stages.dedup.inside.cuts import Cut

_UNICODE_PUNCTUATION: Final = "，。、„”“«»１」「《》´∶：？！（）；–—．～’…━〈〉【】％►"
"""cc_net/text_normalizer.py, UNICODE_PUNCT. ASCII punctuation stays."""
_REMOVED: Final = re.compile(f"[{re.escape(_UNICODE_PUNCTUATION)}\x00-\x1f\x7f-\x9f]")
_DIGIT: Final = re.compile(r"\d")


def normalised_line(line: str) -> str:
    """What of a line is compared."""
    return _REMOVED.sub("", _DIGIT.sub("0", line.strip().lower()))


def lines_of(text: str) -> list[tuple[int, int]]:
    """The lines of a text as (start, end), without their ends."""
    found, at = [], 0
    for line in text.split("\n"):
        found.append((at, at + len(line)))
        at += len(line) + 1
    return found


def without_lines(lines: Sequence[tuple[int, int]], gone: Sequence[tuple[int, int, int]]) -> list[Cut]:
    """The cuts of lines given as (number, twin, twin_start), in order: those that are left are joined by single line
    ends."""
    numbers = {number for number, _, _ in gone}
    first = next((number for number in range(len(lines)) if number not in numbers), len(lines))
    found = []
    for number, twin, twin_start in gone:
        start, end = lines[number]
        # Each line takes a line end with it: the one behind it up to the first line that is left, then the one before.
        if number > first:
            start -= 1
        elif number + 1 < len(lines):
            end += 1
        if start < end:
            found.append(Cut(start, end, twin, twin_start))
    return found
