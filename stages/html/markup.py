"""How deep a page's markup is, from its characters alone: no tree is built of a hostile page."""

from __future__ import annotations

import re
from typing import Final

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
