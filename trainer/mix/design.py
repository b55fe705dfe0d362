"""Which mixtures an ablation runs: corners, uniform, natural, drawn ones, replicates, and some that are held
out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from lineage.recipe import RecipeError
from trainer.mix.space import Space, draw
from trainer.mix.swarm import Floats
from trainer.ordering.mixture import quantise
from trainer.recipe_tables.mixing import MixTable

Role = Literal["natural", "uniform", "corner", "drawn", "replicate", "held_out"]

_NEAR: Final = 0.02
"""Two mixtures nearer than this (total variation) teach the same."""
_TRIES: Final = 2000
_ROUNDING: Final = 1e-6
"""Of a sequence: what a bound times the block may be off by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One proxy run: its mixture as it is trained on (shares of the mixture block) and its seed."""

    name: str
    role: Role
    weights: dict[str, float]
    seed: int


def make_design(space: Space, table: MixTable, seed: int, mixture_block: int) -> tuple[Point, ...]:
    """Every run of the ablation, a function of its arguments. RecipeError where there are too few runs for
    any law, or too few mixtures that differ."""
    least = int((space.upper > 0).sum()) + 2
    if table.runs < least:
        raise RecipeError(
            f"mix.runs = {table.runs}: expected at least {least} for {least - 2} sources, "
            f"best {3 * (least - 1)} (three for each parameter of the mixing law)"
        )
    chosen: list[tuple[Role, Floats]] = []
    for role, mixture in _candidates(space, table, seed):
        shares = snap(mixture, space, mixture_block)
        if all(np.abs(shares - other).sum() / 2 >= _NEAR for _, other in chosen):
            chosen.append((role, shares))
        if len(chosen) == table.runs + table.held_out:
            break
    else:
        raise RecipeError(
            f"mix.runs = {table.runs} and mix.held_out = {table.held_out}: only {len(chosen)} mixtures within"
            f" mix.caps and mix.floors differ by {_NEAR}; ask for fewer or widen the bounds"
        )
    roles: list[Role] = [role for role, _ in chosen[: table.runs]] + ["held_out"] * table.held_out
    natural = snap(space.project(space.prior[None])[0], space, mixture_block)
    rows: list[tuple[Role, Floats, int]] = [
        (role, shares, seed) for role, (_, shares) in zip(roles, chosen, strict=True)
    ]
    rows += [("replicate", natural, seed + number) for number in range(1, table.replicates + 1)]
    return tuple(
        Point(name=f"{number:04d}-{role}", role=role, weights=space.named(shares), seed=own_seed)
        for number, (role, shares, own_seed) in enumerate(rows)
    )


def _candidates(space: Space, table: MixTable, seed: int) -> Iterator[tuple[Role, Floats]]:
    open_sources = (space.upper > 0).astype(np.float64)
    yield "natural", space.project(space.prior[None])[0]
    yield "uniform", space.project(open_sources[None] / open_sources.sum())[0]
    for corner in np.eye(len(space.sources))[open_sources > 0]:
        yield "corner", space.project(corner[None])[0]
    drawn = draw(space, _TRIES, np.random.default_rng(seed), round_prior=table.design == "dirichlet")
    for mixture in drawn:
        yield "drawn", mixture


def snap(mixture: Floats, space: Space, mixture_block: int) -> Floats:
    """The mixture in whole sequences of the block, within the bounds where any are; shares below one sequence
    become 0, or one where they have a floor. RecipeError where the block is shorter than the sources need."""
    small = mixture * mixture_block < 1.0
    ones = (small & (space.lower > 0)).astype(np.float64)
    kept, left = np.where(small, 0.0, mixture), mixture_block - int(ones.sum())
    try:
        # Where floors alone take more than the block, no sequence is left, and every kept share rounds to 0.
        quantised = quantise(dict(zip(space.sources, kept.tolist(), strict=True)), max(left, 0))
    except ValueError as error:
        sequences = "1 sequence" if mixture_block == 1 else f"{mixture_block} sequences"
        raise RecipeError(
            f"a mixture block of {sequences} is too short for {int((space.upper > 0).sum())} sources: raise "
            "train.order.mixture_block and, since the block of a proxy is no longer than its run,"
            " mix.proxy.tokens"
        ) from error
    counts = ones + np.array([count for _, count in quantised], dtype=np.float64)
    return _within(counts, ones + kept / kept.sum() * left, space, mixture_block) / mixture_block


def _within(counts: Floats, quotas: Floats, space: Space, mixture_block: int) -> Floats:
    """Whole numbers (sources,) of the block that rounding put past floors and caps, moved between them: what
    that takes or leaves goes one by one to where it is nearest to the quotas. As they are where no whole
    numbers lie between."""
    least = (
        np.maximum(np.ceil(space.lower * mixture_block - _ROUNDING), 0.0) + 0.0
    )  # no -0.0, which a recipe shows
    most = np.floor(space.upper * mixture_block + _ROUNDING)
    if (least > most).any() or least.sum() > mixture_block or most.sum() < mixture_block:
        return counts
    moved: Floats = np.clip(counts, least, most)
    while missing := mixture_block - moved.sum():
        step = np.sign(missing)
        gains = np.where(moved != (most if step > 0 else least), (quotas - moved) * step, -np.inf)
        moved[int(np.argmax(gains))] += step
    return moved
