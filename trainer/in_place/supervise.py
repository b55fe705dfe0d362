"""A training run that this process carries out without Ray: alone, or, where it recovers in place, with
processes that it starts, start after start, until the run is done. What can be met in place is met within a
start (`processes/supervisor.py`, `survivor.py`)."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.attempts import FencedOutError, TrainingStoppedError, failures
from trainer.checkpoint.room import DiskFullError
from trainer.checkpoint.store import CheckpointError, newest_step
from trainer.in_place.survivor import ParticipantJob, participate
from trainer.options import TrainRecipe
from trainer.processes.forked_processes import ForkedProcesses
from trainer.processes.result import RankOutcome, TrainingResult
from trainer.processes.runtime import join_process_group, process_began
from trainer.processes.supervisor import Processes, Supervisor, make_store
from trainer.run.parts import LaunchContext
from trainer.run.train import train

FINAL_ERRORS: Final = {
    error.__name__: error
    for error in (
        RecipeError,
        CheckpointError,
        DiskFullError,
        FencedOutError,
        StoreError,
        TrainingStoppedError,
    )
}
"""Errors that a new start would meet again, by the name under which a process tells them."""
STARTS_WITHOUT_PROGRESS: Final = 4
"""So many starts in a row without a new checkpoint end the run."""

NO_GPUS: Final = (
    'train.recovery.mode = "in_place": expected "restart" on GPUs: how NCCL\'s groups are given up and made'
    " again is not built; it is for processes without a GPU (train.resources.gpus = 0 on Ray, or"
    " CUDA_VISIBLE_DEVICES= here)"
)

Begin = Callable[[ParticipantJob, int], Processes]
"""Gives the processes of a start, which find its store at a port of this machine."""


def train_on_this_machine(
    recipe: TrainRecipe, stop_requested: Callable[[], bool], *, shows_progress: bool = True
) -> TrainingResult:
    """Train in this process; where the run recovers in place, with processes that this one starts.
    `shows_progress` as of `LaunchContext`. Errors as of `trainer.run.train.train`; TrainingStoppedError also where
    several starts in a row got nowhere."""
    if recipe.train.recovery.mode != "in_place":
        return _train_alone(recipe, stop_requested, shows_progress=shows_progress)
    if "WORLD_SIZE" in os.environ:
        raise RecipeError(
            'train.recovery.mode = "in_place": torchrun ends every process when one dies; call `python -m'
            " trainer RECIPE` without it, which starts the processes itself, or `sluice train RECIPE`, on Ray",
            "train.recovery.mode",
        )

    if torch.cuda.is_available():
        raise RecipeError(NO_GPUS, "train.recovery.mode")

    def begin(job: ParticipantJob, port: int) -> Processes:
        return ForkedProcesses(partial(participate, job), port, recipe.train.num_workers)

    return train_supervised(
        recipe, begin, stop_requested, began_at=process_began(), shows_progress=shows_progress
    )


def _train_alone(
    recipe: TrainRecipe, stop_requested: Callable[[], bool], *, shows_progress: bool
) -> TrainingResult:
    process = join_process_group(recipe.train.num_workers, recipe.train.faults.watchdog_seconds)
    try:
        launch = LaunchContext(
            process=process,
            stop_requested=stop_requested,
            began_at=process_began(),
            shows_progress=shows_progress,
        )
        return train(recipe, launch)
    finally:
        dist.destroy_process_group()


def train_supervised(
    recipe: TrainRecipe,
    begin: Begin,
    stop_requested: Callable[[], bool],
    began_at: float | None = None,
    *,
    shows_progress: bool = True,
) -> TrainingResult:
    """Start the processes, and start them again where a loss could not be met in place, as long as that gets
    on. `began_at`: when the first start began, seconds since the epoch; None: now; `shows_progress` as of
    `LaunchContext`."""
    output = Folder(recipe.train.output)
    steps: list[int] = []
    while True:
        steps.append(newest_step(recipe))
        if steps[-STARTS_WITHOUT_PROGRESS - 1 :] == [steps[-1]] * (STARTS_WITHOUT_PROGRESS + 1):
            errors = "; ".join([*failures(output).values()][-3:]) or "none recorded: processes were killed"
            raise TrainingStoppedError(
                f"{STARTS_WITHOUT_PROGRESS} starts in a row got from step {steps[-1]} to no new checkpoint."
                f" Last errors: {errors}"
            )
        store = make_store()
        job = ParticipantJob(
            recipe=recipe,
            launch=uuid.uuid4().hex,
            began_at=time.time() if began_at is None else began_at,
            shows_progress=shows_progress,
        )
        began_at = None
        ended = Supervisor(
            begin(job, store.port),
            store,
            output,
            num_ranks=recipe.train.num_workers,
            num_spares=recipe.train.recovery.spares,
            say=_say,
            hung_seconds=recipe.train.faults.watchdog_seconds,
            stop_requested=stop_requested,
        ).run()
        if ended.outcome is not None:
            return result_of(ended.outcome)
        if stop_requested():
            raise TrainingStoppedError(f"{ended.why}, while the run was to stop; the same call goes on")
        _say(
            f"this cannot be met in place: {ended.why}; all processes start again from the newest checkpoint"
        )


def result_of(outcome: RankOutcome) -> TrainingResult:
    """The result of a rank; one of FINAL_ERRORS where it ended with that."""
    if outcome.result is None:
        raise FINAL_ERRORS[outcome.error](outcome.message)
    return outcome.result


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
