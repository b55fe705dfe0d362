"""What reading the data has cost so far: the figures that metrics and dashboards show."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadFigures:
    """What a reader has done so far, counted; all 0 where shards are read in place.

    Bytes are of whole blocks as they came, damaged ones too; `wait_seconds`: how long rows waited for blocks."""

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

    @property
    def hit_share(self) -> float:
        """Share of look-ups that found their block on disk; 1 before the first."""
        return self.hits / max(1, self.hits + self.misses) if self.misses else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """The loading of one rank up to now. `wait_seconds`: how long the last step waited for its batch;
    `read_amplification`: bytes fetched over bytes of the sequences read (0 where nothing is fetched)."""

    wait_seconds: float
    hit_share: float
    bytes_fetched: int
    read_amplification: float
    failed_reads: int
    damaged_blocks: int
    disk_errors: int


def load_figures(reading: ReadFigures, num_tokens: int, wait_seconds: float) -> LoadFigures:
    """The figures of a rank whose batches held `num_tokens` tokens."""
    return LoadFigures(
        wait_seconds=wait_seconds, hit_share=reading.hit_share, bytes_fetched=reading.bytes_fetched,
        read_amplification=reading.bytes_fetched / max(1, 4 * num_tokens), failed_reads=reading.failed_reads,
        damaged_blocks=reading.damaged_blocks, disk_errors=reading.disk_errors,
    )  # fmt: skip
