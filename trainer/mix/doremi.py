"""DoReMi: weights of sources that grow where a proxy is worse than a reference, averaged over the run
(2305.10429)."""

from __future__ import annotations

import numpy as np

from trainer.mix.swarm import Floats


def mean_excess(proxy: Floats, reference: Floats, source: np.ndarray, before: Floats) -> Floats:
    """λ of each source, (sources,): the mean over its tokens of max(proxy loss − reference loss, 0), nats.

    `proxy`, `reference`, `source`: one entry a token, (n,). A source without a token keeps its entry of
    `before`."""
    counts = np.bincount(source, minlength=len(before))
    sums = np.bincount(source, weights=np.maximum(proxy - reference, 0.0), minlength=len(before))
    excess: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), before)
    return excess


def update(weights: Floats, excess: Floats, step_size: float, smoothing: float) -> Floats:
    """The next weights, (sources,): w · e^(ηλ) with η = `step_size`, normalised, then mixed with the uniform
    by c = `smoothing` (2305.10429, algorithm 1)."""
    # Without the largest exponent the sum could overflow; it cancels. A weight that a step took to 0 could
    # never grow again, and where it has the largest exponent the sum would be 0.
    held = np.maximum(weights, np.finfo(np.float64).tiny)
    grown = held * np.exp(step_size * (excess - excess.max()))
    grown = grown / grown.sum()
    moved: Floats = (1.0 - smoothing) * grown + smoothing / len(weights)
    return moved


def averaged(history: Floats) -> Floats:
    """The answer: the mean over steps of the weights after each, (steps, sources) → (sources,)."""
    mean: Floats = history.mean(axis=0)
    mean /= mean.sum()
    return mean
