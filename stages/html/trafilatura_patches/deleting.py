"""Patch of how trafilatura 2.3.1 deletes elements: to the same tree, but in time linear in the text that
stays.

What stands behind an element that it deletes joins the text before it, so of 15,000 that stand side by side
each would copy all text so far. Here the pieces of a row of such elements are joined once."""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from stages.html.trafilatura_patches.faults import own_fault
from stages.html.trafilatura_patches.scopes import in_scope

_IN_ROWS: Final[dict[str, tuple[str, ...]]] = {
    "tree_cleaning": ("_handle_forms", "prune_html"),
    "_handle_forms": (),
    "prune_html": (),
    "delete_by_link_density": (),
    "convert_tags": ("strip_tags",),
}
"""Functions of trafilatura.htmlprocessing that delete elements one by one, and look at no text behind one of
them before they end or call these."""


def patch_deleting() -> None:
    """Patch this process's trafilatura."""
    from trafilatura import htmlprocessing as processing

    baseline = importlib.import_module("trafilatura.baseline")  # the package has a function of that name

    for name, before in _IN_ROWS.items():
        replace(processing, name, _in_rows(getattr(processing, name), before))
    prune = _in_rows(processing.prune_unwanted_nodes, ())

    def prune_unwanted_nodes(tree: Any, nodelist: list[Any], with_backup: bool = False) -> Any:
        if with_backup:
            return prune(tree, nodelist, with_backup)
        for expression in nodelist:  # each looks at the text that those before it left
            tree = prune(tree, [expression])
        return tree

    replace(processing, "prune_unwanted_nodes", prune_unwanted_nodes)
    replace(baseline, "basic_cleaning", _in_rows(baseline.basic_cleaning, ()))


def replace(module: ModuleType, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of the module's, also where other modules of trafilatura have imported
    it."""
    theirs = getattr(module, name)
    for other in [found for known, found in sys.modules.items() if known.partition(".")[0] == "trafilatura"]:
        if getattr(other, name, None) is theirs:
            setattr(other, name, function)


def _in_rows(function: Any, before: tuple[str, ...]) -> Callable[..., Any]:
    """trafilatura's function, whose deletions are those of a `Deletions`; they end before it calls one of
    `before`."""
    known = function.__globals__
    idle: list[
        tuple[Callable[..., Any], Deletions]
    ] = []  # made once for each of the calls that are within others

    def make() -> tuple[Callable[..., Any], Deletions]:
        deletions = Deletions()
        own = {name: deletions.ended_before(known, name) for name in before}
        return in_scope(function, **own, delete_element=deletions.delete), deletions

    @own_fault
    def with_deletions(*arguments: Any, **named: Any) -> Any:
        try:
            made = idle.pop()
        except IndexError:
            made = make()
        scoped, deletions = made
        try:
            return scoped(*arguments, **named)
        finally:
            deletions.end()
            idle.append(made)

    return with_deletions


_LONG_ROW: Final = 16
"""From so many elements on the texts behind a row are collected: to join those of fewer costs less."""


class Deletions:
    """Deletes elements as trafilatura's `delete_element` does. The text behind the last ones is in the tree
    after `end`. Rows may be deleted from their first element on, or from their last."""

    def __init__(self, long_row: int = _LONG_ROW) -> None:
        self._long_row = long_row
        self._joined: Any = None
        """The element that text was joined to last, and `_num_joined` how often it or its neighbour was."""
        self._num_joined = 0
        self._before: Any = None
        self._is_parent = False
        self._pieces: deque[str] = deque()
        self._around: list[Any] = []
        """The elements around that one, the innermost first."""

    def delete(self, element: Any, keep_tail: bool = True) -> None:
        """Delete an element; what stands behind it is for the element before it, or for its parent."""
        parent = element.getparent()
        if parent is None:
            return
        if self._before is not None and self._collects(element, parent, keep_tail):
            parent.remove(element)
            return
        if keep_tail and (tail := element.tail):
            previous = element.getprevious()
            before = parent if previous is None else previous
            is_in_row = self._joined is not None and (before is self._joined or element is self._joined)
            self._joined, self._num_joined = before, self._num_joined + 1 if is_in_row else 0
            if self._num_joined >= self._long_row:
                self._before, self._is_parent = before, previous is None
                self._pieces.append(tail)
            elif previous is None:
                parent.text = (parent.text or "") + tail
            else:
                previous.tail = (previous.tail or "") + tail
        parent.remove(element)

    def _collects(self, element: Any, parent: Any, keep_tail: bool) -> bool:
        """Whether the text behind an element, if it has any, goes to what is collected, which else ends."""
        is_in_row = element is self._before  # what is collected stands behind this one's own
        if is_in_row and (self._is_parent or not keep_tail):
            self.end()
            return False
        if not keep_tail or not (element.tail or is_in_row):
            return True
        previous = element.getprevious()
        before, is_parent = (parent, True) if previous is None else (previous, False)
        if is_in_row:
            self._pieces.appendleft(element.tail or "")
            self._before, self._is_parent = before, is_parent
        elif before is self._before and is_parent == self._is_parent:
            self._pieces.append(element.tail)
        else:
            self.end()
            return False
        return True

    def end(self) -> None:
        """Write down what was collected, and let the tree go."""
        self._joined = None
        if self._before is None:
            return
        text = "".join(self._pieces)
        if self._is_parent:
            self._before.text = (self._before.text or "") + text
        else:
            self._before.tail = (self._before.tail or "") + text
        self._before = None
        self._pieces.clear()

    def end_within(self, element: Any) -> None:
        """`end`, if what was collected belongs into this element: its text is to be looked at."""
        if self._before is None:
            return
        inner = self._before if self._is_parent else self._before.getparent()
        if not self._around or self._around[0] is not inner:
            self._around = [inner, *inner.iterancestors()]
        if element in self._around:
            self.end()

    def ended_before(self, known: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
        """The function that has this name among the known ones, before whose calls `end` is called."""

        def called(*arguments: Any, **named: Any) -> Any:
            self.end()
            return known[name](*arguments, **named)

        return called
