"""Replays of a step in forked processes, and faults that are put into a run's weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.support.processes.forked import run_forked
from trainer.evidence.observed import ReplayResult
from trainer.evidence.replayed_step import ReplayedStep
from trainer.evidence.why import Replay
from trainer.model.peers import local_part
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.provenance.setup import Hardware
from trainer.run import observe, steps
from trainer.run.hardware import hardware_of
from trainer.run.parts import LaunchContext
from trainer.run.step import StepContext
from trainer.run.train import train


class Flip(NamedTuple):
    """Before `step` bit `bit` of an element of a weight of `rank` becomes another."""

    rank: int
    step: int
    bit: int
    weight: str = "model.layers.1.mlp.up_proj.weight"


def replays(scratch: Path, *, flips: bool = False) -> Replay:
    """A replay in forked processes; with `flips` a bit of rank 0's weights is another in each."""

    def replay(asked: ReplayedStep) -> tuple[ReplayResult, Hardware]:
        replay.num += 1  # type: ignore[attr-defined]
        work = partial(_observed, asked, 20 + replay.num if flips else 0)  # type: ignore[attr-defined]
        seen: tuple[ReplayResult, Hardware] = run_forked(scratch, asked.recipe.train.num_workers, work)[0]
        return seen

    replay.num = 0  # type: ignore[attr-defined]
    return replay


def _observed(asked: ReplayedStep, bit: int, process: Process) -> tuple[ReplayResult, Hardware]:
    if bit and process.rank == 0:
        observe.train_step = partial(_flipped, Flip(0, asked.step, bit), observe.train_step)
    return observe.observe(asked.recipe, process, asked.request), hardware_of(process.device)


def train_with_a_flipped_bit(recipe: TrainRecipe, flip: Flip, process: Process) -> TrainingResult:
    """Train, and let that happen."""
    if process.rank == flip.rank:
        steps.train_step = partial(_flipped, flip, steps.train_step)
    return train(recipe, LaunchContext(process=process))


def _flipped(flip: Flip, honest: Any, context: StepContext, *rest: Any) -> Any:
    if rest[0] == flip.step:
        weight = local_part(context.model.parameters()[flip.weight].detach())
        bits = weight.view(-1)[7:8].view(torch.int32)
        bits ^= 1 << flip.bit
    return honest(context, *rest)
