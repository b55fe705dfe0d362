"""The purge filter of a run: what earlier outputs purged, read so that the same documents stay out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from lineage.ids import text_hash
from lineage.index.source_keys import sources_with_fragments
from lineage.pages import named_host, names_something, normalise_url
from lineage.purge.execution import unfinished_purge
from lineage.purge.purged_sets import PurgedSets
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError, read_table
from lineage.store.lookup import Lookup
from lineage.store.purged_spans import purges_of_single_copies

BY_ADDRESS: Final = ("doc", "url")
"""Kinds of `match` whose targets stay out by URL too, so that a page that changed does not come back. What a
scan, a condition, a source or an input file names is of kind `scan`; before that, all but a scan were of kind
`doc`, and such rows are honoured by URL as ever."""

_EMPTY: Final = text_hash("")
_LOOKED_UP_AT_ONCE: Final = 1024


def read_purged_sets(outs: Sequence[str]) -> PurgedSets:
    """What was purged from all these outputs: targets, their twins and kept copies by id and hash (by id
    alone where a purge took single copies and promotes their duplicates), and what the targets were named by.
    A URL that names nothing keeps nothing out but where a purge named it. StoreError if an output has no
    store, or a purge that did not end: what its targets were named by is recorded last."""
    together = PurgedSets()
    for out in outs:
        together |= _purged_from(Folder(out))
    return together


def _purged_from(out: Folder) -> PurgedSets:
    if (unfinished := unfinished_purge(out)) is not None:
        raise StoreError(
            f"{out.url}: purge {unfinished} did not end: call the same `sluice purge` again first"
        )
    matches = {row["purge_id"]: json.loads(row["match"]) for row in read_table(out, "purges").to_pylist()}
    purged = read_table(out, "purged").select(["purge_id", "doc_id", "role"]).to_pylist()
    by_address = {
        row["doc_id"]
        for row in purged
        if row["role"] == "target" and matches.get(row["purge_id"], {}).get("kind") in BY_ADDRESS
    }
    named = {
        kind: {str(value) for m in matches.values() if m["kind"] == kind for value in m["values"]}
        for kind in ("url", "host", "domain")
    }
    apart = sources_with_fragments(out) if by_address else frozenset()
    doc_ids = sorted({row["doc_id"] for row in purged})
    of_single_copies = purges_of_single_copies(out)
    with_text = {row["doc_id"] for row in purged if row["purge_id"] not in of_single_copies}
    hashes: set[bytes] = set()
    urls = {normalise_url(url, fragments=bool(apart)) for url in named["url"]}
    lookup = Lookup(out)
    for first in range(0, len(doc_ids), _LOOKED_UP_AT_ONCE):
        for row in lookup.documents(doc_ids[first : first + _LOOKED_UP_AT_ONCE]):
            if row.doc_id in with_text:
                hashes |= {
                    digest for digest in (row.raw_hash, row.text_hash, row.clean_hash) if digest is not None
                }
            if row.url is not None and row.doc_id in by_address and names_something(row.url):
                urls.add(normalise_url(row.url, fragments=row.source in apart))
    # The hash of nothing would keep out every page without text.
    return PurgedSets(
        doc_ids=frozenset(doc_ids),
        hashes=frozenset(hashes - {_EMPTY}),
        urls=frozenset(urls),
        hosts=frozenset(host for name in named["host"] if (host := named_host(name))),
        domains=frozenset(domain for name in named["domain"] if (domain := named_host(name))),
    )
