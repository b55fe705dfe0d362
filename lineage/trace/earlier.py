"""Documents of earlier outputs: a run with `[dedup] against` names kept documents that lie there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup


def find_in(outs: Sequence[str]) -> Callable[[bytes], str | None]:
    """A function that gives the first of these outputs that kept a document, None if none did.

    StoreError, when it is called, if an output has no store. Each call is a point lookup."""
    lookups = [(out, Lookup(Folder(out))) for out in outs]

    def find(doc_id: bytes) -> str | None:
        for out, lookup in lookups:
            if any(row.status == "kept" for row in lookup.documents([doc_id])):
                return out
        return None

    return find
