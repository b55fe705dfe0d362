"""Where reading a file ends before the file does: it holds next to nothing but what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from stages.document import Document
from stages.fault import Fault
from stages.reading.options import InputCounts, ReadOptions, Unreadable

_MANY: Final = 10_000
_TOO_MANY: Final = 1_000_000
"""A stretch is noted with place and reason, in memory until the file is done: a small compressed file can
have billions. A file is given up after many if they are twice its documents, and in any case after too
many."""


def until_given_up(
    items: Iterator[Document | Unreadable], options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """`items`, at most so many of them unreadable; what the rest of the file holds is one more such
    stretch."""
    num_documents = num_unreadable = 0
    for item in items:
        yield item
        if isinstance(item, Document):
            num_documents += 1
            continue
        num_unreadable += 1
        counts.most_excess = max(counts.most_excess, num_unreadable - 2 * num_documents)
        # A span alone cannot tell how many documents the file has before it.
        many = _MANY if options.span is None else _TOO_MANY
        if num_unreadable >= _TOO_MANY or (num_unreadable >= many and num_unreadable > 2 * num_documents):
            found = f"{num_unreadable} stretches were unreadable beside {num_documents} documents"
            reason = f"not read from here on: {found}; the last: {item.error}"
            yield rest_of_file(item.offset + item.length, reason, options, counts)
            return


class CountsOfSpan(Protocol):
    """What InputCounts say of a span."""

    @property
    def num_documents(self) -> int: ...
    @property
    def num_unreadable(self) -> int: ...
    @property
    def most_excess(self) -> int: ...


def may_give_up(spans: Iterable[CountsOfSpan]) -> bool:
    """Whether a file whose spans these are, in order, may be given up before its end, where it is read in one
    go."""
    num_documents = num_unreadable = 0
    for span in spans:
        excess = num_unreadable - 2 * num_documents + span.most_excess
        num_documents += span.num_documents
        num_unreadable += span.num_unreadable
        if num_unreadable >= _TOO_MANY or (num_unreadable >= _MANY and excess > 0):
            return True
    return False


def rest_of_file(
    offset: int, error: str, options: ReadOptions, counts: InputCounts, fault: Fault | None = None
) -> Unreadable:
    """What is left of a file from `offset` on, up to its end where that is known; else all of it counts as
    unread."""
    length = max((counts.end or 0) - offset, 0)
    return Unreadable(
        file=options.file,
        offset=offset,
        length=length,
        error=error,
        num_records=length if counts.by_row else None,
        num_bytes=options.size if counts.end is None else None,
        fault=fault,
    )
