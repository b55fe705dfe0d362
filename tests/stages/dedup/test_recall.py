"""Pairs of known Jaccard become candidates as often as the S-curve of the bands says."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from stages.dedup.bands import band_keys, unpack_signatures
from stages.dedup.minhash import U32, Signer
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingles

NUM_PAIRS = 200
SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)

Planted = dict[float, tuple[U32, list[float]]]
"""For each planned similarity the signatures of its pairs, shape (2 * NUM_PAIRS, num_perm), and their exact
Jaccard."""


def planted_pair(similarity: float, seed: int) -> tuple[str, str]:
    """Two texts of 300 shingles: equal up to a point, then each its own."""
    chosen = random.Random(f"{similarity} {seed}")
    num_shared = round(600 * similarity / (1 + similarity))
    start, *own = (
        " ".join(map(str, chosen.choices(range(10**6), k=k)))
        for k in (num_shared + 4, *[300 - num_shared] * 2)
    )
    return f"{start} {own[0]}", f"{start} {own[1]}"


@pytest.fixture(scope="module", params=["fast", "datasketch"])
def planted(request: pytest.FixtureRequest) -> Planted:
    table = DedupTable(scheme=request.param)
    signer, found = Signer(table), {}
    for similarity in SIMILARITIES:
        pairs = [planted_pair(similarity, seed) for seed in range(NUM_PAIRS)]
        signatures = [signer.signature(text) or b"" for pair in pairs for text in pair]
        exact = [jaccard(shingles(left, table), shingles(right, table)) for left, right in pairs]
        found[similarity] = unpack_signatures(pa.array(signatures), table), exact
    return found


@pytest.mark.parametrize(("bands", "rows"), [(16, 8), (14, 8), (9, 13), (25, 5)])
def test_recall_follows_the_s_curve(planted: Planted, bands: int, rows: int) -> None:
    for similarity, (signatures, exact) in planted.items():
        keys = band_keys(signatures, DedupTable(bands=bands, rows=rows))
        num_found = int(np.count_nonzero((keys[0::2] == keys[1::2]).any(axis=1)))
        chance = 1 - (1 - np.array(exact) ** rows) ** bands
        # Four standard errors, and one pair for rates so near 0 or 1 that the normal approximation is poor.
        assert abs(num_found - chance.sum()) < 4 * (chance * (1 - chance)).sum() ** 0.5 + 1, similarity
