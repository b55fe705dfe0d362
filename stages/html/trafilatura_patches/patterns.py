"""Patch of regular expressions of trafilatura 2.3.1 that take the square of a text's length: by ones that
find the same in linear time.

20,000 slashes in a doctype took 1.3 s and 20,000 equals signs in a text of JSON-LD 5 s; twice as many take
four times that."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from stages.html.trafilatura_patches.faults import own_fault

# What is between DOCTYPE and the first ">": up to the last "<" in it, then a slash somewhere.
DOCTYPE: Final = re.compile(r"^< ?! ?DOCTYPE(?:[^<>]*+<)*+[^<>/]*+/[^<>]*+>", re.IGNORECASE)
_ATTRIBUTES: Final = (r"(\s[^<>]*=[^<>]*)?/?>", r"(?:\s[^<>=]*+=[^<>]*+>|/?>)")
"""The end of a tag in trafilatura's pattern of markup: with attributes or without."""


def patch_patterns() -> None:
    """Patch this process's trafilatura."""
    import trafilatura.core
    import trafilatura.utils

    # The package has a function of that name.
    baseline: Any = importlib.import_module("trafilatura.baseline")
    baseline._HTML_MARKUP = linear_markup(baseline._HTML_MARKUP)
    trafilatura.utils.DOCTYPE_TAG = DOCTYPE
    trafilatura.core._DISCUSSION_FORUM_POSTING_RE = ForumPosting()


def linear_markup(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """trafilatura's pattern of markup in a text, whose tags end at the first ">" that may end them."""
    theirs, ours = _ATTRIBUTES
    assert pattern.pattern.endswith(theirs), pattern.pattern
    return re.compile(pattern.pattern.removesuffix(theirs) + ours, pattern.flags)


class ForumPosting:
    """Whether JSON-LD names the type DiscussionForumPosting, alone or in a list of types."""

    _PARTS: Final = re.compile(
        r'(?="@type"\s*+:\s*+(?:(?P<direct>"DiscussionForumPosting")|(?P<list>\[)))'
        r'|(?=(?P<name>"DiscussionForumPosting"))|(?P<end>\])'
    )

    @own_fault
    def search(self, text: str) -> bool:
        """As of trafilatura's pattern, whether there is a match."""
        in_list = False
        for part in self._PARTS.finditer(text):
            kind = part.lastgroup
            if kind == "direct" or (kind == "name" and in_list):
                return True
            in_list = kind == "list" or (in_list and kind != "end")
        return False
