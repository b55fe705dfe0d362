"""A run that has not ended: how far each phase has come, how fast, how much is left, and what could not be
read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lineage.storage.folder import Folder
from pipeline.dedup.compare import NUM_STEPS
from pipeline.plan import PLAN, UNIT_MARKER
from pipeline.results.unit_results import ReadResult

_MOST_ERRORS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOfRun:
    """Units of a phase that are done, of how many (None: not known yet), and seconds for the rest by the rate
    so far (None where no rate is known)."""

    name: str
    num_done: int
    num: int | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run at work, or one that stopped: `name` by its recipe; documents and bytes that were read so far, a
    rate of bytes a second (None: not known), and unreadable stretches with their places, the first of
    them."""

    name: str
    phases: tuple[PhaseOfRun, ...]
    num_documents: int
    num_survivors: int
    num_bytes: int
    bytes_per_second: float | None
    num_unreadable: int
    unreadable: tuple[tuple[str, int, str], ...]
    num_raised: int
    seconds_since: float | None


@dataclass(slots=True)
class ReadSoFar:
    """What the markers of read units came to, so that each is read once."""

    seen: set[str] = field(default_factory=set)
    num_documents: int = 0
    num_survivors: int = 0
    num_bytes: int = 0
    num_unreadable: int = 0
    num_raised: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, name: str, read: ReadResult) -> None:
        """Count a unit."""
        self.seen.add(name)
        self.num_documents += read.num_documents
        self.num_survivors += read.num_survivors
        self.num_bytes += read.num_bytes
        self.num_unreadable += len(read.unreadable)
        self.num_raised += sum(row.num for row in read.faults)
        room = _MOST_ERRORS - len(self.unreadable)
        self.unreadable += [(read.file, each.offset, each.error) for each in read.unreadable[:room]]


def is_begun(out: Folder) -> bool:
    """Whether a run that has not ended lies there."""
    return bool(out.exists(PLAN))


def progress_of(out: Folder, so_far: ReadSoFar, now: float) -> UnfinishedRun:
    """How far the run has come; `so_far` is filled with what was not seen before. `now`: seconds since
    1970."""
    plan: dict[str, Any] = json.loads(out.read(PLAN))
    num_files = len(plan["inputs"])
    names = out.names("work")
    units = [name for name in names if name.endswith(f"/{UNIT_MARKER}")]
    for name in units:
        if name not in so_far.seen:
            so_far.add(name, ReadResult.from_json(json.loads(out.read(name))))
    times = _times(out, units)
    seconds = max(times) - min(times) if len(times) > 1 else 0.0
    rate = (len(times) - 1) / seconds if seconds else None
    phases = [
        PhaseOfRun(
            name="read",
            num_done=len(units),
            num=num_files,
            seconds_left=None if rate is None else (num_files - len(units)) / rate,
        ),
        _phase(
            "compare", [name for name in names if name.startswith("work/dedup/")], "/done.json", NUM_STEPS
        ),
        _phase("tokenize", names, "/run.json", num_files),
        _phase("shard", [name for name in names if "/shard-" in name], ".json", None),
        _phase("join", names, "/final.json", num_files),
        _phase("record", [name for name in names if name.startswith("work/tables/")], ".json", None),
    ]
    return UnfinishedRun(
        name=str(plan["recipe"]["run"]["name"]),
        phases=tuple(phases),
        num_documents=so_far.num_documents,
        num_survivors=so_far.num_survivors,
        num_bytes=so_far.num_bytes,
        bytes_per_second=so_far.num_bytes / seconds if seconds else None,
        num_unreadable=so_far.num_unreadable,
        unreadable=tuple(so_far.unreadable),
        num_raised=so_far.num_raised,
        seconds_since=None if not times else max(0.0, now - max(_times(out, names))),
    )


def _phase(name: str, names: Sequence[str], marker: str, num: int | None) -> PhaseOfRun:
    num_done = sum(each.endswith(marker) for each in names)
    return PhaseOfRun(name=name, num_done=num_done, num=num, seconds_left=None)


def _times(out: Folder, names: Sequence[str]) -> list[float]:
    """When these files were written, where that can be known: on a disk."""
    if out.is_remote:
        return []
    found = []
    for name in names:
        try:
            found.append(os.stat(out.at(name)).st_mtime)
        except FileNotFoundError:
            continue  # the run goes on meanwhile
    return found
