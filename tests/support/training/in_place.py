"""Runs that recover in place, with deaths at chosen markers: a process kills or stops itself where it passes
one."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch.distributed as dist

from lineage.storage.folder import Folder
from tests.support.training.training_runs import Run
from trainer.attempts import attempts
from trainer.in_place import generation, supervise
from trainer.in_place.survivor import ParticipantJob, participate
from trainer.options import TrainRecipe
from trainer.processes.forked_processes import ForkedProcesses
from trainer.processes.participant import Participant, Rendezvous
from trainer.processes.result import TrainingResult
from trainer.provenance.reached import read_facts
from trainer.run.parts import Run as RunParts
from trainer.telemetry.phases import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """In a generation, of a rank, at the `nth` marker of that name which it passes in it. `goes_on`: SIGCONT
    comes as soon as it is stopped."""

    rank: int
    where: str
    nth: int = 1
    signal: int = signal.SIGKILL
    goes_on: bool = False


Deaths = Mapping[int, tuple[Death, ...]]
"""By the generation in which they come."""


IN_PLACE = {"mode": "in_place", "spares": 1}
RECOVERY = (
    "agreement of the ranks that are left",
    "forming of process groups",
    "claim of the next attempt",
    "making of the model",
    "filling of the model",
)
"""The markers of a recovery, in their order."""


LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"workers": 4, "zero": 0},
    "hsdp": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "tp and replicas": {"parallel": {"tp": 2, "dp_replicate": 2}},
    "pp and replicas": {"parallel": {"pp": 2, "dp_replicate": 2}},
}

WITHOUT_REPLICAS: dict[str, dict[str, Any]] = {
    "fsdp": {"workers": 4},
    "tp and shards": {"parallel": {"tp": 2, "dp_shard": 2}},
    "pp and shards": {"parallel": {"pp": 2, "dp_shard": 2}},
}


def died_at(run: Run) -> list[float]:
    """When each process of a run killed or stopped itself, seconds since the epoch."""
    return [float(line) for line in _deaths_file(run.output).read_text().split()]


def _deaths_file(output: Path) -> Path:
    return output.with_suffix(".deaths")


def train_with(
    run: Run, deaths: Deaths, *, prepare: Callable[[], None] | None = None, **changes: Any
) -> TrainingResult:
    """Train as `python -m trainer` does. `prepare`: called in each process first."""
    recipe: TrainRecipe = run.recipe(changes)

    def begin(job: ParticipantJob, port: int) -> ForkedProcesses:
        work = partial(_work, job, deaths, prepare)
        return ForkedProcesses(work, port, recipe.train.num_workers)

    return supervise.train_supervised(recipe, begin, lambda: False)


def train_out_of_reach(
    run: Run, deaths: Deaths, wakes: Callable[[], bool]
) -> tuple[TrainingResult, list[str]]:
    """The same where a stopped process can be killed by nobody, as on a machine that is cut off: it is told as
    lost, and goes on once another has its place and `wakes` says so. Gives also what such processes wrote into
    the output from then on: an event of Python's audit with its path."""
    recipe: TrainRecipe = run.recipe()
    written = run.output.with_suffix(".written")

    def begin(job: ParticipantJob, port: int) -> ForkedProcesses:
        work = partial(_work, job, deaths, partial(_note_writes_after_a_stop, run.output, written))
        return _OutOfReach(work, port, recipe.train.num_workers, wakes)

    result = supervise.train_supervised(recipe, begin, lambda: False)
    return result, written.read_text().splitlines()


class _OutOfReach(ForkedProcesses):
    """No kill reaches what is stopped."""

    def __init__(
        self, work: Callable[[Rendezvous], int], port: int, num_local: int, wakes: Callable[[], bool]
    ) -> None:
        super().__init__(work, port, num_local)
        self._wakes, self._lost = wakes, list[int]()
        self._woken: dict[int, threading.Thread] = {}
        self._is_replaced = threading.Event()

    def start(self, process: int) -> None:
        super().start(process)
        if self._woken:  # another one waits, since one that waited has the lost one's place
            self._is_replaced.set()

    def kill(self, process: int) -> None:
        pid = None if process not in self._running else self._running[process].pid
        if pid is None or not _is_stopped(pid):
            super().kill(process)
        elif process not in self._woken:
            self._lost.append(process)
            self._woken[process] = threading.Thread(target=self._wake, args=(pid,))
            self._woken[process].start()

    def ended(self, seconds: float) -> Sequence[tuple[int, str]]:
        lost, self._lost = self._lost, []
        return [*super().ended(seconds), *((process, "was lost") for process in lost)]

    def close(self) -> None:
        for process, thread in self._woken.items():
            thread.join()
            if process in self._running:
                self._running[process].join()

    def _wake(self, pid: int) -> None:
        self._is_replaced.wait()
        while not self._wakes():
            time.sleep(0.01)
        os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _note_writes_after_a_stop(output: Path, written: Path) -> None:
    """Called in each process first."""
    log = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    was_stopped = threading.Event()
    kill = os.kill

    def stop(pid: int, number: int) -> None:
        kill(pid, number)
        was_stopped.set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if not was_stopped.is_set() or event not in ("open", "os.rename", "os.link", "os.remove", "os.mkdir"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
            return
        if (path := str(arguments[0])).startswith(f"{output}/"):
            os.write(log, f"{event} {path.removeprefix(f'{output}/')}\n".encode())

    os.kill = stop
    sys.addaudithook(note)


def _note_death(output: Path) -> None:
    with _deaths_file(output).open("a") as file:
        file.write(f"{time.time()}\n")


def _work(job: ParticipantJob, deaths: Deaths, prepare: Callable[[], None] | None, place: Rendezvous) -> int:
    at = Participant.at
    passed: dict[tuple[int, str], int] = {}

    def dying_at(participant: Participant, step: int, where: str) -> None:
        at(participant, step, where)
        key = participant.generation, where
        passed[key] = passed.get(key, 0) + 1
        for death in deaths.get(participant.generation, ()):
            if (death.rank, death.where, death.nth) == (participant.rank, where, passed[key]):
                if death.goes_on:
                    _continue_once_stopped()
                _note_death(Path(job.recipe.train.output))
                os.kill(os.getpid(), death.signal)

    Participant.at = dying_at  # type: ignore[assignment, method-assign]
    if prepare is not None:
        prepare()
    return participate(job, place)


def _continue_once_stopped() -> None:
    """By another process: every thread of this one will be stopped."""
    pid = os.getpid()
    stopped = f"until grep -q '^State:.T' /proc/{pid}/status; do sleep 0.1; done"
    subprocess.Popen(["sh", "-c", f"{stopped}; sleep 1; kill -CONT {pid}"])


def miss_the_vote(rank: int, dying: int, step: int) -> None:
    """In the first generation, at `step`: `dying` dies once the vote is over, and `rank` does not hear of its
    end, as where its last message is lost with the connection."""
    voted = generation.vote

    def vote(run: RunParts) -> None:
        voted(run)
        ready = run.stepping.context.ready
        assert ready is not None
        if run.joined.attempt.number == 1 and ready.step == step:
            process = run.launch.process
            process.store.set(f"voted/{process.rank}", "")
            if dist.get_rank() == dying:
                # Only then is it sure that others hear of it.
                while not process.store.check([f"voted/{each}" for each in range(process.world_size)]):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            if dist.get_rank() == rank:
                raise RuntimeError("Connection closed by peer")

    generation.vote = vote


def without_recovery(run: Run) -> Run:
    """The same run where every death would start all processes again."""
    changes = {name: value for name, value in run.changes.items() if name != "recovery"}
    return dataclasses.replace(run, changes=changes)


def check_same(run: Run, whole: Run) -> None:
    """Losses, norms, weights, moments and what was fed, to the bit; each step fed and applied once."""
    assert run.losses() == whole.losses()
    assert [row["grad_norm"] for row in run.metrics().values()] == [
        r["grad_norm"] for r in whole.metrics().values()
    ]
    assert hashes(run) == hashes(whole) != {}
    assert run.sequences() == whole.sequences()
    line = {step: attempt for attempt, steps in applied_by(run) for step in steps}
    assert line == {step: row["attempt"] for step, row in run.metrics().items()}


def hashes(run: Run) -> dict[str, Any]:
    complete = json.loads((run.output / "checkpoints" / run.checkpoints()[-1] / "complete.json").read_text())
    return {name: entry for name, entry in complete["files"].items() if name.endswith(".distcp")}


def row_losses(run: Run) -> list[tuple[int, int, float, int]]:
    """(step, row, loss, labels) as recorded by the attempts that are applied."""
    line = {step: attempt for attempt, steps in applied_by(run) for step in steps}
    rows = [
        row for file in (run.output / "batches").glob("*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    return sorted(
        (row["step"], row["row"], row["loss"], row["num_labels"])
        for row in rows
        if row["attempt"] == line[row["step"]]
    )


def applied_by(run: Run) -> list[tuple[int, range]]:
    """The steps that lineage counts for each attempt of the line to the newest."""
    reached: dict[int, int] = {}
    for fact in read_facts([str(run.output)]).segments:
        reached[fact.attempt] = max(reached.get(fact.attempt, -1), fact.last_step or 0)
    begun = {attempt.number: attempt for attempt in attempts(Folder(str(run.output)))}
    number: int | None = max(reached)
    end = reached[max(reached)] + 1
    found = []
    while number is not None:
        first = begun[number].first_step
        found.append((number, range(first, end)))
        end, number = min(first, end), begun[number].parent
    return found


def both_of(layout: str, corpus: str, folder: Path, *, stops: bool = False) -> tuple[Run, Run]:
    """A run of four processes of a layout without recovery, and one with it that forty deaths are for, or ten
    stops."""
    spares = {"spares": 1 if stops else 2, "neighbour_copy": layout in WITHOUT_REPLICAS}
    changes = {
        "steps": 40 if stops else 100,
        "recovery": IN_PLACE | spares,
        "faults": {"watchdog_seconds": 20.0 if stops else 600.0},
        "record_losses": True,
        "validation": 0.1,
        "eval_every": 10,
    } | (LAYOUTS | WITHOUT_REPLICAS)[layout]
    run = Run(data=corpus, output=folder / "run", changes=changes)
    return without_recovery(dataclasses.replace(run, output=folder / "whole")), run


def _ranks_that_pass(where: str, layout: str) -> tuple[int, ...]:
    """Of four; of a pipeline of two stages only those of the last have a loss."""
    return (2, 3) if where == "loss" and _has_stages(layout) else (0, 1, 2, 3)


def _dies_in_recovery(layout: str, lost: int) -> int:
    """Who may die while the place of `lost` is filled: not the one that alone holds what it had. Of a rank
    without replicas that is its neighbour, so the one in its place dies again; the replica of rank 0 is rank
    1 in a pipeline's stage, and rank 2 elsewhere."""
    return lost if layout in WITHOUT_REPLICAS else (lost + (2 if _has_stages(layout) else 1)) % 4


def _has_stages(layout: str) -> bool:
    return "pp" in (LAYOUTS | WITHOUT_REPLICAS)[layout].get("parallel", {})


def forty_deaths(layout: str) -> Deaths:
    """One in each generation: four in every phase, of each rank that has it, and at every marker of a
    recovery, which the next ends."""
    copies = layout in WITHOUT_REPLICAS
    moments: list[tuple[str, int]] = [(where, 3) for where in PHASES for _ in range(4)]
    moments += [(where, 1) for where in RECOVERY for _ in range(1 if copies else 2)]
    moments += [("vote on the step", 2), ("all-reduce of label counts", 2)]
    moments += [("copy to the neighbour", 2 + number) for number in range(5)] if copies else []
    # A generation that dies in its recovery has not trained: those in which it trains lie between.
    moments = [moments[number * 11 % len(moments)] for number in range(len(moments))]
    assert len(moments) == 40
    deaths: dict[int, tuple[Death, ...]] = {}
    rank = -1
    for number, (where, nth) in enumerate(moments):
        if where in RECOVERY and number:
            rank = _dies_in_recovery(layout, rank)
        else:
            ranks = _ranks_that_pass(where, layout)
            rank = ranks[(rank + 1) % len(ranks)]
        deaths[number] = (Death(rank=rank, where=where, nth=nth),)
    return deaths


def ten_stops(layout: str) -> Deaths:
    """One in each generation, at drawn moments, of drawn ranks where they train: in every phase, and in the
    recovery that follows."""
    draw = random.Random(layout)
    moments: list[tuple[str, int]] = [(where, draw.randint(1, 3)) for where in PHASES]
    draw.shuffle(moments)
    for where in RECOVERY[1:4]:  # before it all are there, and behind it all have what they need
        moments.insert(draw.randint(1, len(moments)), (where, 1))
    stops: dict[int, tuple[Death, ...]] = {}
    rank, was_in_recovery = -1, False
    for number, (where, nth) in enumerate(moments):
        if where not in RECOVERY:
            rank = draw.choice(_ranks_that_pass(where, layout))
        elif not was_in_recovery:  # else the one that died in it dies again: two others were lost
            rank = _dies_in_recovery(layout, rank)
        was_in_recovery = where in RECOVERY
        stops[number] = (Death(rank=rank, where=where, nth=nth, signal=signal.SIGSTOP),)
    return stops
