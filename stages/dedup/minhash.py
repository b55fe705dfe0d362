"""MinHash signatures: texts whose shingles overlap agree in about that share of the values (Broder 1997).

Scheme "datasketch" is datasketch itself, with its defaults: the first four bytes of SHA-1 as the 32-bit hash
h of a shingle, and permutations "affine32", a * fmix32(h) + b mod 2^32 with a odd, of each of which the least
value is kept. Scheme "fast" takes the same permutations over the upper half of `shingles.shingle_hashes`,
several times cheaper and with the same statistics."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stages.dedup.options import DedupTable
from stages.dedup.shingles import shingle_hashes, shingle_strings

U32 = npt.NDArray[np.uint32]

_BLOCK: Final = 512
"""Shingles permuted at once: 512 x 128 values of 4 bytes stay in a core's second-level cache."""
_SEED: Final = 1


class Signer:
    """Makes signatures as a [dedup] table says. Picklable; one instance serves one thread."""

    def __init__(self, table: DedupTable) -> None:
        self.table = table
        if table.scheme == "datasketch":
            self._empty = _empty_sketch(table.num_perm)
            return
        self._multipliers, self._increments = _permutations(table.num_perm)
        self._work = np.empty((_BLOCK, table.num_perm), np.uint32)

    def __reduce__(self) -> tuple[type[Signer], tuple[DedupTable]]:
        return Signer, (self.table,)

    def signature(self, text: str) -> bytes | None:
        """num_perm values as uint32 little-endian; None for a text without shingles."""
        if self.table.scheme == "datasketch":
            return self._by_datasketch(text)
        hashes = (shingle_hashes(text, self.table) >> np.uint64(32)).astype(np.uint32)
        return self._least(_fmix32(hashes)).astype("<u4", copy=False).tobytes() if len(hashes) else None

    def _by_datasketch(self, text: str) -> bytes | None:
        strings = shingle_strings(text, self.table)
        if not strings:
            return None
        sketch = self._empty.copy()
        # datasketch holds num_perm values of each shingle of a batch at once.
        for start in range(0, len(strings), _BLOCK):
            sketch.update_batch(strings[start : start + _BLOCK])
        values: U32 = sketch.hashvalues
        return values.astype("<u4", copy=False).tobytes()

    def _least(self, hashes: U32) -> U32:
        # For a random order of all hashes, two sets have the same first element with the probability of their
        # Jaccard similarity (Broder 1997). a * h + b mod 2^32 with a odd is a bijection, so each column is
        # such an order.
        least = np.full(self.table.num_perm, np.iinfo(np.uint32).max, np.uint32)
        for start in range(0, len(hashes), _BLOCK):
            block = hashes[start : start + _BLOCK]
            permuted = self._work[: len(block)]
            np.multiply(block[:, None], self._multipliers, out=permuted)
            np.add(permuted, self._increments, out=permuted)
            np.minimum(least, permuted.min(axis=0), out=least)
        return least


def scheme_name(table: DedupTable) -> str:
    """What two runs must share for their signatures to be comparable."""
    scheme = "datasketch-2.0.0/affine32/sha1" if table.scheme == "datasketch" else "sluice-1/affine32/xxh3"
    unit = "" if table.shingle_unit == "word" else f" {table.shingle_unit}s"
    name = f"{scheme}/perm={table.num_perm}/shingle={table.shingle}{unit}"
    return name if table.normalise == "none" else f"{name}/normalise={table.normalise}"


def estimate_floor(table: DedupTable) -> float:
    """The least estimate (the share of equal values of two signatures) that is worth an exact comparison:
    four standard errors, sqrt(s (1 - s) / num_perm), below the threshold, so that about 3 in 100,000 pairs at
    the threshold are missed. 0 where no threshold decides."""
    if not table.verify:
        return 0.0
    s = table.threshold
    return s - 4 * math.sqrt(s * (1 - s) / table.num_perm)


def _empty_sketch(num_perm: int) -> Any:
    """datasketch's MinHash of the empty set; imported here, because it loads scipy."""
    from datasketch import MinHash

    return MinHash(num_perm)


def _permutations(num_perm: int) -> tuple[U32, U32]:
    # RandomState's stream is frozen by numpy (NEP 19), and the order of these two calls is datasketch's.
    generator = np.random.RandomState(_SEED)
    multipliers = generator.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    increments = generator.randint(0, 1 << 32, num_perm, dtype=np.uint32)
    return multipliers, increments


def _fmix32(values: U32) -> U32:
    """MurmurHash3's 32-bit finaliser: a bijection after which every bit depends on every bit. Without it the
    low bits of a * h + b would depend on the low bits of h alone."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))
