"""Starts the processes of a run that recovers in place, hears of their deaths, and gives the places of the
dead to spares. It holds the store through which they talk (`participant.py`), so no rank's death takes that
away.

How processes are started, end and are killed is the launcher's: `forked_processes.py` on this machine,
`launch.py` on Ray. Where a death cannot be met in place, `run` says why, and everything starts again from the
newest checkpoint."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.processes.participant import BEAT_SECONDS
from trainer.processes.result import RankOutcome
from trainer.processes.watchdog import RankProgress, behind, diagnose

RANKS_FILE: Final = "ranks.json"
_LOOK_EVERY_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 3.0
"""How long ranks may take to say how far they are once one asks who hangs; each looks once a second."""
_MOST_LOST: Final = 10
"""So many processes, and as many as there are ranks, may end before a generation does a step: it is not
chance then."""
_END_SECONDS: Final = 10.0
"""How long processes that have nothing left to do may take to end."""


class Processes(Protocol):
    """The processes of one start, by number."""

    def start(self, process: int) -> None:
        """Start process `process`, which becomes a Participant of that number."""

    def ended(self, seconds: float) -> Sequence[tuple[int, str]]:
        """Those that ended since the last call, and how; waits up to `seconds` for one."""

    def kill(self, process: int) -> None:
        """End a process at once, be it stopped or hung. Nothing happens where it has ended."""

    def close(self) -> None:
        """Give up what is held for them: the start is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOutcome:
    """How a start ended. `outcome`: that of rank 0, or of the rank that met an error which another start would
    meet again; None where all processes must start again, and `why`."""

    outcome: RankOutcome | None = None
    why: str = ""


def make_store() -> Any:
    """The store of a start, in this process."""
    return cast(Any, dist).TCPStore(
        "0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60)
    )


class Supervisor:
    """One start of `num_ranks` processes and `num_spares` that wait. `say`: gets a line for the user at each
    event; `hung_seconds`: a process that gives no sign of life for so long is killed."""

    def __init__(
        self,
        processes: Processes,
        store: Any,
        output: Folder,
        *,
        num_ranks: int,
        num_spares: int,
        say: Callable[[str], None],
        hung_seconds: float,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._processes, self._store, self._output = processes, store, output
        self._num_ranks, self._num_spares = num_ranks, num_spares
        self._say, self._stop_requested, self._hung_seconds = say, stop_requested, hung_seconds
        self._beats: dict[int, tuple[int, float]] = {}
        self._looked_at = 0.0
        self._generation = 0
        self._plan = list(range(num_ranks))
        self._spares: list[int] = []
        self._next = num_ranks + num_spares
        self._alive: set[int] = set()
        self._known: dict[int, dict[str, object]] = {}
        self._begun = self._replaced = -1
        self._num_news = self._num_lost = 0
        self._outcomes: dict[int, RankOutcome] = {}
        self._asked_at: float | None = None
        self._stopping = False

    def run(self) -> StartOutcome:
        """Until the run ends, or all must start again; every process has ended then."""
        try:
            for process in self._plan:
                self._start(process)
            self._spares = list(range(self._num_ranks, self._num_ranks + self._num_spares))
            for process in self._spares:
                self._start(process)
            self._publish_plan()
            while True:
                found = self._look()
                if found is not None:
                    return found
        finally:
            try:
                self._end_all()
            finally:
                self._processes.close()

    def _look(self) -> StartOutcome | None:
        died = list(self._processes.ended(_LOOK_EVERY_SECONDS))
        self._alive -= {process for process, _ in died}
        if self._stop_requested() and not self._stopping:
            self._stopping = True
            self._store.set("stop", "")
        ended = self._read_news()
        if ended is not None:
            return ended
        self._kill_stopped()
        # What a process said before it ended is known by now: it says so before it ends.
        lost = [(self._plan.index(process), how) for process, how in died if process in self._plan]
        for process, _ in died:
            if process in self._spares:
                self._spares.remove(process)
                self._num_lost += 1
                if self._num_lost <= _MOST_LOST:
                    self._say(f"spare process {process} ended; another one is started")
                    self._add_spare()
                else:
                    self._say(
                        f"spare process {process} ended, as {_MOST_LOST} before it did; none is started for it"
                    )
        return self._replace(lost) if lost else self._end_hang()

    def _read_news(self) -> StartOutcome | None:
        news = self._store.add("news", 0)
        if news == self._num_news:
            return None
        self._num_news = news
        changed = self._learn_processes()
        if self._store.check([f"begun/{self._generation}"]) and self._begun < self._generation:
            self._begun = self._generation
            changed = True
            if self._generation:
                self._say(f"generation {self._generation} trains")
        if changed and self._begun == self._generation:
            self._write_ranks()
        if self._store.check([f"stepped/{self._generation}"]):
            self._num_lost = 0
        if self._store.check([f"cannot/{self._generation}"]):
            return StartOutcome(why=self._store.get(f"cannot/{self._generation}").decode())
        if self._replaced < self._generation and self._store.check([f"replace/{self._generation}"]):
            self._replaced = self._generation
            rank, why = json.loads(self._store.get(f"replace/{self._generation}"))
            self._say(f"rank {rank} is replaced: {why}")
            self._processes.kill(self._plan[rank])
        if self._asked_at is None and self._store.check([f"hung/{self._generation}"]):
            self._asked_at = time.monotonic()
        for process in self._plan:
            if process not in self._outcomes and self._store.check([f"ended/{process}"]):
                outcome = RankOutcome.from_json(json.loads(self._store.get(f"ended/{process}")))
                if outcome.result is None:
                    return StartOutcome(outcome=outcome)
                self._outcomes[process] = outcome
        if all(process in self._outcomes for process in self._plan):
            return StartOutcome(outcome=self._outcomes[self._plan[0]])
        return None

    def _learn_processes(self) -> bool:
        changed = False
        for process in (*self._plan, *self._spares):
            if process not in self._known and self._store.check([f"process/{process}"]):
                self._known[process] = json.loads(self._store.get(f"process/{process}"))
                changed = True
        return changed

    def _replace(self, lost: Sequence[tuple[int, str]]) -> StartOutcome | None:
        named = "; ".join(f"rank {rank} {how}" for rank, how in lost)
        self._num_lost += len(lost)
        if self._outcomes:
            return StartOutcome(why=f"{named}, when others had ended")
        if self._num_lost > _MOST_LOST + self._num_ranks:
            return StartOutcome(
                why=f"{named}, the last of {self._num_lost} processes without a step between them"
            )
        if len(lost) > len(self._spares):
            return StartOutcome(why=f"{named}, and {_num_left(len(self._spares))} left")
        # One that waits already takes a place sooner than one that still imports.
        self._spares.sort(key=lambda process: process not in self._known)
        for rank, how in lost:
            self._plan[rank] = self._spares.pop(0)
            self._say(f"rank {rank} {how}: a spare takes its place, in generation {self._generation + 1}")
        over, self._generation = self._generation, self._generation + 1
        self._asked_at = None
        self._publish_plan()
        self._store.set(f"over/{over}", named)
        for _ in lost:
            self._add_spare()
        return None

    def _publish_plan(self) -> None:
        self._store.set(f"plan/{self._generation}", json.dumps(self._plan))
        for process in self._plan:
            self._store.set(f"assigned/{process}", str(self._generation))

    def _kill_stopped(self) -> None:
        """Kill what has not said for too long that it lives, as a process that was stopped: a rank or a
        spare."""
        now = time.monotonic()
        if now - self._looked_at < BEAT_SECONDS:
            return
        self._looked_at = now
        for process in self._alive & self._known.keys():
            beat = self._store.add(f"beat/{process}", 0)
            known = self._beats.get(process)
            if known is None or known[0] != beat:
                self._beats[process] = (beat, now)
            elif now - known[1] > self._hung_seconds:
                self._say(
                    f"process {process} gave no sign of life for {self._hung_seconds:g} s and is killed"
                )
                self._processes.kill(process)

    def _end_hang(self) -> StartOutcome | None:
        """Kill the rank that hangs, once the others have said how far they are."""
        if self._asked_at is None or time.monotonic() - self._asked_at < _ANSWER_SECONDS:
            return None
        self._asked_at = None
        progress = [self._progress_of(rank) for rank in range(self._num_ranks)]
        why = f"{self._store.get(f'hung/{self._generation}').decode()}: {diagnose(progress)}"
        hung = behind(progress)
        if not hung or len(hung) == self._num_ranks:
            return StartOutcome(why=why)
        self._say(why)
        for rank in hung:
            self._processes.kill(self._plan[rank])
        return None

    def _progress_of(self, rank: int) -> RankProgress | None:
        key = f"progress/{self._generation}/{rank}"
        return RankProgress(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def _start(self, process: int) -> None:
        self._alive.add(process)
        self._processes.start(process)

    def _add_spare(self) -> None:
        self._spares.append(self._next)
        self._start(self._next)
        self._next += 1

    def _write_ranks(self) -> None:
        rows = [
            {"rank": rank, **self._known[process], "generation": self._generation, "role": "rank"}
            for rank, process in enumerate(self._plan)
            if process in self._known
        ]
        rows += [
            {"rank": None, **self._known[process], "generation": self._generation, "role": "spare"}
            for process in self._spares
            if process in self._known
        ]
        self._output.publish(RANKS_FILE, json.dumps(rows, indent=1).encode())

    def _end_all(self) -> None:
        """Let all end that have said how the run ended, and those that wait; kill the others."""
        for process in self._alive:
            self._store.set(f"assigned/{process}", "end")
            if process in self._plan and process not in self._outcomes:
                self._processes.kill(process)
        deadline = time.monotonic() + _END_SECONDS
        while self._alive and time.monotonic() < deadline:
            self._alive -= {process for process, _ in self._processes.ended(_LOOK_EVERY_SECONDS)}
        for process in self._alive:
            self._processes.kill(process)


def _num_left(num: int) -> str:
    return "no spare is" if num == 0 else f"{num} spare{'s are' if num > 1 else ' is'}"
