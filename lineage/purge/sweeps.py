"""Which block caches still hold what a purge took out: those that were not cleaned since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.delta import read_table


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
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_table(out, "cache_sweeps").to_pylist():
        cache = row["host"], row["folder"]
        if cache not in last or row["at"] > last[cache]["at"]:
            last[cache] = row
    return tuple(
        UnsweptCache(host=host, folder=folder, run=row["run"], at=row["at"])
        for (host, folder), row in sorted(last.items())
        if row["content_fingerprint"] != index.content_fingerprint
    )
