"""Blocks of shards as arrays: the digests that guard them, and the reader of shards on a local disk.

A shard on a local disk is memory-mapped and not copied: the page cache is the cache, shared by all ranks of
the node. What lies elsewhere comes through `trainer.data.cache`."""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections import OrderedDict
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from lineage.ids import content_hash
from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS, DIGEST_BYTES, TOKEN_BYTES, block_digest
from lineage.storage.folder import Folder, StorageError, local_path
from trainer.data.corpus import ShardFile
from trainer.data.figures import ReadFigures

Tokens = npt.NDArray[np.uint32]

_OPEN_SHARDS: Final = 1024  # maps kept open: far below the usual limit of 65,530 maps of a process


class DamagedBlockError(StorageError):
    """A block does not hold what its shard's .blocks file says, however often it was read."""


class BlockReader(Protocol):
    """Where the tokens come from. FileNotFoundError: the shard is gone, as after a purge; the index says
    more."""

    @property
    def figures(self) -> ReadFigures:
        """What reading has cost so far."""

    def at(self, step: int) -> None:
        """The batch of `step` is read next, and those after it follow: for readers that fetch ahead."""

    def block(self, shard: ShardFile, number: int) -> Tokens:
        """The tokens of block `number` of `shard`, checked against their digest; not to be written to."""

    def close(self) -> None:
        """Close files and end threads."""


def block_tokens(shard: ShardFile, number: int) -> int:
    """How many tokens block `number` of `shard` has."""
    return min(BLOCK_TOKENS, shard.num_tokens - number * BLOCK_TOKENS)


@functools.lru_cache(maxsize=4096)
def digests(shard: ShardFile) -> bytes:
    """The content of the shard's .blocks file, checked against the index: 16 bytes for each block."""
    data = Folder(shard.folder).read(shard.blocks_file)
    if content_hash(data).hex() != shard.blocks_hash:
        raise DamagedBlockError(
            f"{shard.folder}/{shard.blocks_file} has hash {content_hash(data).hex()}, the index says "
            f"{shard.blocks_hash}: restore it from a copy"
        )
    return data


def digest_of(shard: ShardFile, number: int) -> bytes:
    """The digest that block `number` must have."""
    return digests(shard)[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]


class LocalBlocks:
    """Shards on a local disk, memory-mapped; each block is checked when this process first touches it."""

    def __init__(self, *, verify: bool = True) -> None:
        self.figures = ReadFigures()
        self._verify = verify
        self._maps: OrderedDict[ShardFile, tuple[Tokens, bytearray]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, step: int) -> None:
        """Nothing to do: the page cache reads ahead."""

    def block(self, shard: ShardFile, number: int) -> Tokens:
        """See BlockReader."""
        held = self._maps.get(shard)
        tokens, checked = held if held is not None else self._open(shard)
        block = tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]
        if not checked[number]:
            if self._verify and block_digest(block.data.cast("B")) != digest_of(shard, number):
                raise DamagedBlockError(
                    f"block {number} of {shard.folder}/{shard.file} does not have its digest: run `sluice"
                    " verify` and restore the file from a copy"
                )
            checked[number] = 1
        return block

    def _open(self, shard: ShardFile) -> tuple[Tokens, bytearray]:
        path = os.path.join(local_path(shard.folder), shard.file)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.num_tokens * TOKEN_BYTES:
                raise DamagedBlockError(
                    f"{path} has {size} bytes, the index says {shard.num_tokens} tokens of {TOKEN_BYTES}: restore it"
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        held = (np.frombuffer(mapped, "<u4"), bytearray(-(-size // BLOCK_BYTES)))
        with self._lock:
            self._maps[shard] = held
            while len(self._maps) > _OPEN_SHARDS:
                self._maps.popitem(last=False)
        return held

    def close(self) -> None:
        """Forget every map; the pages go when the last array over them does."""
        with self._lock:
            self._maps.clear()
