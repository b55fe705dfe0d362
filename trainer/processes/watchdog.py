"""Finds a hung rank: when this process has made no progress for a while, the ranks compare how far each has
come.

Every rank passes the same markers in the same order, so the one with the fewest markers is the one that the
others wait for, and its last marker says where it is. Nothing is exchanged until something hangs."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

EXIT_HUNG: Final = 75
"""Exit code of a process that its watchdog ended (EX_TEMPFAIL of sysexits.h: trying again may help)."""

_RECORD_SECONDS: Final = 10.0

IMPLIED_COLLECTIVE: Final[Mapping[str, str]] = {
    "forward": "all-gather of parameters",
    "loss": "all-reduce over the split vocabulary",
    "backward": "reduce-scatter or all-reduce of gradients",
    "gradient synchronisation": "reduce-scatter or all-reduce of gradients",
    "checkpoint": "gather of the checkpoint's plan",
}
"""The collective that a rank waits in when it hangs in a phase and named no other."""


class Store(Protocol):
    """What of torch's key-value store is used."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """How far a rank has come: how many markers it passed, and the last of them."""

    num_markers: int
    step: int
    where: str


def diagnose(progress: Sequence[RankProgress | None]) -> str:
    """One sentence that names the rank that others wait for, and the collective. None: no answer of that
    rank."""
    hung = behind(progress)
    known = {rank: each for rank, each in enumerate(progress) if each is not None}
    if not known:
        return "no rank gives a sign of life"
    furthest = max(known.values(), key=lambda each: each.num_markers)
    collective = IMPLIED_COLLECTIVE.get(furthest.where, furthest.where)
    waiting = f"others wait in step {furthest.step} in the {collective}"
    if not hung:
        waiting = f"all ranks wait in step {furthest.step} in the {collective}"
        return f"{waiting}; `sluice train diagnose OUTPUT` says who came to it"
    if hung[0] not in known:
        return f"rank {_ranks(hung)} gives no sign of life; {waiting}"
    last = known[hung[0]]
    return f"rank {_ranks(hung)} is hung in step {last.step}, {last.where}; {waiting}"


def behind(progress: Sequence[RankProgress | None]) -> list[int]:
    """The ranks that the others wait for: those that gave no answer, else those with the fewest markers; none
    where all have as many."""
    silent = [rank for rank, each in enumerate(progress) if each is None]
    if silent:
        return silent
    known = [each.num_markers for each in progress if each is not None]
    least = min(known)
    return [rank for rank, num in enumerate(known) if num == least] if least < max(known) else []


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


class Watchdog:
    """Ends the process with EXIT_HUNG, after saying why, when `seconds` pass after a marker without another.

    `record` keeps the message where people will look, `dump` what this process did last and where it is:
    first of all, since another rank's end may take this one along. Each is given a few seconds."""

    def __init__(
        self,
        seconds: float,
        *,
        store: Store,
        rank: int,
        world_size: int,
        record: Callable[[str], None],
        dump: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._seconds = seconds
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._record, self.dump = record, dump
        self._progress = RankProgress(num_markers=0, step=0, where="start")
        self._since = math.inf
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def at(self, step: int, where: str) -> None:
        """Pass a marker."""
        self._progress = RankProgress(num_markers=self._progress.num_markers + 1, step=step, where=where)
        self._since = time.monotonic()

    def rest(self) -> None:
        """What follows may take long; the next marker wakes the watchdog."""
        self._since = math.inf

    def close(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(min(self._seconds / 10, 1.0)):
            if time.monotonic() - self._since > self._seconds:
                _in_time(self.dump, f"no progress for {self._seconds:g} s in {self._progress.where}")
                self._end(self._compare())
                return

    def _compare(self) -> str:
        # In a thread of its own: the store lives in one of the ranks, and that may be the one that hangs.
        found: list[str] = []
        exchange = threading.Thread(target=lambda: found.append(self._exchange()), daemon=True)
        exchange.start()
        exchange.join(2 * self._grace + 5)
        mine = f"rank {self._rank} made no progress for {self._seconds:g} s"
        return f"{mine}: {found[0] if found else 'the process that holds the store (rank 0) does not answer'}"

    @property
    def _grace(self) -> float:
        return min(max(self._seconds / 4, 1.0), 30.0)

    def _exchange(self) -> str:
        progress = self._progress
        row = {"num_markers": progress.num_markers, "step": progress.step, "where": progress.where}
        self._store.set(f"watchdog/{self._rank}", json.dumps(row))
        time.sleep(self._grace)
        if self._rank > 1:  # two readers are enough, and a large world would ask for the square of its size
            time.sleep(self._grace)
            return f"it is in step {progress.step}, {progress.where}; ranks 0 and 1 say who hangs"
        return diagnose([self._read(rank) for rank in range(self._world_size)])

    def _read(self, rank: int) -> RankProgress | None:
        name = f"watchdog/{rank}"
        return RankProgress(**json.loads(self._store.get(name))) if self._store.check([name]) else None

    def _end(self, message: str) -> None:
        sys.stderr.write(f"sluice: {message}\n")
        sys.stderr.flush()
        _in_time(self._record, message)
        os._exit(EXIT_HUNG)  # the main thread hangs in a collective that nothing can interrupt


def _in_time(record: Callable[[str], None], message: str) -> None:
    recording = threading.Thread(target=record, args=(message,), daemon=True)
    recording.start()
    recording.join(_RECORD_SECONDS)  # the storage may be what hangs
