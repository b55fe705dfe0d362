"""Documents of earlier outputs: a run with `[dedup] against` names kept documents that lie there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lineage.storage.folder import Folder
from lineage.store.damage import DAMAGE
from lineage.store.delta import StoreError
from lineage.store.lookup import Lookup


class NotOpenedError(StoreError):
    """A document is in none of the outputs that could be opened. `reasons` says of each other one why it
    could not be: it may hold the document."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{out} cannot be opened: {reason}" for out, reason in reasons.items()))
        self.reasons = dict(reasons)


def find_in(outs: Sequence[str]) -> Callable[[bytes], str | None]:
    """A function that gives the first of these outputs that kept a document, None if none did.

    NotOpenedError, when it is called, if none of the others did and one was moved, deleted or damaged. Each
    call is a point lookup; an output that could not be opened is not tried again."""
    lookups: dict[str, Lookup] = {}
    not_opened: dict[str, str] = {}

    def find(doc_id: bytes) -> str | None:
        for out in outs:
            if out in not_opened:
                continue
            try:
                if out not in lookups:
                    lookups[out] = Lookup(Folder(out))
                rows = lookups[out].documents([doc_id])
            except DAMAGE as error:
                not_opened[out] = str(error)
                continue
            if any(row.status == "kept" for row in rows):
                return out
        if not_opened:
            raise NotOpenedError(not_opened)
        return None

    return find
