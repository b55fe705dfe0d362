"""What identifies purged documents in a new run. It loads nothing of the store, because every worker holds
one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PURGED_RULE: Final = "purged"
"""The rule by which a run rejects what an output that it honours had purged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedSets:
    """A record is purged if its doc_id is in `doc_ids`; if its raw, text or clean hash is in `hashes`; if its
    normalised URL, with its fragment or without, is in `urls`; if the host of its page is in `hosts`, or it
    or a domain that it lies in is in `domains`."""

    doc_ids: frozenset[bytes] = frozenset()
    hashes: frozenset[bytes] = frozenset()
    urls: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.doc_ids or self.hashes or self.urls or self.hosts or self.domains)

    def __or__(self, other: PurgedSets) -> PurgedSets:
        return PurgedSets(
            doc_ids=self.doc_ids | other.doc_ids,
            hashes=self.hashes | other.hashes,
            urls=self.urls | other.urls,
            hosts=self.hosts | other.hosts,
            domains=self.domains | other.domains,
        )
