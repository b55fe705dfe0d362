"""What was purged from an OUT, for comparison with its files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from lineage.storage.folder import Folder
from lineage.store.delta import read_table

Place = tuple[str, int]
PROMOTES: Final = "promote_duplicates"
"""In the `match` of a purge: it took single copies, and not their text."""


@dataclass(frozen=True, slots=True)
class PurgedSpans:
    """What was purged: every doc_id, and by (source, shard) the (doc_id, start, num_tokens) of each span.
    `with_text` are the doc_ids whose text was to go with all its copies."""

    doc_ids: frozenset[bytes] = frozenset()
    spans: dict[Place, set[tuple[bytes, int, int]]] = field(default_factory=dict)
    with_text: frozenset[bytes] = frozenset()

    @property
    def num_tokens(self) -> int:
        """Tokens that are end-of-text now; a span that was purged again, out of a backup, counts once."""
        return sum(num for of_shard in self.spans.values() for _, _, num in of_shard)


def read_purged(out: Folder, of_purges: Collection[str] | None = None) -> PurgedSpans:
    """All that was purged from an OUT, or by some purges; needs about 200 bytes a purged document."""
    spans: dict[Place, set[tuple[bytes, int, int]]] = defaultdict(set)
    doc_ids, with_text = set(), set()
    of_single_copies = purges_of_single_copies(out)
    for row in read_table(out, "purged").to_pylist():
        if of_purges is not None and row["purge_id"] not in of_purges:
            continue
        doc_ids.add(row["doc_id"])
        if row["purge_id"] not in of_single_copies:
            with_text.add(row["doc_id"])
        if row["shard"] is not None:
            spans[row["source"], row["shard"]].add((row["doc_id"], row["start"], row["num_tokens"]))
    return PurgedSpans(frozenset(doc_ids), dict(spans), frozenset(with_text))


def purges_of_single_copies(out: Folder) -> set[str]:
    """The ids of the purges that promote duplicates."""
    rows = read_table(out, "purges").select(["purge_id", "match"]).to_pylist()
    return {row["purge_id"] for row in rows if json.loads(row["match"]).get(PROMOTES)}
