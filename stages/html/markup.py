"""How many elements a page has, and how deep they nest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from resiliparse.parse.html import HTMLTree, NodeType

_BEGINNING: Final = 10_000
"""Tags of the first beginning of a page that is looked at."""


def num_elements(html: str) -> int:
    """The elements in the tree of a page as the HTML standard makes it, those that its parser opens again
    among them.

    Takes the memory of that tree, which may be quadratic in the page: `markup_bounds` has an upper
    estimate."""
    document: Any = HTMLTree.parse(html).document
    return len(document.get_elements_by_tag_name("*"))


def depth(html: str) -> int:
    """The most elements around one another in the tree of a page, `html` and `body` among them.

    The tree is that of the HTML standard, as resiliparse's parser builds it: in time linear in the page, if
    it does not nest deep. Only a page that `markup_bounds` cannot clear needs to be asked."""
    deepest = 0
    for node, nesting in nodes(HTMLTree.parse(html)):
        if nesting > deepest and node.type == NodeType.ELEMENT:
            deepest = nesting
    return deepest


def nodes(tree: Any) -> Iterator[tuple[Any, int]]:
    """The nodes of a tree in the order of the page, each with how many are around it. A child that a node is
    given while it is looked at comes next. Linear, which a collection of nodes by name is not."""
    node, nesting = tree.document, 0
    while True:
        yield node, nesting
        if node.first_child is not None:
            node, nesting = node.first_child, nesting + 1
            continue
        while nesting and node.next is None:
            node, nesting = node.parent, nesting - 1
        if not nesting:
            return
        node = node.next


def depth_where_above(html: str, most: int) -> int:
    """`depth`; of a page that nests deeper than `most`, that of a beginning of it that does.

    At the start tag of a <rp> or an <option> the parser looks through all elements that it has open, so
    30,000 of them, each within the one before, take the square of that. The beginnings have 10,000 tags and
    twice as many each time: together no more than the page twice."""
    num_tags = _BEGINNING
    for number, tag in enumerate(re.finditer("<", html)):
        if number == num_tags:
            found = depth(html[: tag.start()])
            if found > most:
                return found
            num_tags *= 2
    return depth(html)
