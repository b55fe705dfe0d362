"""Models that predict the loss of a mixture from runs of other mixtures: one target, weights in, nats out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

import numpy as np
from scipy.optimize import least_squares

from lineage.recipe import RecipeError
from trainer.mix.swarm import Floats

LEAST_RUNS_LIGHTGBM: Final = 100
"""Below this, trees rank mixtures worse than a line through the logarithm does: with 64 runs of the RegMix
table Spearman is 0.87 against 0.94."""
_RIDGE: Final = 1e-6
_RIDGES: Final = (1e-4, 1e-3, 1e-2)


class Model(Protocol):
    """A fitted model. `predict` takes (n, sources) and gives (n,)."""

    def predict(self, weights: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """Loss as a line over the total variation distance from one mixture: what choosing that mixture
    assumes."""

    mixture: Floats
    intercept: float
    slope: float

    def predict(self, weights: Floats) -> Floats:
        return self.intercept + self.slope * _distance(weights, self.mixture)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """w · b: on the simplex the intercept is part of b."""

    coefficients: Floats

    def predict(self, weights: Floats) -> Floats:
        return weights @ self.coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Loss as a line over the share of one source: equal shares stay exact ties."""

    source: int
    intercept: float
    slope: float

    def predict(self, weights: Floats) -> Floats:
        return self.intercept + self.slope * weights[:, self.source]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinear:
    """The mixing law L = c + exp(t · w) (2403.16952, with k in t: the weights sum to one)."""

    floor: float
    exponents: Floats

    def predict(self, weights: Floats) -> Floats:
        return self.floor + _exp(weights @ self.exponents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadratic:
    """Scheffé's quadratic for mixtures: Σ b_i w_i + Σ_{i<j} b_ij w_i w_j (Scheffé 1958)."""

    coefficients: Floats

    def predict(self, weights: Floats) -> Floats:
        return _scheffe(weights) @ self.coefficients


def stratified(weights: Floats, losses: Floats) -> Model:
    """Trusts the uniform mixture."""
    return _centre(np.full(weights.shape[1], 1.0 / weights.shape[1]), weights, losses)


def natural(weights: Floats, losses: Floats) -> Model:
    """Trusts the natural mixture, taken for the middle of the runs: they are drawn round it."""
    return _centre(weights.mean(axis=0), weights, losses)


def best(weights: Floats, losses: Floats) -> Model:
    """Trusts the best run."""
    return _centre(weights[int(np.argmin(losses))], weights, losses)


def mean(weights: Floats, losses: Floats) -> Model:
    """Every mixture is alike."""
    return Centre(mixture=weights[0], intercept=float(losses.mean()), slope=0.0)


def own_share(source: int) -> Fitter:
    """Trusts whatever holds most of the target's own source: a line over that share."""

    def fit(weights: Floats, losses: Floats) -> Model:
        share = weights[:, source]
        spread = float(share.var())
        covariance = float(((share - share.mean()) * (losses - losses.mean())).mean())
        slope = min(covariance / spread, 0.0) if spread else 0.0
        return Share(source=source, intercept=float(losses.mean() - slope * share.mean()), slope=slope)

    return fit


def fit_linear(weights: Floats, losses: Floats) -> Model:
    """Least squares."""
    return Linear(coefficients=np.asarray(np.linalg.lstsq(weights, losses, rcond=None)[0], dtype=np.float64))


def fit_log_linear(weights: Floats, losses: Floats, trust: Floats | None = None) -> Model:
    """The mixing law by Levenberg-Marquardt from several floors; the best end is kept. A trace of ridge makes
    the exponents of sources that no run holds finite. `trust` (runs,): how much each run's squared error
    counts."""
    roots = np.ones(len(losses)) if trust is None else np.sqrt(trust)
    starts = [
        _log_linear_from(weights, losses, roots, float(losses.min()) * share) for share in (0.5, 0.8, 0.95)
    ]
    return min(starts, key=lambda model: float(((roots * (model.predict(weights) - losses)) ** 2).sum()))


def _log_linear_from(weights: Floats, losses: Floats, roots: Floats, floor: float) -> LogLinear:
    logs = np.log(np.maximum(losses - floor, 1e-9))
    first = np.linalg.lstsq(roots[:, None] * weights, roots * logs, rcond=None)[0]
    ridge = np.sqrt(_RIDGE * len(losses))
    num = weights.shape[1]

    def residuals(x: Floats) -> Floats:
        return np.concatenate((roots * (x[0] + _exp(weights @ x[1:]) - losses), ridge * x[1:]))

    def jacobian(x: Floats) -> Floats:
        slopes = np.column_stack((np.ones(len(losses)), weights * _exp(weights @ x[1:])[:, None]))
        return np.vstack((roots[:, None] * slopes, np.column_stack((np.zeros(num), ridge * np.eye(num)))))

    found = least_squares(
        residuals,
        np.concatenate(([floor], first)),
        jac=jacobian,
        method="lm",
        xtol=1e-8,
        ftol=1e-8,
        max_nfev=300,
    )
    return LogLinear(floor=float(found.x[0]), exponents=found.x[1:])


def fit_quadratic(weights: Floats, losses: Floats) -> Model:
    """Ridge over Scheffé's products (not over the shares), as strong as predicts left-out runs best: with few
    runs most products are unknown, and a free fit puts its optimum where nothing was measured."""
    terms = _scheffe(weights)
    penalty = np.diag((np.arange(terms.shape[1]) >= weights.shape[1]).astype(np.float64)) * len(losses)
    best_error, best_coefficients = np.inf, np.zeros(terms.shape[1])
    for strength in _RIDGES:
        inverse = np.linalg.pinv(terms.T @ terms + strength * penalty, hermitian=True)
        coefficients = inverse @ (terms.T @ losses)
        leverage = np.einsum("ij,jk,ik->i", terms, inverse, terms)
        left_out = (losses - terms @ coefficients) / np.maximum(1.0 - leverage, 1e-3)
        error = float((left_out**2).mean())
        if error < best_error:
            best_error, best_coefficients = error, coefficients
    return Quadratic(coefficients=best_coefficients)


def fit_gaussian_process(weights: Floats, losses: Floats) -> Model:
    """A Gaussian process with one length scale and noise, from scikit-learn."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(1e-2, (1e-8, 1.0))
    return cast(
        Model, GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(weights, losses)
    )


def fit_lightgbm(weights: Floats, losses: Floats) -> Model:
    """Boosted trees with RegMix's learning rate; one thread, so that a fit is a function of its data."""
    from lightgbm import LGBMRegressor

    trees = LGBMRegressor(
        n_estimators=1000,
        learning_rate=0.01,
        reg_lambda=0.1,
        random_state=42,
        n_jobs=1,
        verbose=-1,
        deterministic=True,
    )
    return _Trees(trees=trees.fit(weights, losses))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trees:
    trees: Model

    def predict(self, weights: Floats) -> Floats:
        return np.asarray(self.trees.predict(weights), dtype=np.float64)


Fitter = Callable[[Floats, Floats], Model]
TrustingFitter = Callable[[Floats, Floats, Floats], Model]
"""Takes how much each run counts as well."""

MODELS: Final[dict[str, Fitter]] = {
    "stratified": stratified,
    "natural": natural,
    "best": best,
    "least_squares": fit_linear,
    "log_linear": fit_log_linear,
    "quadratic": fit_quadratic,
    "gaussian_process": fit_gaussian_process,
    "lightgbm": fit_lightgbm,
}

BASELINES: Final = ("mean", "stratified", "natural", "best")
SLOW_MODELS: Final = ("gaussian_process", "lightgbm")
"""Seconds a fit, with hundreds of runs."""


def least_runs(name: str, num_sources: int) -> int:
    """The fewest runs that a model may be fitted on: one more than it has parameters, and
    LEAST_RUNS_LIGHTGBM."""
    fixed = {"lightgbm": LEAST_RUNS_LIGHTGBM, "least_squares": num_sources + 1, "log_linear": num_sources + 2}
    terms = num_sources * (num_sources + 1) // 2
    return (fixed | {"quadratic": terms + 1, "gaussian_process": 5}).get(name, 3)


def fitter(name: str, num_runs: int, num_sources: int, force: bool = False) -> Fitter:
    """The way to fit a model by its name. RecipeError for an unknown name, or too few runs unless `force`."""
    if name not in MODELS:
        raise RecipeError(f"--model {name!r}: expected one of {', '.join(MODELS)}")
    least = least_runs(name, num_sources)
    if num_runs < least and not force:
        raise RecipeError(
            f"{name} needs at least {least} runs for {num_sources} sources, there are {num_runs}: "
            "add runs or take a model with fewer parameters, such as log_linear"
        )
    return MODELS[name]


def _centre(mixture: Floats, weights: Floats, losses: Floats) -> Centre:
    distance = _distance(weights, mixture)
    spread = float(distance.var())
    slope = (
        float(((distance - distance.mean()) * (losses - losses.mean())).mean()) / spread if spread else 0.0
    )
    slope = max(slope, 0.0)
    return Centre(mixture=mixture, intercept=float(losses.mean() - slope * distance.mean()), slope=slope)


def _distance(weights: Floats, mixture: Floats) -> Floats:
    distance: Floats = np.abs(weights - mixture).sum(axis=1) / 2
    return distance


def _exp(exponent: Floats) -> Floats:
    return np.exp(np.clip(exponent, -50.0, 50.0))


def _scheffe(weights: Floats) -> Floats:
    first, second = np.triu_indices(weights.shape[1], k=1)
    return np.hstack((weights, weights[:, first] * weights[:, second]))
