"""The mixture that fitted models like best within the bounds, and the regret that their uncertainty
allows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import tomli_w
from scipy.optimize import minimize

from trainer.mix.design import snap
from trainer.mix.models import Fitter, Model, TrustingFitter, fit_log_linear
from trainer.mix.space import Space, check_bounds, draw, token_value
from trainer.mix.swarm import Floats, Swarm

_CANDIDATES: Final = 2048
_TOP: Final = 64
_RESAMPLES: Final = 20
_STEP: Final = 1e-5
_RUNS_A_PARAMETER: Final = 10
"""The fewest runs for each parameter of the law that a fit on a part of the runs may have."""
_REACH: Final = 0.7
"""Runs count by exp(-(distance / reach)²/2): the reach, in medians of the distances."""

Objective = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What to minimise: Σ target_weights · predicted losses + kl · KL(w ‖ prior), in nats.

    `target_weights`: (targets,), summing to one; `budget_tokens`: 0 for no count of epochs; `smooth`: whether
    the model has slopes (trees have none: the mean of the best candidates is taken, as RegMix does); `near`:
    fits the model again, each run counting by how near it is to the choice."""

    target_weights: Floats
    kl: float = 0.0
    budget_tokens: int = 0
    max_epochs: float = 4.0
    smooth: bool = True
    near: TrustingFitter | None = None
    mixture_block: int = 1000
    seed: int = 0

    def for_model(self, model: str) -> Goal:
        """This goal for a model of that name. The mixing law is fitted twice: it is not quite true, but more
        nearly so in a part of the mixtures. The others bend as they must, and hold only within the mixtures
        that they were fitted to."""
        return replace(
            self, smooth=model != "lightgbm", near=fit_log_linear if model == "log_linear" else None
        )


Verdict = Literal["better", "within_noise", "unknown"]
"""Of a recommended mixture beside the natural and the uniform one."""


def verdict_sentence(verdict: Verdict, noise_floor: float | None) -> str:
    """What the verdict means to who has to choose a mixture."""
    if noise_floor is None:
        return (
            "No replicates were run, so the noise of a run is unknown: set mix.replicates to judge the gain."
        )
    floor = f"the noise floor, {noise_floor:.4f} nats (standard deviation of replicates)"
    if verdict == "better":
        return f"The gain over the natural and the uniform mixture is above {floor}."
    return f"The gain over the natural or the uniform mixture is not above {floor}: no reason to change."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A recommended mixture. Losses in nats: `predicted` by the models that chose it, `natural` and `uniform`
    by models fitted near each in the same way (or by the same models, where the goal knows no such way).
    `regret`: predicted loss above that of the mixture that models of resampled runs choose for the same goal,
    mean and 95th percentile; `epochs` and `token_value` (new tokens are worth 1) by source under the
    budget."""

    weights: dict[str, float]
    predicted: float
    interval: tuple[float, float]
    regret: tuple[float, float]
    natural: float
    uniform: float
    kl: float
    epochs: dict[str, float]
    token_value: dict[str, float]

    def as_toml(self) -> str:
        """The `[[train.mixture]]` block to paste into the training recipe."""
        return mixture_toml(self.weights)

    def verdict(self, noise_floor: float | None) -> Verdict:
        """Whether the predicted gain over the natural and the uniform mixture exceeds the noise of a run (the
        standard deviation of replicates in nats, None without replicates)."""
        if noise_floor is None:
            return "unknown"
        gain = min(self.natural, self.uniform) - self.predicted
        return "better" if gain > noise_floor else "within_noise"


def mixture_toml(weights: dict[str, float]) -> str:
    """A mixture as a `[[train.mixture]]` block."""
    return f"[[train.mixture]]\nfirst_step = 0\n\n[train.mixture.weights]\n{tomli_w.dumps(weights)}"


def recommend(space: Space, swarm: Swarm, fit: Fitter, goal: Goal) -> Choice:
    """Fit one model a target on all runs, choose, then fit on resampled runs for interval and regret.
    RecipeError where the budget leaves no mixture."""
    space = bounded(space, goal)
    models, found = settle(space, swarm, fit, goal)
    shares = snap(found, space, goal.mixture_block)
    predicted, regrets = _resampled(space, swarm, fit, goal, shares)
    both = space.project(np.stack((space.prior, np.where(space.upper > 0, 1.0, 0.0))))
    # Each by models as near to it as those of the choice are to the choice: the law fitted to all runs alike
    # is off by more than most gains, in another way at each mixture.
    natural, uniform = (
        _loss_at(mixture, models if goal.near is None else _fit_near(swarm, goal.near, mixture), space, goal)
        for mixture in both
    )
    epochs = _epochs(shares, space, goal)
    return Choice(
        weights=space.named(shares),
        predicted=_loss_at(shares, models, space, goal),
        interval=_quantiles(predicted, 0.025, 0.975),
        regret=(float(np.mean(regrets)), float(np.quantile(regrets, 0.95))),
        natural=natural,
        uniform=uniform,
        kl=float(divergence(shares[None], space.prior)[0]),
        epochs=space.named(epochs),
        token_value=space.named(token_value(epochs)),
    )


def bounded(space: Space, goal: Goal) -> Space:
    """The space with each share at most what `max_epochs` of its source give under the budget."""
    if not goal.budget_tokens:
        return space
    upper = np.minimum(space.upper, goal.max_epochs * space.epoch_tokens / goal.budget_tokens)
    check_bounds(
        space.sources, space.lower, upper, f"{goal.max_epochs:g} epochs under {goal.budget_tokens:,} tokens"
    )
    return replace(space, upper=upper)


def settle(
    space: Space, swarm: Swarm, fit: Fitter, goal: Goal, starts: Sequence[Floats] = ()
) -> tuple[list[Model], Floats]:
    """Fit, choose, and the models that chose. Where the goal says how to fit `near` a choice, that is done,
    and chosen once more by those models."""
    models = fit_all(fit, swarm)
    found = choose(space, objective_of(models, space, goal), goal, starts)
    if goal.near is None:
        return models, found
    models = _fit_near(swarm, goal.near, found)
    return models, choose(space, objective_of(models, space, goal), goal, starts)


def _fit_near(swarm: Swarm, near: TrustingFitter, mixture: Floats) -> list[Model]:
    """A model for each target, each run counting by how near it is to the mixture."""
    trust = _nearness(swarm.weights, mixture)
    return [near(swarm.weights, losses, trust) for losses in swarm.losses.T]


def _nearness(weights: Floats, mixture: Floats) -> Floats:
    """How much each run (runs, sources) says about what is near a mixture: a Gaussian of its total variation
    distance, and nothing of the farther half where the nearer one has runs enough for a fit by itself."""
    distances = np.abs(weights - mixture).sum(axis=1) / 2
    median = float(np.median(distances))
    trust: Floats = np.exp(-((distances / max(_REACH * median, 1e-9)) ** 2) / 2)
    num_parameters = int(weights.any(axis=0).sum()) + 1
    if len(weights) // 2 >= _RUNS_A_PARAMETER * num_parameters:
        trust[distances > median] = 0.0
    return trust


def choose(space: Space, objective: Objective, goal: Goal, starts: Sequence[Floats] = ()) -> Floats:
    """The allowed mixture with the least objective: of candidates drawn over the whole space, the mean of the
    best where the model has no slopes, else the end of a constrained descent (SLSQP) from the best few and
    `starts`."""
    candidates = _candidates(space, goal.seed)
    order = np.argsort(objective(candidates), kind="stable")
    if not goal.smooth:
        mean: Floats = candidates[order[:_TOP]].mean(axis=0)
        return mean
    begin = [*starts, *candidates[order[: 1 if starts else 3]]]
    ends = np.stack([*begin, *(_descend(space, objective, start) for start in begin)])
    least: Floats = ends[int(np.argmin(objective(ends)))]
    return least


@functools.lru_cache(maxsize=1)
def _candidates(space: Space, seed: int) -> Floats:
    """Mixtures (_CANDIDATES, sources) over the whole space. Kept, since a recommendation chooses among the
    same ones for each resampling, and drawing them takes longer than the choice."""
    rng = np.random.default_rng(seed)
    half = _CANDIDATES // 2
    drawn = np.vstack((draw(space, half, rng, round_prior=True), draw(space, half, rng, round_prior=False)))
    drawn.setflags(write=False)
    return drawn


def _descend(space: Space, objective: Objective, start: Floats) -> Floats:
    steps = np.eye(len(start)) * _STEP

    def slope(weights: Floats) -> Floats:
        slopes: Floats = (objective(weights + steps) - objective(weights - steps)) / (2 * _STEP)
        return slopes

    found = minimize(
        lambda weights: float(objective(weights[None])[0]),
        start,
        jac=slope,
        method="SLSQP",
        bounds=list(zip(space.lower, space.upper, strict=True)),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0, "jac": np.ones_like},
        options={"maxiter": 200, "ftol": 1e-10},
    )
    end: Floats = space.project(np.nan_to_num(found.x)[None])[0]
    return end


def divergence(weights: Floats, prior: Floats) -> Floats:
    """KL(w ‖ prior) in nats of each row; sources without a prior are never trained on and do not count."""
    held = prior > 0
    shares = np.maximum(weights[:, held], 1e-12)
    total: Floats = (shares * np.log(shares / prior[held])).sum(axis=1)
    return total


def _epochs(weights: Floats, space: Space, goal: Goal) -> Floats:
    epochs: Floats = weights * goal.budget_tokens / np.maximum(space.epoch_tokens, 1.0)
    return epochs


def expected(models: Sequence[Model], space: Space, goal: Goal) -> Objective:
    """Predicted loss of mixtures (n, sources), a repeated token counting for what it is worth."""

    def loss(weights: Floats) -> Floats:
        worth = weights * token_value(_epochs(weights, space, goal))
        worth = worth / worth.sum(axis=1, keepdims=True)
        total: Floats = np.stack([model.predict(worth) for model in models], axis=1) @ goal.target_weights
        return total

    return loss


def _loss_at(mixture: Floats, models: Sequence[Model], space: Space, goal: Goal) -> float:
    return float(expected(models, space, goal)(mixture[None])[0])


def objective_of(models: Sequence[Model], space: Space, goal: Goal) -> Objective:
    """What `choose` minimises: the expected loss and the pull to the prior."""
    loss = expected(models, space, goal)
    if not goal.kl:
        return loss
    return lambda weights: loss(weights) + goal.kl * divergence(weights, space.prior)


def fit_all(fit: Fitter, swarm: Swarm) -> list[Model]:
    """A model for each target."""
    return [fit(swarm.weights, losses) for losses in swarm.losses.T]


def resampled(swarm: Swarm, goal: Goal) -> Iterator[Swarm]:
    """Runs drawn with replacement, again and again."""
    rng = np.random.default_rng(goal.seed + 1)
    for _ in range(_RESAMPLES):
        rows = rng.integers(0, swarm.num_runs, swarm.num_runs)
        yield replace(swarm, weights=swarm.weights[rows], losses=swarm.losses[rows])


def _resampled(
    space: Space, swarm: Swarm, fit: Fitter, goal: Goal, shares: Floats
) -> tuple[list[float], list[float]]:
    """Predicted loss of `shares` and its regret, by models of resampled runs."""
    predicted, regrets = [], []
    for runs in resampled(swarm, goal):
        models, ideal = settle(space, runs, fit, goal, starts=(shares,))
        chosen, least = expected(models, space, goal)(np.stack((shares, ideal)))
        predicted.append(float(chosen))
        # Below 0 where these models would stay nearer to the prior at some loss.
        regrets.append(max(float(chosen - least), 0.0))
    return predicted, regrets


def _quantiles(values: Sequence[float], low: float, high: float) -> tuple[float, float]:
    ends = np.quantile(values, (low, high))
    return float(ends[0]), float(ends[1])
