"""What earlier outputs purged, as a new run must know it to keep the same documents out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineage.ids import text_hash
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.lookup import Lookup

BY_ADDRESS: Final = ("doc", "url")
"""Kinds of `match` whose targets stay out by URL too, so that a page that changed does not come back."""

_EMPTY: Final = text_hash("")
_LOOKED_UP_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedSets:
    """A record is purged if its doc_id is in `doc_ids`; if its raw, text or clean hash is in `hashes`; if its
    normalised URL is that of one in `urls` (as they were recorded); or if its host is one of `hosts` (as they were
    named)."""

    doc_ids: frozenset[bytes] = frozenset()
    hashes: frozenset[bytes] = frozenset()
    urls: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.doc_ids or self.hashes or self.urls or self.hosts)

    def __or__(self, other: PurgedSets) -> PurgedSets:
        return PurgedSets(
            doc_ids=self.doc_ids | other.doc_ids,
            hashes=self.hashes | other.hashes,
            urls=self.urls | other.urls,
            hosts=self.hosts | other.hosts,
        )


def honoured(outs: Sequence[str]) -> PurgedSets:
    """What was purged from all these outputs: targets, their twins and kept copies by id and hash, and what the targets
    were named by. StoreError if one has no store."""
    together = PurgedSets()
    for out in outs:
        together |= _purged_from(Folder(out))
    return together


def _purged_from(out: Folder) -> PurgedSets:
    matches = {row["purge_id"]: json.loads(row["match"]) for row in read_table(out, "purges").to_pylist()}
    purged = read_table(out, "purged").select(["purge_id", "doc_id", "role"]).to_pylist()
    by_address = {
        row["doc_id"]
        for row in purged
        if row["role"] == "target" and matches.get(row["purge_id"], {}).get("kind") in BY_ADDRESS
    }
    named = {kind: {str(value) for m in matches.values() if m["kind"] == kind for value in m["values"]}
             for kind in ("url", "host")}  # fmt: skip
    doc_ids = sorted({row["doc_id"] for row in purged})
    hashes: set[bytes] = set()
    urls = named["url"]
    lookup = Lookup(out)
    for first in range(0, len(doc_ids), _LOOKED_UP_AT_ONCE):
        for row in lookup.documents(doc_ids[first : first + _LOOKED_UP_AT_ONCE]):
            hashes |= {digest for digest in (row.raw_hash, row.text_hash, row.clean_hash) if digest is not None}
            if row.url is not None and row.doc_id in by_address:
                urls.add(row.url)
    # The hash of nothing would keep out every page without text.
    return PurgedSets(
        doc_ids=frozenset(doc_ids),
        hashes=frozenset(hashes - {_EMPTY}),
        urls=frozenset(urls),
        hosts=frozenset(named["host"]),
    )
