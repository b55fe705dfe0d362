"""A world where the best mixture is known: bigram sources, and a target that is a mixture of them."""

from __future__ import annotations

import numpy as np

from trainer.mix.models import MODELS
from trainer.mix.optimize import Goal, settle
from trainer.mix.space import Space, draw
from trainer.mix.swarm import Floats, Swarm

SYMBOLS = 64
TARGET = np.array([0.40, 0.25, 0.20, 0.10, 0.05])


class World:
    """Five random bigram sources. With the target's shares a bigram model of endless data is the target
    itself, so that mixture is the optimum of Σ TARGET · loss by source."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.pairs = np.stack([self._source() for _ in TARGET])

    def _source(self) -> Floats:
        transitions = self.rng.dirichlet(np.full(SYMBOLS, 0.5), SYMBOLS)
        state = np.full(SYMBOLS, 1 / SYMBOLS)
        for _ in range(200):
            state = state @ transitions
        return (state[:, None] * transitions).ravel()

    def losses(self, pairs: Floats) -> Floats:
        """Nats a token of each source under the conditional probabilities of these pair frequencies."""
        table = pairs.reshape(SYMBOLS, SYMBOLS)
        nats: Floats = -(self.pairs * np.log(table / table.sum(axis=1, keepdims=True)).ravel()).sum(axis=1)
        return nats

    def exact(self, weights: Floats) -> float:
        """The target's loss with endless data of this mixture."""
        return float(TARGET @ self.losses(weights @ self.pairs))

    def regret(self, weights: Floats) -> float:
        return self.exact(weights) - self.exact(TARGET)

    def proxy(self, weights: Floats, tokens: int = 50_000) -> Floats:
        """Losses of a bigram model of so many drawn tokens."""
        mixed = weights @ self.pairs
        counted: Floats = self.rng.multinomial(tokens, mixed / mixed.sum()).astype(np.float64)
        return self.losses(counted + 0.5)

    def swarm(self, num_runs: int) -> tuple[Floats, Floats]:
        """The uniform mixture, corners and drawn ones, as an ablation runs them, and their losses by
        source."""
        drawn = draw(SPACE, num_runs - len(TARGET) - 1, self.rng, round_prior=True)
        weights = np.vstack((SPACE.prior, np.eye(len(TARGET)), drawn))
        return weights, np.stack([self.proxy(row) for row in weights])


SPACE = Space(
    sources=tuple("abcde"),
    tokens=np.full(5, 1e9),
    epoch_tokens=np.full(5, 1e9),
    prior=np.full(5, 0.2),
    lower=np.zeros(5),
    upper=np.ones(5),
)


def chosen(model: str, weights: Floats, losses: Floats) -> Floats:
    """The mixture that a model recommends from these runs."""
    if model == "best":
        best: Floats = weights[int(np.argmin(losses @ TARGET))]
        return best
    swarm = Swarm(sources=SPACE.sources, targets=SPACE.sources, weights=weights, losses=losses)
    return settle(SPACE, swarm, MODELS[model], Goal(target_weights=TARGET).for_model(model))[1]
