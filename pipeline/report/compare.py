"""Two texts side by side: which words of the second are not those of the first."""

from __future__ import annotations

import difflib
import re

_LEAST_ALIKE = 0.5
"""Below this share of common words nothing is marked: everything would be."""
_WORDS = re.compile(r"\S+\s*|\s+")


def compare_words(first: str, second: str) -> tuple[tuple[str, bool], ...]:
    """`second` cut into (piece, whether it differs from `first`); a word that is only missing marks the one
    behind it.

    Both are beginnings of longer texts, so what stands behind the last common word differs only by where they
    were cut: it is not marked."""
    ours, theirs = _WORDS.findall(first), _WORDS.findall(second)
    matcher = difflib.SequenceMatcher(
        None, [word.strip() for word in ours], [word.strip() for word in theirs], False
    )
    if matcher.ratio() < _LEAST_ALIKE:
        return ((second, False),)
    last = max(block.b + block.size for block in matcher.get_matching_blocks() if block.size)
    changed = [False] * len(theirs)
    for kind, _, _, start, end in matcher.get_opcodes():
        if kind != "equal":
            changed[start : max(end, start + 1)] = [True] * (max(end, start + 1) - start)
    pieces: list[tuple[str, bool]] = []
    for position, word in enumerate(theirs):
        differs = changed[position] and position < last
        if pieces and pieces[-1][1] == differs:
            pieces[-1] = (pieces[-1][0] + word, differs)
        else:
            pieces.append((word, differs))
    return tuple(pieces)
