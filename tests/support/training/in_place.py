"""Runs that recover in place, with deaths at chosen markers: a process kills or stops itself where it passes
one."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.support.training.training_runs import Run
from trainer import in_place, supervise
from trainer.health import check
from trainer.health.signs import Sign
from trainer.in_place import ParticipantJob, participate
from trainer.loop import RunParts
from trainer.options import TrainRecipe
from trainer.processes.forked_processes import ForkedProcesses
from trainer.processes.participant import Participant, Rendezvous
from trainer.result import TrainingResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """In a generation, of a rank, at the `nth` marker of that name which it passes in it."""

    rank: int
    where: str
    nth: int = 1
    signal: int = signal.SIGKILL


Deaths = Mapping[int, tuple[Death, ...]]
"""By the generation in which they come."""


def train_with(
    run: Run, deaths: Deaths, *, prepare: Callable[[], None] | None = None, **changes: Any
) -> TrainingResult:
    """Train as `python -m trainer` does. `prepare`: called in each process first."""
    recipe: TrainRecipe = run.recipe(changes)

    def begin(job: ParticipantJob, port: int) -> ForkedProcesses:
        work = partial(_work, job, deaths, prepare)
        return ForkedProcesses(work, port, recipe.train.num_workers)

    return supervise.train_supervised(recipe, begin, lambda: False)


def _work(job: ParticipantJob, deaths: Deaths, prepare: Callable[[], None] | None, place: Rendezvous) -> int:
    at = Participant.at
    passed: dict[tuple[int, str], int] = {}

    def dying_at(participant: Participant, step: int, where: str) -> None:
        at(participant, step, where)
        key = participant.generation, where
        passed[key] = passed.get(key, 0) + 1
        for death in deaths.get(participant.generation, ()):
            if (death.rank, death.where, death.nth) == (participant.rank, where, passed[key]):
                os.kill(os.getpid(), death.signal)

    Participant.at = dying_at  # type: ignore[method-assign]
    if prepare is not None:
        prepare()
    return participate(job, place)


def miss_the_vote(rank: int, dying: int, step: int) -> None:
    """In the first generation, at `step`: `dying` dies once the vote is over, and `rank` does not hear of its
    end, as where its last message is lost with the connection."""
    voted = in_place.vote

    def vote(run: RunParts) -> None:
        voted(run)
        ready = run.context.ready
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

    in_place.vote = vote


def show_a_sign(once: Path) -> None:
    """The counters of this machine's kernel show a sign of failing, at the first look after the start."""

    class Reader:
        def __init__(self, **named: Any) -> None:
            self.num_looks = 0

        def read(self) -> list[Sign]:
            self.num_looks += 1
            if self.num_looks == 1 or once.exists() or dist.get_rank() != 0:
                return []
            once.touch()
            return [Sign(what="uncorrected memory errors of mc0", count=1)]

    check.SignReader = Reader  # type: ignore[assignment, misc]


def without_recovery(run: Run) -> Run:
    """The same run where every death would start all processes again."""
    changes = {name: value for name, value in run.changes.items() if name != "recovery"}
    return dataclasses.replace(run, changes=changes)
