"""Patch of how trafilatura 2.3.1 takes elements out of a tree and leaves what is in them (`strip_tags`): to the
same tree, and to one whose texts are read in linear time.

libxml2 keeps what stood around such an element as texts beside one another, and lxml joins them anew each time
that they are read, each to all before it: of 40,000 images with a line of text behind each that took 3 s."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from stages.html.trafilatura_patches.deleting import replace
from stages.html.trafilatura_patches.faults import own_fault

_MANY: Final = 1_000
"""Elements of which it matters: few pages have so many."""


def patch_stripping() -> None:
    """Patch this process's trafilatura."""
    from trafilatura import htmlprocessing

    replace(htmlprocessing, "strip_tags", strip_tags)


@own_fault
def strip_tags(tree: Any, *names: Any) -> None:
    """lxml's `strip_tags`; where it takes many elements away, the texts that are beside one another are joined
    to one."""
    from lxml import etree

    is_many = bool(names) and next(islice(tree.iter(*names), _MANY, None), None) is not None
    etree.strip_tags(tree, *names)
    if is_many:
        for element in list(tree.iter("*")):
            _join_texts(element)


def _join_texts(element: Any) -> None:
    """Set the text of an element and those behind its children anew. Serialising joins them in linear time,
    which reading them does not."""
    num_chars = 0  # behind the element's own text
    for child in element:
        alone, with_tail = _text(child, with_tail=False), _text(child, with_tail=True)
        num_chars += len(with_tail) - (0 if isinstance(child.tag, str) else len(alone))
        if tail := with_tail[len(alone) :]:
            child.tail = tail
    whole = _text(element, with_tail=False)
    if text := whole[: len(whole) - num_chars]:
        element.text = text


def _text(element: Any, *, with_tail: bool) -> str:
    from lxml import etree

    return str(etree.tostring(element, method="text", encoding="unicode", with_tail=with_tail))
