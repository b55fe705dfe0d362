"""From repeated runs to cuts: what is cut out of a text, where the same text stays, and what is left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import regex

from stages.dedup.inside.anchors import I64
from stages.dedup.inside.options import MOSTLY_REPEATED, TOO_SHORT, InsideTable

NO_TWIN: Final = -1
"""Stands for the twin of text between two cuts, which stands nowhere else."""

_BORDER: Final = regex.compile(r"(?w)\b")
"""The word boundaries of UAX #29: none within a letter with its marks. Scripts without spaces have one at each
character."""
_LOOKED_BACK: Final = 128
_CONTEXT: Final = 32
"""Characters that say whether a border is between those before them."""


_MOST_GAPS: Final = 16
"""Gaps in a row that are cut: each is held against all before it."""


class Cut(NamedTuple):
    """Characters [start, end) of a document, which stay in document `twin` from its character `twin_start` on."""

    start: int
    end: int
    twin: int
    twin_start: int


class Cuts(NamedTuple):
    """Cuts of many documents, parallel arrays (C,), in order of (document, start)."""

    document: I64
    start: I64
    end: I64
    twin: I64
    twin_start: I64

    def take(self, rows: I64) -> Cuts:
        return Cuts(*(array[rows] for array in self))


def joined(cuts: Cuts) -> Cuts:
    """Cuts of one document and one twin that lie alike in both and overlap or touch, as one."""
    if not len(cuts.start):
        return cuts
    shift = cuts.twin_start - cuts.start
    order = np.lexsort((cuts.start, shift, cuts.twin, cuts.document))
    document, start, end, twin, _ = cuts.take(order)
    shift = shift[order]
    group = np.ones(len(order), np.bool_)
    group[1:] = (document[1:] != document[:-1]) | (twin[1:] != twin[:-1]) | (shift[1:] != shift[:-1])
    reached = _reached(group, end)
    new = group.copy()
    new[1:] |= start[1:] > reached[:-1]
    begins = np.flatnonzero(new)
    ends = reached[np.append(begins[1:], len(order)) - 1]
    return Cuts(document[begins], start[begins], ends, twin[begins], start[begins] + shift[begins])


def _reached(group: np.ndarray, end: I64) -> I64:
    """The greatest end so far within each group."""
    if not len(end):
        return end
    number = np.cumsum(group)
    # Each group lies above all ends of the group before it.
    width = int(end.max()) + 1
    found: I64 = np.maximum.accumulate(end + number * width) - number * width
    return found


def without_overlap(cuts: Cuts) -> Cuts:
    """The same characters, each in one cut."""
    order = np.lexsort((-cuts.end, cuts.start, cuts.document))
    document, start, end, twin, twin_start = cuts.take(order)
    group = np.ones(len(order), np.bool_)
    group[1:] = document[1:] != document[:-1]
    reached = _reached(group, end)
    begin = start.copy()
    begin[1:] = np.where(group[1:], start[1:], np.maximum(start[1:], reached[:-1]))
    left = np.flatnonzero(end > begin)
    return Cuts(document, begin, end, twin, twin_start + begin - start).take(left)


def at_borders(text: str, cuts: Sequence[Cut], table: InsideTable) -> list[Cut]:
    """Cuts of one text, in order and without overlap, shortened so that no word (or line) is cut, and no two words
    come together that were apart."""
    found = []
    for begin, end in _touching(cuts):
        start, stop = _shortened(text, cuts[begin].start, cuts[end - 1].end, table.border)
        clipped = (_clipped(cut, start, stop) for cut in cuts[begin:end])
        found += [cut for cut in clipped if cut.start < cut.end]
    return found


def _touching(cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    """The ranges of cuts that touch each other."""
    if not cuts:
        return []
    begins = [n for n, cut in enumerate(cuts) if not n or cuts[n - 1].end < cut.start]
    return list(zip(begins, [*begins[1:], len(cuts)], strict=True))


def regions(cuts: Sequence[Cut]) -> list[tuple[int, int]]:
    """What cuts in order take away, as (start, end): those that touch are one."""
    return [(cuts[begin].start, cuts[end - 1].end) for begin, end in _touching(cuts)]


def _clipped(cut: Cut, start: int, stop: int) -> Cut:
    begin = max(cut.start, start)
    return Cut(begin, min(cut.end, stop), cut.twin, cut.twin_start + begin - cut.start)


def _shortened(text: str, start: int, end: int, border: str) -> tuple[int, int]:
    if border == "line":
        if start and text[start - 1] != "\n":
            start = text.find("\n", start, end) + 1 or end
        if end < len(text) and text[end - 1] != "\n":
            end = text.rfind("\n", start, end) + 1 or start
        return (start, end) if start < end else (start, start)
    start = _next_border(text, start, end)
    end = _border_before(text, start, end)
    while start < end and not may_meet(text, start, end):
        start = _next_border(text, start + 1, end)
    return start, max(start, end)


def _next_border(text: str, start: int, end: int) -> int:
    if start >= end or start == 0:
        return min(start, end)
    found = _BORDER.search(text, start, min(end + 1, len(text)))
    return end if found is None else min(found.start(), end)


def _border_before(text: str, start: int, end: int) -> int:
    if end <= start or end == len(text):
        return max(start, end)
    while end > start:
        # What is looked at ends behind `end`, since the end of a stretch counts as a border.
        begin = max(start, end - _LOOKED_BACK)
        stop = min(len(text), end + _CONTEXT)
        found = [each.start() for each in _BORDER.finditer(text, begin, stop) if begin < each.start() <= end]
        if found:
            last: int = found[-1]
            return last
        end = begin
    return start


def may_meet(text: str, start: int, end: int) -> bool:
    """Whether text[:start] and text[end:] may follow each other: no word of one grows by the other."""
    if not start or end >= len(text) or text[start - 1].isspace() or text[end].isspace():
        return True
    left = text[max(0, start - _CONTEXT) : start]
    together = left + text[end : end + _CONTEXT]
    return any(found.start() == len(left) for found in _BORDER.finditer(together))


def gaps(text: str, taken: Sequence[tuple[int, int]], max_gap: int) -> list[Cut]:
    """The text between neighbouring regions that is no longer than `max_gap` characters, as cuts without a twin.

    Whichever of them are cut in the end, no two words come together."""
    found: list[Cut] = []
    starts: list[int] = []
    for (start, end), (begin, stop) in itertools.pairwise(taken):
        starts.append(start)
        is_short = begin - end <= max_gap and len(starts) < _MOST_GAPS
        if is_short and all(may_meet(text, each, stop) for each in starts):
            found.append(Cut(end, begin, NO_TWIN, 0))
        else:
            starts = []
    return found


def left_of(text: str, taken: Sequence[tuple[int, int]]) -> str:
    """The text without these regions, which are in order."""
    begins, ends = [0, *(end for _, end in taken)], [*(start for start, _ in taken), len(text)]
    return "".join(text[begin:end] for begin, end in zip(begins, ends, strict=True))


class TooLittle(NamedTuple):
    """Why a document is rejected of which cuts leave too little."""

    rule: str
    value: float
    threshold: float


def too_little(text: str, left: str, table: InsideTable) -> TooLittle | None:
    """The rule by which a document is rejected of whose text this is left; None if it stays."""
    num = len(left.strip())
    if num < table.min_chars:
        return TooLittle(TOO_SHORT, num, table.min_chars)
    share = num / len(text)
    return TooLittle(MOSTLY_REPEATED, share, table.min_share) if share < table.min_share else None
