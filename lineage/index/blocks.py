"""Token shards as bytes: uint32 little-endian, guarded by a digest of each 8 MiB block and named by one
BLAKE3.

A block is what the trainer reads, caches and checks at once; xxh3 guards it against corruption only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash
from blake3 import blake3

from lineage.ids import ID_BYTES

TOKEN_BYTES: Final = 4
BLOCK_TOKENS: Final = 2_097_152
"""Tokens of a block: 8 MiB of uint32. A training sequence never straddles two."""

BLOCK_BYTES: Final = BLOCK_TOKENS * TOKEN_BYTES
DIGEST_BYTES: Final = 16


def block_digest(data: bytes | memoryview) -> bytes:
    """xxh3-128 of one block: 16 bytes, big-endian as xxhash prints it."""
    return xxhash.xxh3_128_digest(data)


def as_bytes(tokens: npt.NDArray[np.uint32]) -> memoryview:
    """Tokens, shape (num_tokens,), as they lie in a shard."""
    return np.ascontiguousarray(tokens, dtype="<u4").data.cast("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDigests:
    """`hash`: BLAKE3-128 of the whole file, hex. `blocks`: the digests of its blocks in order, 16 bytes each
    (this is the content of the .blocks file)."""

    hash: str
    blocks: bytes


class ShardHasher:
    """The digests of a shard that arrives piece by piece."""

    def __init__(self) -> None:
        self._whole = blake3()
        self._block = xxhash.xxh3_128()
        self._blocks: list[bytes] = []
        self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes, of any length."""
        self._whole.update(data)
        view = memoryview(data).cast("B")
        while len(view):
            piece = view[: BLOCK_BYTES - self._filled]
            self._block.update(piece)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK_BYTES:
                self._close_block()

    def digests(self) -> ShardDigests:
        """The digests of all that was taken; to be called once, at the end."""
        if self._filled:
            self._close_block()
        return ShardDigests(hash=self._whole.digest(length=ID_BYTES).hex(), blocks=b"".join(self._blocks))

    def _close_block(self) -> None:
        self._blocks.append(self._block.digest())
        self._block, self._filled = xxhash.xxh3_128(), 0
