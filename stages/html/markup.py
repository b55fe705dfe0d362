"""How many elements a page has, and how deep they nest."""

from __future__ import annotations

from typing import Any

from resiliparse.parse.html import HTMLTree, NodeType


def num_elements(html: str) -> int:
    """The elements in the tree of a page as the HTML standard makes it, those that its parser opens again among them.

    Takes the memory of that tree, which may be quadratic in the page: `markup_bounds` has an upper estimate."""
    document: Any = HTMLTree.parse(html).document
    return len(document.get_elements_by_tag_name("*"))


def depth(html: str) -> int:
    """The most elements around one another in the tree of a page, `html` and `body` among them.

    The tree is that of the HTML standard, as resiliparse's parser builds it: in time linear in the page, where
    extraction takes the square of the depth. Only a page that `markup_bounds` cannot clear needs to be asked."""
    node: Any = HTMLTree.parse(html).document
    nesting = deepest = 0
    while True:
        if nesting > deepest and node.type == NodeType.ELEMENT:
            deepest = nesting
        if node.first_child is not None:
            node, nesting = node.first_child, nesting + 1
            continue
        while nesting and node.next is None:
            node, nesting = node.parent, nesting - 1
        if not nesting:
            return deepest
        node = node.next
