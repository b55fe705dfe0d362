"""A run that has not ended: how far each phase has come, how fast, how much is left, and what could not be
read."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import posixpath
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lineage.storage.folder import Folder
from lineage.storage.lock import holder_of
from lineage.store.work import PLAN
from pipeline.dedup.compare import NUM_STEPS
from pipeline.plan import UNIT_MARKER
from pipeline.results.unit_results import ReadResult

_MOST_ERRORS: Final = 20
_RECENT: Final = 50
"""Moments at which a file was done, by which the rate goes: one that was stopped and goes on has soon the
rate of its newest call."""
_LONG_SECONDS: Final = 0.3
_REST: Final = 10.0
"""What took longer to find stands so many times as long: pages that wait for a run leave it the disk."""
_AT_WORK_SECONDS: Final = 60.0
"""A run that wrote something less than this ago may be at work on a machine that is not ours."""


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
    rate of bytes a second (None: not known), and unreadable stretches with their places, the first of them.
    `holder`: the process that holds the output, None where none does that can be seen from here.
    `seconds_since` it wrote something, None where that is not known."""

    name: str
    phases: tuple[PhaseOfRun, ...]
    num_documents: int
    num_survivors: int
    num_bytes: int
    bytes_per_second: float | None
    num_unreadable: int
    unreadable: tuple[tuple[str, int, str], ...]
    num_raised: int
    holder: str | None
    seconds_since: float | None

    @property
    def is_at_work(self) -> bool:
        """Whether it seems to go on."""
        is_fresh = self.seconds_since is not None and self.seconds_since < _AT_WORK_SECONDS
        return self.holder is not None or is_fresh


@dataclass(slots=True)
class ReadProgress:
    """What the markers of read units came to, so that each is read once; `seen` has the files, the bytes and the
    time of each. `spans` are those of files that are not put together yet, by the folder of the file's unit.
    `latest`: what was found last, which stands until `stands_until` of the monotonic clock. One thread at a time
    fills it."""

    filling: threading.Lock = field(default_factory=threading.Lock)
    latest: UnfinishedRun | None = None
    stands_until: float = 0.0
    num_files: int = 0
    seen: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    num_documents: int = 0
    num_survivors: int = 0
    num_bytes: int = 0
    num_unreadable: int = 0
    num_raised: int = 0
    unreadable: list[tuple[str, int, str]] = field(default_factory=list)
    spans: dict[str, list[ReadResult]] = field(default_factory=dict)

    def add(self, name: str, read: ReadResult, at: float) -> None:
        """Count a unit that was read at this time, seconds since 1970."""
        num_files, before = read.num_files, list[ReadResult]()
        if read.span is not None:
            num_files = 0
            self.spans.setdefault(_unit_of(name), []).append(read)
        else:
            before = self.spans.pop(_unit_of(name), before)
        num_bytes = read.num_bytes - sum(span.num_bytes for span in before)
        self.seen[name] = num_files, num_bytes, at
        self.num_files += num_files
        self.num_documents += read.num_documents - sum(span.num_documents for span in before)
        self.num_survivors += read.num_survivors - sum(span.num_survivors for span in before)
        self.num_bytes += num_bytes
        self.num_unreadable += len(read.unreadable) - sum(len(span.unreadable) for span in before)
        self.num_raised += _num_raised(read) - sum(map(_num_raised, before))
        known = set(self.unreadable)
        found = ((each.file or read.file, each.offset, each.error) for each in read.unreadable)
        room = _MOST_ERRORS - len(self.unreadable)
        self.unreadable += itertools.islice((each for each in found if each not in known), room)

    def rates(self) -> tuple[float, float] | None:
        """Files and bytes a second, by the newest; None before two are known that ended one after the
        other."""
        moments = heapq.nlargest(_RECENT, {at for *_, at in self.seen.values()})
        if len(moments) < 2:
            return None
        seconds = moments[0] - moments[-1]
        later = [
            (num_files, num_bytes) for num_files, num_bytes, at in self.seen.values() if at > moments[-1]
        ]
        return sum(num for num, _ in later) / seconds, sum(num for _, num in later) / seconds


def _unit_of(marker: str) -> str:
    """The folder of the unit whose file, or a span of whose file, a marker confirms."""
    return posixpath.dirname(marker).partition(".")[0]


def _num_raised(read: ReadResult) -> int:
    return sum(row.num for row in read.faults)


def is_begun(out: Folder) -> bool:
    """Whether a run that has not ended lies there."""
    return bool(out.exists(PLAN))


def progress_of(out: Folder, so_far: ReadProgress, now: float) -> UnfinishedRun:
    """How far the run has come; `so_far` is filled with what was not seen before. `now`: seconds since 1970.

    The pages of a run ask every few seconds, and a run of many files has many names to list: where that took
    long, what was found is the answer for a while."""
    with so_far.filling:
        began = time.monotonic()
        if so_far.latest is None or began >= so_far.stands_until:
            so_far.latest = _progress_of(out, so_far, now)
            took = time.monotonic() - began
            so_far.stands_until = began + took + (_REST * took if took > _LONG_SECONDS else 0.0)
        return so_far.latest


def _progress_of(out: Folder, so_far: ReadProgress, now: float) -> UnfinishedRun:
    plan = json.loads(out.read(PLAN))
    num_files = len(plan["inputs"])
    names = out.names("work")
    units = [name for name in names if name.endswith(f"/{UNIT_MARKER}")]
    for name in units:
        if name not in so_far.seen:
            so_far.add(name, ReadResult.from_json(json.loads(out.read(name))), _time(out, name) or now)
    num_left = num_files - so_far.num_files
    # Small files are read together; how many units the others make is known when they are read.
    num_units = len({_unit_of(name) for name in units} - so_far.spans.keys()) + num_left
    rates = so_far.rates()
    times = [at for at in (_time(out, name) for name in names) if at is not None]
    phases = [
        PhaseOfRun(
            name="read",
            num_done=so_far.num_files,
            num=num_files,
            # Where parts of large files were read alone, no file was done.
            seconds_left=None if rates is None or not rates[0] else num_left / rates[0],
        ),
        _phase(
            "compare", [name for name in names if name.startswith("work/dedup/")], "/done.json", NUM_STEPS
        ),
        _phase("tokenize", names, "/run.json", num_units),
        _phase("shard", [name for name in names if "/shard-" in name], ".json", None),
        _phase("join", names, "/final.json", num_units),
        _phase("record", [name for name in names if name.startswith("work/tables/")], ".json", None),
    ]
    # Not every step of a comparison publishes something. What comes after it begins when it is done.
    if any(phase.num_done for phase in phases[2:]):
        phases[1] = replace(phases[1], num_done=NUM_STEPS)
    return UnfinishedRun(
        name=str(plan["recipe"]["run"]["name"]),
        phases=tuple(phases),
        num_documents=so_far.num_documents,
        num_survivors=so_far.num_survivors,
        num_bytes=so_far.num_bytes,
        bytes_per_second=None if rates is None else rates[1],
        num_unreadable=so_far.num_unreadable,
        unreadable=tuple(so_far.unreadable),
        num_raised=so_far.num_raised,
        holder=holder_of(out),
        seconds_since=max(0.0, now - max(times)) if times else None,
    )


def _phase(name: str, names: Sequence[str], marker: str, num: int | None) -> PhaseOfRun:
    num_done = sum(each.endswith(marker) for each in names)
    return PhaseOfRun(name=name, num_done=num_done, num=num, seconds_left=None)


def _time(out: Folder, name: str) -> float | None:
    """When a file was written, where that can be known: on a disk, and while it is there."""
    if out.is_remote:
        return None
    try:
        return os.stat(out.at(name)).st_mtime
    except FileNotFoundError:
        return None
