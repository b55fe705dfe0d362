"""What an ablation found, as figures for one page: how far to trust the model, what it recommends, what it
cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lineage.recipe import RecipeError
from trainer.mix.design import snap
from trainer.mix.fit import PredictionScore, left_out, score
from trainer.mix.models import BASELINES, MODELS, SLOW_MODELS, Fitter, fitter, least_runs, mean
from trainer.mix.optimize import (
    Choice,
    Goal,
    bounded,
    expected,
    fit_all,
    objective_of,
    recommend,
    resampled,
    settle,
)
from trainer.mix.proxies import Ablation, ProxyResult, fitted, goal_losses, noise_floor, results, swarm_of
from trainer.mix.space import Space
from trainer.mix.swarm import Floats, Swarm

_GRID: Final = 41
_CHEAPER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: the goal's loss as measured, and as predicted by a model that has not seen the run; nats."""

    name: str
    role: str
    weights: dict[str, float]
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFit:
    """How well the model predicts one target: run by run, in the order of the rows; nats. `weight`: in the
    goal."""

    target: str
    weight: float
    score: PredictionScore
    measured: tuple[float, ...]
    predicted: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The goal's predicted loss as the share of one source changes and the others keep their proportions to
    each other in the recommended mixture; `low` to `high`: 90 % of models of resampled runs."""

    source: str
    natural: float
    chosen: float
    shares: tuple[float, ...]
    losses: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheaper:
    """What an ablation of fewer runs would have recommended (its design is the beginning of this one), the
    loss that its own models `claimed`, and by how much the models of all runs hold its mixture to be `worse`;
    nats."""

    num_runs: int
    weights: dict[str, float]
    claimed: float
    worse: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of all runs together; `seconds` of training steps, one process a run."""

    num_runs: int
    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixReport:
    """Everything that the page shows. `targets`: weights of the goal; `scores`: of each model on runs it has
    not seen, the goal's loss; `tokens`: that each source has."""

    name: str
    model: str
    targets: dict[str, float]
    budget_tokens: int
    tokens: dict[str, int]
    natural: dict[str, float]
    choice: Choice
    noise_floor: float | None
    rows: tuple[Row, ...]
    fits: tuple[TargetFit, ...]
    scores: dict[str, PredictionScore]
    responses: tuple[Response, ...]
    cheaper: tuple[Cheaper, ...]
    cost: Cost


def make_report(ablation: Ablation, model: str) -> MixReport:
    """The report of a finished ablation. AblationError while runs are pending; RecipeError for a model that
    is unknown, a baseline, or has too few runs."""
    found = results(ablation)
    swarm = swarm_of(fitted(found))
    goal = ablation.goal().for_model(model)
    fit = optimisable(model, swarm)
    space = bounded(ablation.space, goal)
    choice = recommend(ablation.space, swarm, fit, goal)
    rows, fits = _judged(found, goal, fit)
    return MixReport(
        name=ablation.recipe.run.name,
        model=model,
        targets={s: float(w) for s, w in zip(space.sources, goal.target_weights, strict=True) if w > 0},
        budget_tokens=goal.budget_tokens,
        tokens={source: int(tokens) for source, tokens in zip(space.sources, space.tokens, strict=True)},
        natural=space.named(space.prior),
        choice=choice,
        noise_floor=noise_floor(found, goal),
        rows=rows,
        fits=fits,
        scores=_scores(found, goal, model),
        responses=_responses(space, swarm, fit, goal, choice),
        cheaper=_cheaper(space, swarm, model, goal, choice),
        cost=Cost(
            num_runs=len(found),
            tokens=sum(result.tokens for result in found),
            flops=ablation.flops_per_token * sum(result.tokens for result in found),
            seconds=sum(result.seconds for result in found),
        ),
    )


def _unseen(fit: Fitter, train: Swarm, held: Swarm | None, target: int) -> Floats:
    """Predictions of one target: for the runs of `train` by models without them, for `held` by one of all
    `train`."""
    losses = train.losses[:, target]
    folds = left_out(fit, train.weights, losses)
    return (
        folds if held is None else np.concatenate((folds, fit(train.weights, losses).predict(held.weights)))
    )


def _split(found: Sequence[ProxyResult]) -> tuple[list[ProxyResult], Swarm, Swarm | None]:
    """The runs that predictions are made for, in order: those of a fit, then those held out."""
    trained, held = fitted(found), [result for result in found if result.role == "held_out"]
    return [*trained, *held], swarm_of(trained), swarm_of(held) if held else None


def _judged(
    found: Sequence[ProxyResult], goal: Goal, fit: Fitter
) -> tuple[tuple[Row, ...], tuple[TargetFit, ...]]:
    runs, train, held = _split(found)
    measured = swarm_of(runs).losses
    fits, total = [], np.zeros(len(runs))
    for target in np.flatnonzero(goal.target_weights):
        predicted, weight = _unseen(fit, train, held, int(target)), float(goal.target_weights[target])
        total += weight * predicted
        fits.append(
            TargetFit(
                target=train.targets[target],
                weight=weight,
                score=score(predicted, measured[:, target]),
                measured=tuple(measured[:, target].tolist()),
                predicted=tuple(predicted.tolist()),
            )
        )
    rows = [
        Row(name=run.name, role=run.role, weights=run.weights, measured=float(loss), predicted=float(guess))
        for run, loss, guess in zip(runs, goal_losses(runs, goal), total, strict=True)
    ]
    again = [
        replace(rows[0], name=result.name, role=result.role, measured=float(loss))
        for result, loss in zip(found, goal_losses(found, goal), strict=True)
        if result.role == "replicate"
    ]
    return (*rows, *again), tuple(fits)


def _scores(found: Sequence[ProxyResult], goal: Goal, model: str) -> dict[str, PredictionScore]:
    """Of the goal's loss, on runs that the model has not seen; baselines see the goal's loss and no single
    target."""
    runs, train, held = _split(found)
    measured = goal_losses(runs, goal)
    as_one = replace(train, targets=("goal",), losses=(train.losses @ goal.target_weights)[:, None])
    scores = {}
    for name, fit in ({"mean": mean} | MODELS).items():
        if train.num_runs < least_runs(name, len(train.sources)) or (name in SLOW_MODELS and name != model):
            continue
        if name in BASELINES:
            predicted = _unseen(fit, as_one, held, 0)
        else:
            wanted = np.flatnonzero(goal.target_weights)
            columns = [goal.target_weights[t] * _unseen(fit, train, held, int(t)) for t in wanted]
            predicted = np.sum(columns, axis=0)
        scores[name] = score(predicted, measured)
    # Fold by fold a mean moves against what was left out: that is no ranking.
    scores["mean"] = replace(scores["mean"], spearman=None, interval=None)
    return scores


def _responses(space: Space, swarm: Swarm, fit: Fitter, goal: Goal, choice: Choice) -> tuple[Response, ...]:
    chosen = np.array([choice.weights[source] for source in space.sources])
    loss = expected(fit_all(fit, swarm), space, goal)
    others = [expected(fit_all(fit, runs), space, goal) for runs in resampled(swarm, goal)]
    found = []
    for source in np.flatnonzero(space.upper > 0):
        shares = np.linspace(space.lower[source], space.upper[source], _GRID)
        mixtures = _along(space, chosen, int(source), shares)
        low, high = np.quantile([other(mixtures) for other in others], (0.05, 0.95), axis=0)
        found.append(
            Response(
                source=space.sources[source],
                natural=float(space.prior[source]),
                chosen=float(chosen[source]),
                shares=tuple(shares.tolist()),
                losses=tuple(loss(mixtures).tolist()),
                low=tuple(low.tolist()),
                high=tuple(high.tolist()),
            )
        )
    return tuple(found)


def _along(space: Space, chosen: Floats, source: int, shares: Floats) -> Floats:
    """Mixtures (n, sources) with these shares of one source; the others as in `chosen`, or by the prior where
    it holds nothing else."""
    rest = np.where(np.arange(len(chosen)) == source, 0.0, chosen)
    if rest.sum() == 0:
        rest = np.where(np.arange(len(chosen)) == source, 0.0, space.prior)
    mixtures = (1.0 - shares)[:, None] * rest / rest.sum()
    mixtures[:, source] = shares
    along: Floats = mixtures
    return along


def _cheaper(space: Space, swarm: Swarm, model: str, goal: Goal, choice: Choice) -> tuple[Cheaper, ...]:
    whole = objective_of(fit_all(MODELS[model], swarm), space, goal)
    best = whole(np.array([[choice.weights[source] for source in space.sources]]))[0]
    least = least_runs(model, len(swarm.sources))
    sizes = sorted(
        {int(size) for size in np.linspace(least, swarm.num_runs, _CHEAPER + 1)[:-1]} - {swarm.num_runs}
    )
    found = []
    for size in sizes:
        part = replace(swarm, weights=swarm.weights[:size], losses=swarm.losses[:size])
        models, ideal = settle(space, part, MODELS[model], goal)
        shares = snap(ideal, space, goal.mixture_block)
        found.append(
            Cheaper(
                num_runs=size,
                weights=space.named(shares),
                claimed=float(expected(models, space, goal)(shares[None])[0]),
                worse=max(float(whole(shares[None])[0] - best), 0.0),
            )
        )
    return tuple(found)


def optimisable(model: str, swarm: Swarm) -> Fitter:
    """The way to fit a model that a mixture can be chosen by. RecipeError as `models.fitter`, and for a
    baseline."""
    if model in BASELINES:
        raise RecipeError(f"--model {model}: it is a baseline, there is nothing to optimise")
    return fitter(model, swarm.num_runs, len(swarm.sources))
