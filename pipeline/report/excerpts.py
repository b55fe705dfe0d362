"""The few scrubbed excerpts that the report shows: of each rule, those of the documents with the least ids."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from stages.pii.options import PiiTable
from stages.pii.scrub import scrub

PER_RULE = 4
EXCERPT_CHARS = 600
_SCRUB_CHARS = 2 * EXCERPT_CHARS


class ExcerptKeeper:
    """Collects (doc_id, stage, rule, text) and keeps the `PER_RULE` least doc_ids of each (stage, rule).

    The choice depends on ids alone, so that the excerpts of a run do not depend on how its work was cut."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[str, str], list[tuple[int, bytes, str]]] = {}

    def offer(self, doc_id: bytes, stage: str, rule: str, text: str) -> None:
        """Consider one document's text for a rule."""
        if not text.strip():
            return
        heap = self._heaps.setdefault((stage, rule), [])
        rank = -int.from_bytes(doc_id, "big")  # the heap's least is the greatest id: the one to give way
        if len(heap) < PER_RULE:
            heapq.heappush(heap, (rank, doc_id, text[:_SCRUB_CHARS]))
        elif rank > heap[0][0]:
            heapq.heapreplace(heap, (rank, doc_id, text[:_SCRUB_CHARS]))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of tables.EXCERPTS, in (stage, rule, doc_id) order; personal data of every kind is scrubbed first."""
        for (stage, rule), heap in sorted(self._heaps.items()):
            for _, doc_id, text in sorted(heap, key=lambda entry: entry[1]):
                yield {"doc_id": doc_id, "stage": stage, "rule": rule, "excerpt": excerpt_of(text)}


def excerpt_of(text: str) -> str:
    """The beginning of a text without personal data of any kind, whatever the recipe scrubs."""
    return scrub(text[:_SCRUB_CHARS], PiiTable().kinds).text[:EXCERPT_CHARS]
