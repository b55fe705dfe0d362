"""The lists of documents that were shown last, so that a document's page leads to the one before it and
behind it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineage.ids import content_hash

_MOST_LISTS: Final = 64
MOST_IDS: Final = 1_000
"""Ids of a list: 64 such lists take a few megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownList:
    """Documents in the order in which they were listed: what they are, and the place that lists them."""

    title: str
    place: str
    doc_ids: tuple[bytes, ...]


class RecentLists:
    """Lists by a key that is a function of what they hold, so that a link to a document in a list stays
    one."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, ShownList] = OrderedDict()

    def put(self, title: str, place: str, doc_ids: Sequence[bytes]) -> str:
        """Keep a list, up to a bound; its key."""
        kept = ShownList(title=title, place=place, doc_ids=tuple(dict.fromkeys(doc_ids))[:MOST_IDS])
        key = content_hash(b"".join([place.encode("utf-8", "replace"), *kept.doc_ids])).hex()[:12]
        self._lists[key] = kept
        self._lists.move_to_end(key)
        while len(self._lists) > _MOST_LISTS:
            self._lists.popitem(last=False)
        return key

    def get(self, key: str) -> ShownList | None:
        """The list of a key; None where it is not kept any more."""
        return self._lists.get(key)
