"""The mixtures that are allowed: shares between floors and caps that sum to one, round the token prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage.recipe import RecipeError
from trainer.mix.swarm import Floats
from trainer.recipe_tables.mixing import MixTable

LARGEST_OVER_PRIOR: Final = 15.0
"""No share drawn round the prior is above this many times its prior (RegMix, 2407.01492, section 3.1), where
floors and caps leave such mixtures."""
R_STAR: Final = 15.39
"""2305.16264, section 5: after so many repetitions a token is worth 1/e of a new one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """Equal to itself alone: two arrays have no one answer. All have one entry a source, (sources,).

    `prior`: share of the tokens there are, 0 for a source that is only evaluated; `tokens`: how many there
    are; `epoch_tokens`: how many an epoch feeds, as the run counts them: whole sequences, without those held
    out."""

    sources: tuple[str, ...]
    tokens: Floats
    epoch_tokens: Floats
    prior: Floats
    lower: Floats
    upper: Floats

    def project(self, weights: Floats) -> Floats:
        """The nearest allowed mixtures to `weights`, (n, sources)."""
        return project(weights, self.lower, self.upper)

    def named(self, weights: Floats) -> dict[str, float]:
        """One mixture by source."""
        return {source: float(share) for source, share in zip(self.sources, weights, strict=True)}


def make_space(
    tokens: Mapping[str, int], table: MixTable, epoch_tokens: Mapping[str, int] | None = None
) -> Space:
    """The space that `[mix]` leaves over sources with these numbers of tokens; an epoch feeds `epoch_tokens`
    of them (None: all). RecipeError for an unknown source, or caps and floors that no mixture meets."""
    sources = tuple(sorted(tokens))
    for where, names in (("caps", table.caps), ("floors", table.floors), ("targets", table.targets)):
        for name in names:
            if name not in tokens:
                raise RecipeError(
                    f"mix.{where}.{name}: train.data has no such source, only {', '.join(sources)}"
                )
    counts = np.array([tokens[source] for source in sources], dtype=np.float64)
    fed = np.array([(epoch_tokens or tokens)[source] for source in sources], dtype=np.float64)
    upper = np.array([table.caps.get(source, 1.0) for source in sources]) * (fed > 0)
    lower = np.array([table.floors.get(source, 0.0) for source in sources])
    if (upper > 0).sum() < 2:
        raise RecipeError("mix.caps leaves fewer than two sources to train on: there is nothing to decide")
    check_bounds(sources, lower, upper, "mix.caps and mix.floors")
    prior = counts * (upper > 0)
    return Space(
        sources=sources, tokens=counts, epoch_tokens=fed, prior=prior / prior.sum(), lower=lower, upper=upper
    )


def check_bounds(sources: tuple[str, ...], lower: Floats, upper: Floats, what: str) -> None:
    """RecipeError where no mixture lies between the bounds."""
    for source, least, most in zip(sources, lower, upper, strict=True):
        if least > most:
            raise RecipeError(f"{what}: source {source!r} must have at least {least:g} and at most {most:g}")
    if lower.sum() > 1.0 or upper.sum() < 1.0:
        raise RecipeError(
            f"{what}: the least shares sum to {lower.sum():g} and the largest to {upper.sum():g}, "
            "so that no shares sum to 1; lower the floors or raise the caps (or mix.max_epochs)"
        )


def project(weights: Floats, lower: Floats, upper: Floats) -> Floats:
    """Euclidean projection of rows onto {lower <= w <= upper, Σ w = 1}: clip(w + shift) with the shift by
    bisection."""
    low = (lower - weights).min(axis=1)
    high = (upper - weights).max(axis=1)
    for _ in range(60):
        middle = (low + high) / 2
        above = np.clip(weights + middle[:, None], lower, upper).sum(axis=1) > 1.0
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    projected: Floats = np.clip(weights + ((low + high) / 2)[:, None], lower, upper)
    return projected


def draw(space: Space, num: int, rng: np.random.Generator, *, round_prior: bool) -> Floats:
    """Mixtures (num, sources): each from a Dirichlet round the prior whose strength is log-uniform in [0.1,
    5] a source (RegMix), cut at LARGEST_OVER_PRIOR; or evenly over the simplex. Both are then moved into the
    bounds."""
    open_sources = space.upper > 0
    alpha = np.where(open_sources, 1.0, 0.0)
    drawn = np.zeros((num, len(alpha)))
    strengths = np.exp(rng.uniform(np.log(0.1), np.log(5.0), num))
    for row, strength in enumerate(strengths):
        spread = space.prior * open_sources.sum() * strength if round_prior else alpha
        drawn[row, open_sources] = rng.dirichlet(np.maximum(spread[open_sources], 1e-3))
    if not round_prior:
        return space.project(drawn)
    most = LARGEST_OVER_PRIOR * space.prior
    drawn = np.minimum(drawn, most)
    drawn /= drawn.sum(axis=1, keepdims=True)
    # Dividing lifts what was cut above its bound again, so that it is one more of the bounds to move into.
    upper = np.clip(most, space.lower, space.upper)
    return project(drawn, space.lower, upper if upper.sum() >= 1.0 else space.upper)


def token_value(epochs: Floats) -> Floats:
    """What a token seen so often is worth on average, new ones being worth 1 (2305.16264, equation 5 with R*
    = 15.39): (1 + R*(1 − e^{−(epochs − 1)/R*})) / epochs, and 1 up to one epoch."""
    repeats = np.maximum(epochs - 1.0, 0.0)
    value: Floats = (1.0 + R_STAR * (1.0 - np.exp(-repeats / R_STAR))) / (1.0 + repeats)
    return value
