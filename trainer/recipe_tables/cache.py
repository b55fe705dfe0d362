"""The table of the block cache."""

from __future__ import annotations

from dataclasses import dataclass

from lineage.recipe import key


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTable:
    """`[train.cache]`: blocks of remote shards on local disk, shared by the ranks of a node."""

    dir: str | None = key(
        None,
        is_path=True,
        help="folder of the block cache; not given: <output>/cache for remote shards (sluice-cache "
        "in the system's temporary folder if the output is remote too), none for local ones",
    )
    max_bytes: int = key(64 << 30, at_least=1, help="maximum size of that folder, partial downloads included")
    prefetch_blocks: int = key(8, at_least=1, help="blocks in flight ahead of the step")
