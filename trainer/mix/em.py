"""Which mixture of known distributions a target looks like most: maximum likelihood by expectation
maximisation."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainer.mix.swarm import Floats

_ROUNDS: Final = 10_000
_ENOUGH: Final = 1e-9


def smoothed(counts: Floats, share: float = 1e-3) -> Floats:
    """Unigram distributions (domains, words) of counts, each with a `share` of all domains' pooled counts, so
    that no word of any domain is impossible in another."""
    pooled = counts.sum(axis=0) / counts.sum()
    own = counts / counts.sum(axis=1, keepdims=True)
    mixed: Floats = (1.0 - share) * own + share * pooled
    return mixed


def fit_mixture(target: Floats, domains: Floats) -> Floats:
    """Shares (domains,) that make the target's counts (words,) likeliest under Σ share · domain; `domains` is
    (domains, words), rows sum to one. Words that no domain has are left out. ValueError where that leaves
    none.

    The likelihood is concave in the shares, so that the end does not depend on the start."""
    seen = (domains.sum(axis=0) > 0) & (target > 0)
    if not seen.any():
        raise ValueError("the target has no word that any source has: is it the same language?")
    counts, columns = target[seen] / target[seen].sum(), domains[:, seen]
    shares = np.full(len(domains), 1.0 / len(domains))
    for _ in range(_ROUNDS):
        joint = shares[:, None] * columns
        updated = (joint / joint.sum(axis=0) * counts).sum(axis=1)
        moved = float(np.abs(updated - shares).max())
        shares = updated
        if moved < _ENOUGH:
            break
    return shares
