"""What reading the data has cost so far: the figures that metrics and dashboards show."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lineage.index.blocks import TOKEN_BYTES

_COUNTED: Final = (
    "hits", "misses", "bytes_fetched", "failed_reads", "damaged_blocks", "disk_errors", "streamed_blocks", "evictions",
)  # fmt: skip
NUM_COUNTED: Final = len(_COUNTED) + 1


@dataclass(slots=True)
class ReadFigures:
    """What a reader has done so far, counted; all 0 where shards are read in place.

    Bytes are of whole blocks as they came, damaged ones too; `wait_seconds`: how long rows waited for
    blocks."""

    hits: int = 0
    misses: int = 0
    bytes_fetched: int = 0
    failed_reads: int = 0
    damaged_blocks: int = 0
    disk_errors: int = 0
    streamed_blocks: int = 0
    evictions: int = 0
    wait_seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a figure; safe from several threads."""
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)

    def counted(self, num_tokens: int) -> list[float]:
        """NUM_COUNTED numbers that add up over readers and ranks, for `load_figures`; the reader's batches
        held `num_tokens` tokens."""
        return [*(float(getattr(self, name)) for name in _COUNTED), float(num_tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """The loading of all ranks up to now.

    `hit_share`: of the blocks that rows asked for, those that were on disk or in memory (1 where nothing is
    fetched); `read_amplification`: bytes fetched over bytes of the sequences read (0 where nothing is
    fetched)."""

    hit_share: float
    bytes_fetched: int
    read_amplification: float
    failed_reads: int
    damaged_blocks: int
    disk_errors: int
    streamed_blocks: int
    evictions: int


def load_figures(counted: Sequence[float], num_peers: int) -> LoadFigures:
    """The figures of ranks whose `counted` add up to these; `num_peers` ranks each were given the same
    tokens."""
    hits, misses, fetched, failed, damaged, disk, streamed, evictions, tokens = counted
    read = tokens / num_peers * TOKEN_BYTES
    return LoadFigures(
        hit_share=hits / (hits + misses) if misses else 1.0,
        bytes_fetched=int(fetched),
        read_amplification=fetched / read if read else 0.0,
        failed_reads=int(failed),
        damaged_blocks=int(damaged),
        disk_errors=int(disk),
        streamed_blocks=int(streamed),
        evictions=int(evictions),
    )
