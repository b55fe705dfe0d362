"""What was purged from an OUT, for comparison with its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from lineage.storage.folder import Folder
from lineage.store.delta import read_table

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PurgedSpans:
    """What was purged: every doc_id, and by (source, shard) the (doc_id, start, num_tokens) of each span."""

    doc_ids: frozenset[bytes] = frozenset()
    spans: dict[Place, set[tuple[bytes, int, int]]] = field(default_factory=dict)


def read_purged(out: Folder, of_purges: Collection[str] | None = None) -> PurgedSpans:
    """All that was purged from an OUT, or by some purges; needs about 200 bytes a purged document."""
    spans: dict[Place, set[tuple[bytes, int, int]]] = defaultdict(set)
    doc_ids = set()
    for row in read_table(out, "purged").to_pylist():
        if of_purges is not None and row["purge_id"] not in of_purges:
            continue
        doc_ids.add(row["doc_id"])
        if row["shard"] is not None:
            spans[row["source"], row["shard"]].add((row["doc_id"], row["start"], row["num_tokens"]))
    return PurgedSpans(frozenset(doc_ids), dict(spans))
