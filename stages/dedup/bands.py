"""Bands of a signature: two texts that agree in one whole band meet in a bucket (LSH by banding)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.dedup.minhash import U32
from stages.dedup.options import DedupTable
from stages.dedup.shingles import mix

I64 = npt.NDArray[np.int64]

_ORDER_VALUES: Final = 8
_HASHED_AT_ONCE: Final = 2048
"""Signatures whose bands are hashed at a time: a megabyte of them, which the processor's own memory holds."""


def unpack_signatures(signatures: pa.Array | pa.ChunkedArray, table: DedupTable) -> U32:
    """Signatures (binary, without nulls) as an array of shape (len(signatures), num_perm); ValueError where
    one has another num_perm."""
    width = 4 * table.num_perm
    lengths = pc.binary_length(signatures).to_numpy(zero_copy_only=False)
    if wrong := lengths[lengths != width].tolist():
        raise ValueError(
            f"a signature of {wrong[0] // 4} values, but dedup.num_perm = {table.num_perm}: runs that are"
            " compared (dedup.against) must have the same num_perm, shingle, scheme and normalise"
        )
    # The values lie one behind the other in Arrow's buffer: a bytes object for each would cost more than
    # hashing it.
    whole = signatures.cast(pa.binary(width))
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    values = np.frombuffer(whole.buffers()[1], "<u4", len(whole) * table.num_perm, whole.offset * width)
    return values.astype(np.uint32, copy=False).reshape(-1, table.num_perm)


def band_keys(signatures: U32, table: DedupTable) -> I64:
    """The bucket of each band of each signature, shape (num_signatures, bands): a 64-bit hash of (band, its
    values), so that buckets of different bands never meet."""
    # Texts of Jaccard s agree in one value with probability s, in all r of a band with s^r, in one of b bands
    # at least with 1 - (1 - s^r)^b: fewer values in a band and more bands both propose more pairs.
    keys = np.empty((len(signatures), table.bands), np.uint64)
    for begin in range(0, len(signatures), _HASHED_AT_ONCE):
        block = signatures[begin : begin + _HASHED_AT_ONCE, : table.bands * table.rows]
        values = block.reshape(len(block), table.bands, table.rows)
        state = np.arange(1, table.bands + 1, dtype=np.uint64)
        for row in range(table.rows):
            state = mix(state ^ values[:, :, row])
        keys[begin : begin + len(block)] = state
    return keys.view(np.int64)


def bands_of(signature: bytes, table: DedupTable) -> list[int]:
    """The buckets of one signature, by band."""
    found: list[int] = band_keys(np.frombuffer(signature, "<u4")[None], table)[0].tolist()
    return found


def band_orders(signatures: U32, table: DedupTable) -> I64:
    """Where each signature stands in the signature order of each band's buckets, shape (num_signatures,
    bands).

    The members of a bucket agree in the band itself, so the order is that of the low bytes of the eight
    values after it (cyclically): texts that stand side by side are likely to resemble each other, and each
    band orders anew."""
    first = table.rows * np.arange(1, table.bands + 1)
    columns = (first[:, None] + np.arange(_ORDER_VALUES)) % table.num_perm
    low = (signatures & np.uint32(255)).astype(np.uint8)
    return low.take(columns.ravel(), axis=1).view(">u8").astype(np.uint64).view(np.int64)
