"""Where reading a file ends before the file does: it holds next to nothing but what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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
        if num_unreadable >= _TOO_MANY or (num_unreadable >= _MANY and num_unreadable > 2 * num_documents):
            found = f"{num_unreadable} stretches were unreadable beside {num_documents} documents"
            reason = f"not read from here on: {found}; the last: {item.error}"
            yield rest_of_file(item.offset + item.length, reason, options, counts)
            return


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
