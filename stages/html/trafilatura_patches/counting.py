"""Patch of where trafilatura 2.3.1 counts the children of an element again and again: with the same results,
but in time linear in the children.

lxml counts them one by one each time. trafilatura asks after each title that it deletes at the end of a page,
and at each cell of a row: 13,000 titles took 0.5 s, and twice as many four times that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from stages.html.trafilatura_patches.faults import own_fault
from stages.html.trafilatura_patches.scopes import in_scope


def patch_counting() -> None:
    """Patch this process's trafilatura."""
    from trafilatura import main_extractor as extractor

    # Both delete the last child again and again, while it is a title.
    extractor.prune_unwanted_sections = _with_ends_deleted(extractor.prune_unwanted_sections, {"head"})
    extractor._extract = _with_ends_deleted(extractor._extract, extractor.NOT_AT_THE_END)
    extractor.handle_table = _with_rows_counted(extractor)


def _with_ends_deleted(function: Any, names: Collection[str]) -> Callable[..., Any]:
    """trafilatura's function; where it deletes a last child of such a name, all such children at the end go at
    once."""
    known = function.__globals__

    @own_fault
    def delete_end(element: Any, keep_tail: bool = True) -> None:
        is_last = element.tag in names and element.getnext() is None
        while True:
            previous = element.getprevious()
            known["delete_element"](element, keep_tail)
            if not is_last or previous is None or previous.tag not in names:
                return
            element = previous

    def with_ends_deleted(*arguments: Any, **named: Any) -> Any:
        return in_scope(function, delete_element=delete_end)(*arguments, **named)

    return with_ends_deleted


def _with_rows_counted(extractor: Any) -> Callable[..., Any]:
    """trafilatura's `handle_table`, which counts the cells of a row as `Counting` does."""
    function, flush, finalize = (
        extractor.handle_table,
        extractor._flush_rowspan_phantoms,
        extractor._finalize_row,
    )

    def handle_table(*arguments: Any, **named: Any) -> Any:
        length = Counting().length
        flush_counted = in_scope(flush, len=length)
        finalize_counted = in_scope(finalize, len=length, _flush_rowspan_phantoms=flush_counted)
        counted = in_scope(
            function, len=length, _flush_rowspan_phantoms=flush_counted, _finalize_row=finalize_counted
        )
        return counted(*arguments, **named)

    return handle_table


class Counting:
    """`len`, of elements too. The children of a row are counted on from those that it had the last time: cells
    are only ever added at its end."""

    def __init__(self) -> None:
        self._row: Any = None
        self._last: Any = None
        self._num = 0

    @own_fault
    def length(self, of: Any) -> int:
        """As the built-in function's."""
        if getattr(of, "tag", None) != "row":
            return len(of)
        if of is not self._row:
            self._row, self._last, self._num = of, None, 0
        for cell in of.iterchildren() if self._last is None else self._last.itersiblings():
            self._last, self._num = cell, self._num + 1
        return self._num
