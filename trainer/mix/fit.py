"""How well a model ranks mixtures: on runs it has not seen, with intervals, and always beside trivial
baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.stats import rankdata

from lineage.recipe import RecipeError
from trainer.mix.models import Fitter, best, fitter, mean, natural, own_share, stratified
from trainer.mix.swarm import Floats, Swarm, check_fits

_FOLDS: Final = 10
_RESAMPLES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionScore:
    """Of predictions against measured losses. `spearman`: rank correlation in [-1, 1], None where one side is
    constant; `mae`: nats; `interval`: the middle 95 % of `spearman` over resampled runs."""

    spearman: float | None
    mae: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model's score and those of the baselines. `held_out`: "test" (runs of their own) or "folds"."""

    model: str
    target: str
    num_runs: int
    held_out: str
    score: PredictionScore
    baselines: dict[str, PredictionScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What to fit and how. `force`: also with fewer runs than the model should have."""

    target: str
    model: str
    force: bool = False
    seed: int = 0


def judge(train: Swarm, test: Swarm | None, asked: Judgement) -> Fit:
    """Fit on `train`, score on `test`, or where there is none on folds left out in turn. RecipeError for a
    target that no run has, a test set with other columns, or too few runs."""
    target = train.column(asked.target)
    fit = fitter(asked.model, train.num_runs, len(train.sources), asked.force)
    if test is not None:
        check_fits(train, test)
    elif train.num_runs < 3:
        raise RecipeError(
            f"{train.num_runs} runs cannot be left out in turn: expected at least 3, or a test set"
        )
    own = train.own_source(target)
    trivial: dict[str, Fitter] = {"mean": mean, "stratified": stratified, "natural": natural, "best": best}
    if own is not None:
        trivial["own_share"] = own_share(own)
    baselines = {name: _score(way, train, test, target, asked.seed) for name, way in trivial.items()}
    # Fold by fold a mean moves against what was left out: that is no ranking.
    baselines["mean"] = replace(baselines["mean"], spearman=None, interval=None)
    return Fit(
        model=asked.model,
        target=train.targets[target],
        num_runs=train.num_runs,
        held_out="folds" if test is None else "test",
        score=_score(fit, train, test, target, asked.seed),
        baselines=baselines,
    )


def _score(fit: Fitter, train: Swarm, test: Swarm | None, target: int, seed: int) -> PredictionScore:
    losses = train.losses[:, target]
    if test is not None:
        return score(fit(train.weights, losses).predict(test.weights), test.losses[:, target], seed)
    return score(left_out(fit, train.weights, losses, seed), losses, seed)


def left_out(fit: Fitter, weights: Floats, losses: Floats, seed: int = 0) -> Floats:
    """The prediction for each run by a model fitted without it: ten folds, or one a run where there are
    fewer."""
    num = len(losses)
    fold = np.random.default_rng(seed).permutation(num) % min(_FOLDS, num)
    predicted = np.empty(num)
    for number in range(min(_FOLDS, num)):
        out = fold == number
        predicted[out] = fit(weights[~out], losses[~out]).predict(weights[out])
    return predicted


def score(predicted: Floats, measured: Floats, seed: int = 0) -> PredictionScore:
    """Rank correlation with its bootstrap interval, and mean absolute error."""
    value = _spearman(predicted[None], measured[None])[0]
    rows = np.random.default_rng(seed).integers(0, len(measured), (_RESAMPLES, len(measured)))
    resampled = _spearman(predicted[rows], measured[rows])
    resampled = resampled[np.isfinite(resampled)]
    interval = None
    if np.isfinite(value) and len(resampled):
        low, high = np.quantile(resampled, (0.025, 0.975))
        interval = (float(low), float(high))
    return PredictionScore(
        spearman=float(value) if np.isfinite(value) else None,
        mae=float(np.abs(predicted - measured).mean()),
        interval=interval,
    )


def _spearman(left: Floats, right: Floats) -> Floats:
    """Row by row; NaN where a row is constant."""
    left, right = rankdata(left, axis=1), rankdata(right, axis=1)
    left, right = left - left.mean(axis=1, keepdims=True), right - right.mean(axis=1, keepdims=True)
    norm = np.sqrt((left**2).sum(axis=1) * (right**2).sum(axis=1))
    correlation: Floats = np.divide(
        (left * right).sum(axis=1), norm, out=np.full(len(left), np.nan), where=norm > 0
    )
    return correlation
