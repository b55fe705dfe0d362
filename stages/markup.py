"""How big and how deep a page's markup is, from its characters alone: no tree is built of a hostile page."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

_LESS_THAN, _SLASH = 0x3C, 0x2F
_OCTETS = np.arange(256, dtype=np.uint8)
_IS_LETTER = np.isin(_OCTETS | 0x20, np.arange(0x61, 0x7B)) & (_OCTETS >= 0x41)
_ENDS_NAME = np.isin(_OCTETS, np.frombuffer(b"\t\n\x0b\x0c\r />\0", dtype=np.uint8)).astype(np.uint8)
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplying by it spreads a name over the high bits (Knuth, TAOCP 3, 6.4)."""
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>\0]*)")
_VOID: Final = frozenset(
    {
        "area",
        "base",
        "basefont",
        "br",
        "col",
        "command",
        "embed",
        "frame",
        "hr",
        "img",
        "input",
        "keygen",
        "link",
        "meta",
        "param",
        "source",
        "track",
        "wbr",
    }
)
_CLOSES: Final = {
    name: frozenset(closed.split())
    for names, closed in (
        ("p div ul ol dl table section article header footer nav blockquote pre form hr", "p"),
        ("li", "p li"),
        ("dt dd", "p dt dd"),
        ("option optgroup", "option optgroup"),
        ("td th", "p td th"),
        ("tr", "p td th tr"),
        ("thead tbody tfoot", "p td th tr thead tbody tfoot"),
        ("a", "a"),
        ("button", "button"),
        ("h1 h2 h3 h4 h5 h6", "p h1 h2 h3 h4 h5 h6"),
    )
    for name in names.split()
}
"""Elements that a start tag ends, where they are innermost (HTML standard, 13.1.2.4 "Optional tags")."""


def num_tags(html: bytes) -> int:
    """How many tags a page (in UTF-8) can have at most: its `<` characters."""
    return int(np.count_nonzero(np.frombuffer(html, dtype=np.uint8) == _LESS_THAN))


def depth_bound(html: bytes, enough: int) -> int:
    """A number that the nesting of a page's elements (in UTF-8) does not pass, made in a tenth of a millisecond.

    Up to `enough` it is simply the number of `<` that begin no end tag. Otherwise, for each name, the most start tags
    that no end tag of that name (as written) has answered yet, added up: a stray `</x>` does not make up for a `<div>`.
    Elements that need no end tag (img, p, li) make it larger than the truth: a page above a limit deserves `depth`, one
    below needs no more."""
    octets = np.frombuffer(html + bytes(10), dtype=np.uint8)
    opens = octets[: len(html)] == _LESS_THAN
    num_starts = int(np.count_nonzero(opens & (octets[1 : len(html) + 1] != _SLASH)))
    if num_starts <= enough:
        return num_starts
    after = np.flatnonzero(opens) + 1
    starts, ends = _IS_LETTER[octets[after]], octets[after] == _SLASH
    after, ends = after[starts | ends], ends[starts | ends]
    # The eight bytes at each name in one gather, and zeros from the byte on that ends the name.
    words = np.ndarray(len(octets) - 7, dtype="<u8", buffer=octets.data, strides=(1,))[after + ends]
    ended = _ENDS_NAME[words.view(np.uint8)].view(np.uint64)
    first_end = ended & (~ended + np.uint64(1))
    codes = words & (first_end - np.uint64(1))
    # An end tag whose name is cut off here may have another name than a start tag that looks alike: it ends nothing.
    steps = np.where(ends, -(ended != 0).astype(np.int64), 1)
    # Sorted by name, then place: a hash of the name above the place in one number. Where two names share a hash their
    # runs are cut, which makes the sum larger at most.
    places = np.arange(len(codes), dtype=np.uint64)
    below = np.uint64(2 ** len(codes).bit_length() - 1)
    order = (np.sort(codes * _ODD & ~below | places) & below).astype(np.int64)
    return _unanswered(codes[order], steps[order])


def _unanswered(codes: npt.NDArray[np.uint64], steps: npt.NDArray[np.int64]) -> int:
    """Sum over the runs of equal codes of how far the running sum climbs at most from any place in the run."""
    if not len(codes):
        return 0
    begins = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    fallen = steps.copy()
    fallen[begins] -= 2 * len(codes) + 1  # so far below the run before it that one running minimum serves them all
    after = np.cumsum(fallen)
    climbs = np.maximum.reduceat(after - np.minimum.accumulate(after - steps), begins)
    return int(np.maximum(climbs, 0).sum())


def depth(html: str) -> int:
    """The nesting of a page's elements, or somewhat more. Linear in the page.

    Void elements do not count, and end tags that HTML lets a page leave out are put in. Tags in comments and scripts
    count as well: whether a parser takes them for such depends on more than a scan can see, and markup made to pass a
    bound would make use of that."""
    open_names: list[str] = []
    deepest = 0
    for tag in _TAG.finditer(html):
        slash, name = tag[1], tag[2].lower()
        if name in _VOID:
            continue
        if slash:
            _close(open_names, name)
            continue
        while open_names and open_names[-1] in _CLOSES.get(name, ()):
            open_names.pop()
        open_names.append(name)
        deepest = max(deepest, len(open_names))
    return deepest


def _close(open_names: list[str], name: str) -> None:
    # Looking further up than this would cost a hostile page's square; an end tag that finds nothing ends nothing.
    for back in range(1, min(len(open_names), 16) + 1):
        if open_names[-back] == name:
            del open_names[-back:]
            return
