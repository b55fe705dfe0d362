"""DSIR: choose documents by how much likelier their n-grams are in a target than in the whole
(2302.03169)."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from lineage.recipe import RecipeError
from trainer.mix.swarm import Floats

BUCKETS: Final = 10_000
_SMOOTHING: Final = 1e-8
_WORD: Final = re.compile(r"\w+|[^\w\s]+")
"""Words and runs of punctuation: NLTK's WordPunctTokenizer, as the authors' code has it."""


@lru_cache(maxsize=1 << 20)
def bucket(ngram: str) -> int:
    """The bucket of a word or of two words with a space between: the whole SHA-256 as an integer modulo
    BUCKETS."""
    # A line of JSON may hold half of a surrogate pair, which strict UTF-8 has no bytes for.
    return int(hashlib.sha256(ngram.encode("utf-8", "surrogatepass")).hexdigest(), 16) % BUCKETS


def features(text: str) -> Floats:
    """Counts of the hashed unigrams and bigrams of the lower-cased text, (BUCKETS,)."""
    words = _WORD.findall(text.lower())
    ngrams = words + [f"{first} {second}" for first, second in itertools.pairwise(words)]
    return np.bincount([bucket(ngram) for ngram in ngrams], minlength=BUCKETS).astype(np.float64)


def unigrams(text: str) -> Floats:
    """Counts of the hashed words of the lower-cased text, (BUCKETS,)."""
    words = _WORD.findall(text.lower())
    return np.bincount([bucket(word) for word in words], minlength=BUCKETS).astype(np.float64)


def log_ratio(target: Floats, raw: Floats) -> Floats:
    """log(p + 1e-8) − log(q + 1e-8) by bucket, from summed counts of the target and of the whole, (BUCKETS,).

    RecipeError where one of them has no word."""
    for what, counts in (("the target", target), ("train.data", raw)):
        if not counts.any():
            raise RecipeError(f"{what} has no word: texts are compared by their words")
    p, q = target / target.sum(), raw / raw.sum()
    ratio: Floats = np.log(p + _SMOOTHING) - np.log(q + _SMOOTHING)
    return ratio


def log_weights(texts: Iterable[str], ratio: Floats) -> tuple[Floats, Floats]:
    """Each document's log importance weight Σ count · ratio, not normalised, and its number of n-grams: (n,)
    each."""
    rows = [(float(counts @ ratio), float(counts.sum())) for counts in map(features, texts)]
    both = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def gumbel_top_k(weights: Floats, k: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The numbers of `k` documents drawn without replacement in proportion to exp(weights), rising.
    ValueError if there are fewer."""
    if not 0 < k <= len(weights):
        raise ValueError(f"{k} documents of {len(weights)} were asked for: expected 1 to {len(weights)}")
    noisy = weights + np.random.default_rng(seed).gumbel(size=len(weights))
    return np.sort(np.argpartition(-noisy, k - 1)[:k])


def effective_sample_size(weights: Floats) -> float:
    """(Σ w)² / Σ w² of w = exp(weights): how many equally weighted documents they are worth."""
    scaled = np.exp(weights - weights.max())
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def length_effect(weights: Floats, lengths: Floats) -> float | None:
    """Correlation of log weight and number of n-grams: near −1 or 1, the choice is one by length. None if
    constant."""
    if weights.std() == 0 or lengths.std() == 0:
        return None
    return float(np.corrcoef(weights, lengths)[0, 1])
