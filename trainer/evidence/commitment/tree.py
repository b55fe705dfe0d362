"""A Merkle tree over sorted leaves, as RFC 9162 (section 2.1) has it: the hash of a leaf begins with a zero byte, that
of two nodes with a one, and n leaves are split behind the largest power of two below n.

A leaf is (head, key, readings, first step, last step). Its hash shows nothing of what it holds: a salt blinds the
values, and of the key only the head can be shown without the rest, as many first bits as tell n leaves apart in most
cases (`head_bits`). deploy/verify_proof.py has the same in reverse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np

LEAF: Final = np.dtype([("key", "V32"), ("readings", "<u8"), ("first_step", "<u8"), ("last_step", "<u8")])
"""A leaf as it is stored: 56 bytes."""
BLOCK_LEAVES: Final = 1024
"""Leaves of a block: a complete subtree whose hash is stored, so that a proof reads one block and the hashes of all."""
EMPTY: Final = sha256(b"").digest()


class LeafParts(NamedTuple):
    """What the hash of a leaf is made of: `rest` is the hash of the blinded values, `inner` that of key and rest."""

    head: int
    key: bytes
    salt: bytes
    rest: bytes
    inner: bytes

    @property
    def hash(self) -> bytes:
        """The leaf's hash."""
        return sha256(b"\0" + self.head.to_bytes(8, "big") + self.inner).digest()


def head_bits(num_leaves: int) -> int:
    """How many first bits of a key are its head: among n random keys three of four neighbours of another key differ
    from it there."""
    return min(num_leaves.bit_length() + 2, 64)


def leaf_parts(row: bytes, secret: bytes, bits: int) -> LeafParts:
    """The parts of a stored leaf (`LEAF`), in a tree with heads of so many bits."""
    key, values = row[:32], row[32:]
    salt = sha256(secret + key).digest()[:16]
    rest = sha256(salt + values).digest()
    head = int.from_bytes(key[:8], "big") >> (64 - bits)
    return LeafParts(head, key, salt, rest, sha256(key + rest).digest())


def leaf_hashes(rows: bytes, secret: bytes, bits: int) -> list[bytes]:
    """The hashes of stored leaves, in their order."""
    size = LEAF.itemsize
    return [leaf_parts(rows[at : at + size], secret, bits).hash for at in range(0, len(rows), size)]


def root_of(hashes: Sequence[bytes]) -> bytes:
    """The hash of the tree over these leaves, or over the hashes of complete blocks of them and what is left."""
    level = list(hashes)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else EMPTY


def path_of(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes beside the way from a leaf to the root, from below."""
    level, path = list(hashes), []
    while len(level) > 1:
        beside = index ^ 1
        if beside < len(level):
            path.append(level[beside])
        level, index = _above(level), index >> 1
    return path


def block_hashes(blocks: Iterable[bytes], secret: bytes, bits: int) -> list[bytes]:
    """The hash of each block of stored leaves."""
    return [root_of(leaf_hashes(rows, secret, bits)) for rows in blocks]


def _above(level: Sequence[bytes]) -> list[bytes]:
    pairs = [sha256(b"\1" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
    return [*pairs, level[-1]] if len(level) % 2 else pairs
