"""The profile of a training run: its traces, beside the plan of its recipe on the traced device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import attempts
from trainer.evidence.profiles.expected import Expected, ExpectedTraffic, Peaks
from trainer.evidence.profiles.profile import Profile, profile_of
from trainer.evidence.profiles.reading import TORCH, read_traces
from trainer.options import TrainRecipe
from trainer.planning.gpus import GPUS, Gpu, machine_of
from trainer.planning.plan import plan_training
from trainer.provenance.setup import read_recipe

_DTYPES: Final = ("float64", "float32", "bfloat16", "float16", "float8")


def read_profile(output: Folder, attempt: int | None = None, nsight: Sequence[str] = ()) -> Profile:
    """The profile of an attempt, of the newest with a trace, or of exports of Nsight Systems. TraceError where
    there is no trace, or one cannot be read; RecipeError where the recipe's plan.measured cannot."""
    read = read_traces(output, attempt, nsight)
    device = read.traces[0].device
    recipe, gpu = _planned_on(_recipe(output, read.attempt), device)
    expected = "the output holds no recipe of this attempt" if recipe is None else _expected(recipe)
    notes = []
    if isinstance(expected, str):
        notes.append(f"Expected: not known, {expected}")
    elif gpu is None:
        notes.append(
            f"The plan is for {expected.device} (plan.gpu) and the traces are of a {device}: compare bytes and"
            " not seconds. sluice plan --measure and plan.measured give the figures of this device"
        )
    if gpu is None:
        notes.append(f"Roofline: the peaks of this {device} are not known (plan.measured gives them)")
    if read.tool != TORCH:
        notes.append("Nsight Systems records no shapes: the roofline of its kernels is not known")
    return profile_of(
        read.traces,
        None if gpu is None else _peaks(gpu),
        expected if isinstance(expected, Expected) else None,
        output=output.url,
        attempt=read.attempt,
        tool=read.tool,
        notes=notes,
    )


def _recipe(output: Folder, attempt: int | None) -> TrainRecipe | None:
    begun = attempts(output)
    number = attempt if attempt is not None else begun[-1].number if begun else None
    return None if number is None else read_recipe(output, number)


def _planned_on(recipe: TrainRecipe | None, device: str) -> tuple[TrainRecipe | None, Gpu | None]:
    """The recipe with the traced device as that of its plan, and the device; None: its figures are not known. A
    file of `sluice plan --measure` (plan.measured) comes first."""
    if recipe is not None and recipe.plan.measured is not None:
        return recipe, machine_of(recipe.plan).gpu
    name = next((known for known in sorted(GPUS, key=len, reverse=True) if known in device), None)
    if name is None:
        return recipe, None
    if recipe is not None:
        recipe = dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, gpu=name))
    return recipe, GPUS[name]


def _peaks(gpu: Gpu) -> Peaks:
    """Data sheets have the peaks of 16 and of 8 bits; what was measured is taken for every dtype."""
    if gpu.source.startswith("measured"):
        return Peaks(gpu.name, dict.fromkeys(_DTYPES, gpu.peak_flops), gpu.memory_bandwidth)
    flops = dict.fromkeys(("bfloat16", "float16"), gpu.peak_flops)
    if gpu.peak_float8 is not None:
        flops["float8"] = gpu.peak_float8
    return Peaks(gpu.name, flops, gpu.memory_bandwidth)


def _expected(recipe: TrainRecipe) -> Expected | str:
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
