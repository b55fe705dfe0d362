"""What `sluice plan` expects of the recipe that was traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lineage.recipe import RecipeError
from trainer.options import TrainRecipe
from trainer.planning.gpus import GPUS, Gpu, machine_of
from trainer.planning.plan import plan_training


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraffic:
    """Communication of one kind of a GPU in a step: bytes sent, collectives, seconds on the wire."""

    axis: str
    what: str
    num: float
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Seconds of a step on `device`, as the plan has them. `hidden_share`: of communication, None without any."""

    device: str
    step_seconds: float
    computing: float
    communication: float
    exposed: float
    idle: float
    hidden_share: float | None
    traffic: Sequence[ExpectedTraffic]


def device_of(recipe: TrainRecipe | None, device: str) -> tuple[TrainRecipe | None, Gpu | None]:
    """The recipe with the traced device as that of its plan, and the device's peaks; None: they are not known.
    A file of `sluice plan --measure` (plan.measured) is taken first. RecipeError where it cannot be read."""
    if recipe is not None and recipe.plan.measured is not None:
        return recipe, machine_of(recipe.plan).gpu
    names = sorted(GPUS, key=len, reverse=True)
    name = next((known for known in names if known in device), None)
    if name is None:
        return recipe, None
    if recipe is not None:
        recipe = dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, gpu=name))
    return recipe, GPUS[name]


def expected_of(recipe: TrainRecipe) -> Expected | str:
    """What the plan of a recipe says; why there is none, in words."""
    try:
        plan = plan_training(recipe)
    except (RecipeError, OSError) as error:
        return f"no plan of this recipe can be made: {error}"
    speed = plan.throughput
    whole = speed.communication_seconds
    return Expected(
        device=plan.machine.gpu.name,
        step_seconds=speed.step_seconds,
        computing=speed.compute_seconds + speed.update_seconds,
        communication=whole,
        exposed=speed.exposed_seconds,
        idle=speed.bubble_seconds,
        hidden_share=max(0.0, 1 - speed.exposed_seconds / whole) if whole else None,
        traffic=[
            ExpectedTraffic(
                axis=kind.axis,
                what=kind.what,
                num=kind.num_collectives,
                num_bytes=kind.num_bytes,
                seconds=kind.seconds,
            )
            for kind in plan.traffic
        ],
    )
