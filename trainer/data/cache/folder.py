"""The cache folder: blocks as files on a local disk, shared by all processes of a node, never more than its
bound.

    <key>.block  a whole block; the key holds the shard's content hash, the block's number and its bytes
    <key>.part   one that is being fetched, by the holder of its flock; the kernel releases that on death
    ledger.lock  held while room is made; the folder's names and sizes are the ledger, so no crash can falsify it

A .part is given its full size before the first byte comes, so partial downloads count and a full disk is met
early."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from lineage.index.blocks import TOKEN_BYTES
from lineage.storage.folder import is_remote, local_path
from lineage.storage.lock import try_lock
from trainer.data.blocks import Tokens, block_tokens
from trainer.data.corpus import ShardFile
from trainer.options import TrainRecipe

_POLL_SECONDS: Final = 0.002
_READ_BYTES: Final = 1 << 20
_BLOCK, _PART = ".block", ".part"


class DiskError(Exception):
    """The cache's disk does not do what it should: full, failing, read-only. The caller streams instead."""


@contextmanager
def _disk(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(f"{what}: {error}") from error


def key_of(shard: ShardFile, number: int) -> str:
    """The name of a block's content: a purged shard has another hash, so its old blocks are never asked
    for."""
    return f"{shard.hash}-{number:05d}-{block_tokens(shard, number) * TOKEN_BYTES}"


def _size_of(key: str) -> int:
    return int(key.rpartition("-")[2])


class Claim:
    """The right to fetch one block: the flock on its .part. A `publish` that succeeds, or `drop`, ends it."""

    def __init__(self, descriptor: int, part: Path, block: Path) -> None:
        self._descriptor, self._part, self._block = descriptor, part, block

    def reserve(self, size: int) -> None:
        """Take the bytes on disk that the block will need. DiskError: there are none."""
        with _disk(f"no room for {size} bytes at {self._part.parent}"):
            os.posix_fallocate(self._descriptor, 0, size)

    def publish(self, data: bytes) -> None:
        """Make `data` the block, whole or not at all."""
        with _disk(f"{self._part} cannot be written"):
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, memoryview(data)[done:], done)
            os.rename(self._part, self._block)
        os.close(self._descriptor)

    def drop(self) -> None:
        """Leave the block to others."""
        # Unlinked while the lock is held: no other process can claim the file that vanishes.
        self._part.unlink(missing_ok=True)
        os.close(self._descriptor)


class CacheFolder:
    """The blocks below `folder`, at most `max_bytes` of them, unfinished ones included."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.path, self._max_bytes = Path(folder), max_bytes

    def prepare(self, hashes: Collection[str]) -> int:
        """Make the folder; drop blocks of shards not in `hashes` and what dead processes left. Says how many
        blocks were dropped. DiskError where the disk does not let us."""
        dropped = 0
        with _disk(f"{self.path} cannot be used as a cache"):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in os.listdir(self.path):
                if name.endswith(_BLOCK) and name.partition("-")[0] not in hashes:
                    (self.path / name).unlink(missing_ok=True)
                    dropped += 1
                elif name.endswith(_PART):
                    self._drop_if_dead(self.path / name)
        return dropped

    def has(self, key: str) -> bool:
        """Whether the block is there whole."""
        return os.path.exists(self.path / (key + _BLOCK))

    def open(self, key: str) -> Tokens | None:
        """The block's tokens, memory-mapped; None if it is not there, or was there with another size. Not
        checked."""
        try:
            with open(self.path / (key + _BLOCK), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != _size_of(key):
                    self.remove(
                        key
                    )  # else it would be streamed past for ever: names and sizes are the ledger
                    return None
                self._read_through(file.fileno(), key)
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "<u4")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DiskError(f"{self.path / key} cannot be read: {error}") from error

    def _read_through(self, descriptor: int, key: str) -> None:
        """Read a block before it is mapped: where the disk fails, a read is an error, and a map the end of
        the process (SIGBUS). What cannot be read is dropped."""
        try:
            for at in range(0, _size_of(key), _READ_BYTES):
                os.pread(descriptor, _READ_BYTES, at)
        except OSError:
            self.remove(key)
            raise

    def keys(self) -> set[str]:
        """The keys of all whole blocks."""
        with _disk(f"{self.path} cannot be listed"):
            return {name.removesuffix(_BLOCK) for name in os.listdir(self.path) if name.endswith(_BLOCK)}

    def remove(self, key: str) -> None:
        """Drop a block, as one that is damaged."""
        with _disk(f"{key} cannot be removed"):
            (self.path / (key + _BLOCK)).unlink(missing_ok=True)

    def claim(self, key: str, give_up: Callable[[], bool], *, wait: bool = True) -> Claim | None:
        """The right to fetch the block. None: it is there now, or `give_up`, or another process fetches it
        and we do not `wait` for that."""
        # The lock is on the .part's inode, and between open and lock its holder may publish (rename) or drop
        # (unlink) it: so a lock counts only while the name still leads to the locked inode. The holder of one
        # that counts looks for the block again, which may have been published before our open, which then
        # made a new .part. The loop ends because each turn waits for a live holder, who publishes, drops or
        # dies; death releases a flock.
        part, block = self.path / (key + _PART), self.path / (key + _BLOCK)
        while not give_up():
            with _disk(f"{part} cannot be made"):
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
            claim = Claim(descriptor, part, block)
            if not _locked(descriptor, part):
                os.close(descriptor)
                if not wait:
                    return None
                time.sleep(_POLL_SECONDS)
            elif not _is_at(descriptor, part):
                os.close(descriptor)  # published or dropped between opening and locking
            elif block.exists():
                claim.drop()
                return None
            else:
                return claim
            if block.exists():
                return None
        return None

    def make_room(self, key: str, claim: Claim, rank: Callable[[str], int], use: int) -> int | None:
        """Reserve the claimed block's bytes, dropping blocks that are needed later than `use`, the latest
        first.

        `rank` gives the step at which a key is needed next. Returns how many blocks were dropped; None (and
        no reservation) if all that is there is needed sooner."""
        # Room is counted and reserved under one lock: two processes that saw the same free bytes would
        # overfill the folder. Our own .part is still empty here, so it is not counted twice.
        size, dropped = _size_of(key), 0
        with self._ledger():
            present = self.keys()
            used = sum(map(_size_of, present)) + self._unfinished()
            candidates = sorted(((rank(name), name) for name in present), reverse=True)
            for later, name in candidates:
                if used + size <= self._max_bytes or later <= use:
                    break
                with _disk(f"{name} cannot be removed"):
                    (self.path / (name + _BLOCK)).unlink(missing_ok=True)
                used -= _size_of(name)
                dropped += 1
            if used + size > self._max_bytes:
                return None
            claim.reserve(size)
        return dropped

    def used_bytes(self) -> int:
        """Bytes of all blocks, unfinished ones included."""
        return sum(map(_size_of, self.keys())) + self._unfinished()

    def _unfinished(self) -> int:
        total = 0
        with _disk(f"{self.path} cannot be listed"):
            for entry in os.scandir(self.path):
                if entry.name.endswith(_PART):
                    try:
                        total += entry.stat().st_size
                    except FileNotFoundError:
                        continue  # published in this moment, by a process that reserved it before
        return total

    @contextmanager
    def _ledger(self) -> Iterator[None]:
        with _disk(f"{self.path} cannot be locked"):
            descriptor = os.open(self.path / "ledger.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with _disk(f"{self.path} cannot be locked"):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _drop_if_dead(self, part: Path) -> None:
        try:
            descriptor = os.open(part, os.O_RDWR)
        except FileNotFoundError:
            return
        if _locked(descriptor, part) and _is_at(descriptor, part):
            part.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(descriptor: int, part: Path) -> bool:
    """`try_lock`; DiskError where the file system has no locks."""
    with _disk(f"{part} cannot be fetched to"):
        return try_lock(descriptor, str(part))


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def cache_folder(recipe: TrainRecipe) -> str | None:
    """The folder of the block cache; None where shards are read in place (local ones, and no
    train.cache.dir)."""
    table = recipe.train
    if table.cache.dir is not None:
        return local_path(table.cache.dir)
    if not any(is_remote(entry.out) for entry in table.outs):
        return None
    if is_remote(table.output):
        return os.path.join(tempfile.gettempdir(), "sluice-cache")
    return os.path.join(local_path(table.output), "cache")
