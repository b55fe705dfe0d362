"""The job of DoReMi's second run, and its answer. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lineage.recipe import as_toml
from lineage.storage.folder import Folder
from trainer.attempts import attempts
from trainer.checkpoint.store import complete_checkpoints
from trainer.mix.design import Point, snap
from trainer.mix.proxies import Ablation, mixture_block
from trainer.mix.space import Space

ANSWER: Final = "doremi.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoremiJob:
    """`recipe`: TOML of a training run of one process whose mixture is even over the sources to weigh;
    `reference`: URL of a checkpoint of the same model; `sources`: those to weigh, by name."""

    recipe: str
    reference: str
    sources: tuple[str, ...]
    step_size: float
    smoothing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`weights`: averaged over the steps; `last`: after the last one; `excess`: of its batch, nats a token;
    `history`: the weights after some steps, evenly spaced, sources in the order of `weights`."""

    weights: dict[str, float]
    last: dict[str, float]
    excess: dict[str, float]
    steps: int
    history: tuple[tuple[float, ...], ...]


def doremi_job(ablation: Ablation, reference: Point) -> tuple[DoremiJob, Folder]:
    """The job, and the output that its answer will be in; `reference` is a finished run. Another step size or
    smoothing is another run; everything else is fixed by the design."""
    table, space = ablation.table.doremi, ablation.space
    is_open = space.upper > 0
    even = snap(
        is_open / is_open.sum(), _without_bounds(space), mixture_block(ablation.recipe, ablation.table)
    )
    point = Point(
        name=f"doremi-{table.step_size:g}-{table.smoothing:g}",
        role="uniform",
        weights=space.named(even),
        seed=ablation.recipe.seed,
    )
    output = ablation.output(reference)
    checkpoints = output.folder("checkpoints")
    newest = complete_checkpoints(checkpoints, attempts(output))[-1]
    job = DoremiJob(
        recipe=as_toml(ablation.proxy(point)),
        reference=checkpoints.at(newest.name),
        sources=tuple(np.array(space.sources)[is_open].tolist()),
        step_size=table.step_size,
        smoothing=table.smoothing,
    )
    return job, ablation.output(point)


def read_answer(output: Folder) -> Answer | None:
    """The answer of a run that is finished."""
    if not output.exists(ANSWER):
        return None
    payload = json.loads(output.read(ANSWER))
    return Answer(**payload | {"history": tuple(map(tuple, payload["history"]))})


def trainable(ablation: Ablation, answer: Answer) -> dict[str, float]:
    """The averaged weights as a mixture that `[[train.mixture]]` takes: whole sequences of the block, 0 for a
    source that is only evaluated."""
    space = ablation.space
    weights = np.array([answer.weights.get(source, 0.0) for source in space.sources])
    return space.named(snap(weights, _without_bounds(space), ablation.goal().mixture_block))


def _without_bounds(space: Space) -> Space:
    return replace(space, lower=np.zeros(len(space.sources)), upper=np.where(space.upper > 0, 1.0, 0.0))
