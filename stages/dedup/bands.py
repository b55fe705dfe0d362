"""Bands of a signature: two texts that agree in one whole band meet in a bucket (LSH by banding)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from stages.dedup.minhash import U32
from stages.dedup.options import DedupTable
from stages.dedup.shingles import mix

I64 = npt.NDArray[np.int64]

_ORDER_VALUES: Final = 8


def unpack_signatures(signatures: list[bytes], table: DedupTable) -> U32:
    """Signatures as an array of shape (len(signatures), num_perm); ValueError where one has another num_perm."""
    wrong = next((s for s in signatures if len(s) != 4 * table.num_perm), None)
    if wrong is not None:
        raise ValueError(
            f"a signature of {len(wrong) // 4} values, but dedup.num_perm = {table.num_perm}: runs that are compared"
            " (dedup.against) must have the same num_perm, shingle and scheme"
        )
    return np.frombuffer(b"".join(signatures), "<u4").astype(np.uint32).reshape(-1, table.num_perm)


def band_keys(signatures: U32, table: DedupTable) -> I64:
    """The bucket of each band of each signature, shape (num_signatures, bands): a 64-bit hash of (band, its values),
    so that buckets of different bands never meet."""
    keys = np.empty((len(signatures), table.bands), np.uint64)
    # Texts of Jaccard s agree in one value with probability s, in all r of a band with s^r, in one of b bands at least
    # with 1 - (1 - s^r)^b: fewer values in a band and more bands both propose
    # more pairs.
    for band in range(table.bands):
        state = np.full(len(signatures), band + 1, np.uint64)
        for column in range(band * table.rows, (band + 1) * table.rows):
            state = mix(state ^ signatures[:, column])
        keys[:, band] = state
    return keys.view(np.int64)


def band_orders(signatures: U32, table: DedupTable) -> I64:
    """Where each signature stands in the signature order of each band's buckets, shape (num_signatures, bands).

    The members of a bucket agree in the band itself, so the order is that of the low bytes of the eight values after
    it (cyclically): texts that stand side by side are likely to resemble each other, and each band orders anew."""
    orders = np.zeros((len(signatures), table.bands), np.uint64)
    for band in range(table.bands):
        for step in range(_ORDER_VALUES):
            column = ((band + 1) * table.rows + step) % table.num_perm
            orders[:, band] = (orders[:, band] << np.uint64(8)) | (signatures[:, column] & np.uint32(255))
    return orders.view(np.int64)
