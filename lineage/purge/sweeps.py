"""The block caches that training runs recorded: a purge cleans those of its own host, and names those that
still hold what it took out."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.delta import append, read_table
from lineage.store.rows import SweepRow
from lineage.store.tables import SCHEMAS

DropCached = Callable[[str, Collection[str]], bool]
"""(a cache folder of this host, hashes of shards): drops the blocks of all other shards; False if its disk
does not let it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsweptCache:
    """A cache folder of a host, the run that last used it, and when it was last cleaned (ISO-8601 UTC)."""

    host: str
    folder: str
    run: str
    at: str


def unswept(out: Folder, index: Index) -> tuple[UnsweptCache, ...]:
    """The caches whose last cleaning was for other content than the index names now, by (host, folder).

    They cannot serve a purged block (blocks are named by their hash); they drop it when they next start."""
    return tuple(
        UnsweptCache(host=host, folder=folder, run=row.run, at=row.at)
        for (host, folder), row in sorted(_last_sweeps(out, index).items())
        if row.content_fingerprint != index.content_fingerprint
    )


def sweep_own_caches(out: Folder, index: Index, drop: DropCached, transaction_id: str) -> bool:
    """Drop from this host's caches what `index` does not name, and record each as cleaned; whether any was.

    The row comes after the blocks are gone, once under the transaction: so a call that was killed is made
    again. A folder that is not there, as of a disk that is not mounted, or cannot be cleaned stays unswept.
    The caller holds the OUT and updates the checksums of `cache_sweeps`."""
    hashes = {shard.hash for shard in index.shards}
    swept = False
    for (host, folder), last in sorted(_last_sweeps(out, index).items()):
        if host != socket.gethostname() or not os.path.isdir(folder):
            continue
        if not drop(folder, hashes):  # a block is named by its hash, so none that stays can be served
            continue
        row = replace(
            last,
            content_fingerprint=index.content_fingerprint,
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),  # as training writes it: they are compared
        )
        append(
            out,
            "cache_sweeps",
            pa.Table.from_pylist([asdict(row)], SCHEMAS["cache_sweeps"]),
            f"{transaction_id}:{host}:{folder}",
        )
        swept = True
    return swept


def _last_sweeps(out: Folder, index: Index) -> dict[tuple[str, str], SweepRow]:
    """The last cleaning of each cache, by (host, folder); of two in one second that for the content of
    `index`."""

    def rank(row: SweepRow) -> tuple[str, bool]:
        return row.at, row.content_fingerprint == index.content_fingerprint

    last: dict[tuple[str, str], SweepRow] = {}
    for row in (SweepRow(**plain) for plain in read_table(out, "cache_sweeps").to_pylist()):
        cache = row.host, row.folder
        if cache not in last or rank(row) > rank(last[cache]):
            last[cache] = row
    return last
