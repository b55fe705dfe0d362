"""How big and how deep a page's markup is, from its characters alone: no tree is built of a hostile page."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

_LESS_THAN, _SLASH = 0x3C, 0x2F
_IS_LETTER = np.zeros(256, dtype=bool)
_IS_LETTER[[*range(0x41, 0x5B), *range(0x61, 0x7B)]] = True
_TAG = re.compile(r"<(?:!--.*?(?:-->|\Z)|(/?)([a-zA-Z][^\s/>]{0,15}))", re.DOTALL)
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
_RAW_TEXT: Final = frozenset(
    {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "plaintext"}
)
_CLOSED_BY_ITS_LIKE: Final = {
    name: frozenset(group)
    for group in (
        ("p",), ("li",), ("dt", "dd"), ("option", "optgroup"), ("tr",), ("td", "th"),
        ("thead", "tbody", "tfoot"), ("a",), ("button",), ("h1", "h2", "h3", "h4", "h5", "h6"),
    )
    for name in group
}  # fmt: skip


def num_tags(html: str) -> int:
    """How many tags a page can have at most: its `<` characters."""
    return html.count("<")


def depth_bound(html: bytes) -> int:
    """A number that the nesting of a page's elements does not pass, in a microsecond or so a kilobyte.

    Start tags count +1 and end tags -1, so elements that need no end tag (br, img, p, li) make it larger than the
    truth: a page above a limit deserves `depth`, one below needs no more."""
    octets = np.frombuffer(html, dtype=np.uint8)
    after = np.flatnonzero(octets[:-1] == _LESS_THAN) + 1
    following = octets[after]
    steps = _IS_LETTER[following].astype(np.int32) - (following == _SLASH)
    return int(np.cumsum(steps).max(initial=0))


def depth(html: str) -> int:
    """The nesting of a page's elements as the end tags that HTML leaves out would have it (a close upper estimate).

    Void elements, comments and the content of script and the like do not count; p, li, td and their kind end where
    the next of them begins in the same parent. Linear in the page."""
    open_names: list[str] = []
    deepest, skipped_to = 0, 0
    for match in _TAG.finditer(html):
        name = (match[2] or "").lower()
        if match.start() < skipped_to or not name or name in _VOID:
            continue
        if match[1]:
            _close(open_names, name)
            continue
        if open_names and open_names[-1] in _CLOSED_BY_ITS_LIKE.get(name, ()):
            open_names.pop()
        open_names.append(name)
        deepest = max(deepest, len(open_names))
        if name in _RAW_TEXT:
            end = html.find("</" + match[2], match.end())
            skipped_to = len(html) if end < 0 else end
    return deepest


def _close(open_names: list[str], name: str) -> None:
    # Looking further up than this would cost a hostile page's square; a stray end tag closes nothing.
    for back in range(1, min(len(open_names), 16) + 1):
        if open_names[-back] == name:
            del open_names[-back:]
            return
