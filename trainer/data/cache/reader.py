"""Blocks through the cache folder: found there, fetched ahead of their use, or streamed where the disk fails.

1. The schedule says which blocks the next steps need; a few threads fetch those that are missing.
2. A block that a row needs now and that is not there is fetched at once, or waited for where another process
  fetches
   it. So ranks of a node that need the same tokens (tensor, pipeline and context peers) read once: one process fetches
   a block, all that need it map the same pages, and each copies its rows from there, as its own device needs them.
3. Room is made by dropping what the node needs furthest ahead.
4. A full or failing disk, or a cache full of blocks needed now, costs speed only: the block is kept in memory
  a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage.index.blocks import BLOCK_BYTES, TOKEN_BYTES, block_digest
from lineage.storage.folder import StorageError
from trainer.data.blocks import Tokens
from trainer.data.cache.fetch import expected_digest, fetch_block
from trainer.data.cache.folder import CacheFolder, Claim, DiskError, key_of
from trainer.data.cache.schedule import NEVER, BlockAt, Schedule
from trainer.data.corpus import Corpus, ShardFile
from trainer.data.dataset import Slice
from trainer.data.figures import ReadFigures
from trainer.order import Order

_log = logging.getLogger(__name__)
_IDLE_SECONDS: Final = (
    0.5  # how long a fetching thread sleeps where nothing can be fetched, unless a step begins
)
_LOOKS: Final = 8  # times a block is looked up again because it was dropped between fetching and opening


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Where the cache lies, its bound, and how many blocks a node fetches ahead at once. `node`: the slices
    of the ranks that share the folder (none: only this rank's); `num_processes`: how many processes those
    are, peers that get the same slice counted too (none: one a slice). `num_steps`: nothing is fetched ahead
    for later ones."""

    folder: str
    max_bytes: int
    prefetch_blocks: int
    node: tuple[Slice, ...] = ()
    num_processes: int | None = None
    num_steps: int = NEVER


def needed_bytes(corpus: Corpus, order: Order, prefetch_blocks: int) -> int:
    """The least bound of a cache: a window of each source that is read together, and the blocks in flight."""
    bytes_of = {
        source: sum(s.num_tokens for s in shards) * TOKEN_BYTES for source, shards in corpus.sources.items()
    }
    window = order.plan.window_blocks * BLOCK_BYTES
    windows = (
        sum(min(window, bytes_of[source]) for source, count in segment.counts if count)
        for segment in order.plan.segments
    )
    return max(windows) + prefetch_blocks * BLOCK_BYTES


class CachedBlocks:
    """A BlockReader over a cache folder. ValueError if the folder's bound is too small for the order."""

    def __init__(self, corpus: Corpus, order: Order, part: Slice, options: CacheOptions) -> None:
        needed = needed_bytes(corpus, order, options.prefetch_blocks)
        if options.max_bytes < needed:
            raise ValueError(
                f"max_bytes is {options.max_bytes}: expected at least {needed}, which hold the active windows"
                f" (window_blocks = {order.plan.window_blocks}) and the {options.prefetch_blocks} blocks in flight"
            )
        self.figures = ReadFigures()
        self._shards = [corpus.sources.get(source, ()) for source in order.plan.sources]
        self._folder = CacheFolder(options.folder, options.max_bytes)
        node = options.node or (part,)
        most = 2 * options.max_bytes // BLOCK_BYTES
        self._schedule = Schedule(order, part, node, num_blocks=most, num_steps=options.num_steps)
        self._places_of: dict[str, list[tuple[int, int]]] = {}
        for source, shards in enumerate(self._shards):
            for number, shard in enumerate(shards):
                self._places_of.setdefault(shard.hash, []).append((source, number))
        self._open: dict[str, Tokens] = {}
        self._streamed: OrderedDict[str, Tokens] = OrderedDict()
        self._most_streamed = max(2, options.prefetch_blocks)
        self._in_hand: set[BlockAt] = set()
        self._lock = threading.Lock()
        self._wake, self._closed = threading.Condition(), False
        self._prepare(corpus)
        num_threads = max(1, options.prefetch_blocks // (options.num_processes or len(node)))
        self._threads = [threading.Thread(target=self._fetch_ahead, daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def at(self, step: int) -> None:
        """See BlockReader. Unmaps blocks that were dropped from the folder."""
        self._schedule.at(step)
        with self._lock:
            for key in [key for key in self._open if not self._folder.has(key)]:
                del self._open[key]
        with self._wake:
            self._wake.notify_all()

    def block(self, shard: ShardFile, number: int) -> Tokens:
        """See BlockReader."""
        key = key_of(shard, number)
        held = self._open.get(key)
        if held is None:
            held = self._streamed.get(key)
        if held is not None:
            self.figures.count("hits")
            return held
        began = time.perf_counter()
        tokens = self._find(shard, number, key)
        self.figures.count("misses" if tokens is None else "hits")
        if tokens is None:
            tokens = self._obtain(shard, number, key)
        self.figures.count("wait_seconds", time.perf_counter() - began)
        return tokens

    def close(self) -> None:
        """Stop the threads; blocks on disk stay for the next run."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()
        with self._lock:
            self._open.clear()
            self._streamed.clear()

    def _prepare(self, corpus: Corpus) -> None:
        try:
            dropped = self._folder.prepare(corpus.hashes)
        except DiskError as error:
            self._note_disk_error(error)
        else:
            if dropped:
                _log.info(
                    "dropped %d blocks from %s that the index does not name", dropped, self._folder.path
                )

    def _find(self, shard: ShardFile, number: int, key: str) -> Tokens | None:
        """The block if it is in the folder, checked: another process may have dropped and written it anew
        since this one last looked. A damaged one is dropped."""
        try:
            tokens = self._folder.open(key)
            if tokens is None:
                return None
            expected = expected_digest(shard, number, self.figures, self._is_closed)
            if block_digest(tokens.data.cast("B")) != expected:
                self.figures.count("damaged_blocks")
                self._folder.remove(key)
                return None
        except DiskError as error:
            self._note_disk_error(error)
            return None
        with self._lock:
            self._open[key] = tokens
        return tokens

    def _obtain(self, shard: ShardFile, number: int, key: str) -> Tokens:
        """The block, through the folder or past it."""
        # Another process may drop a block between its publication and our look, for one that is needed
        # sooner: then it is fetched or waited for again. After a few turns it is streamed, which no other
        # process can undo.
        for _ in range(_LOOKS):
            try:
                data = self._fetch_into_folder(shard, number, key)
            except DiskError as error:
                self._note_disk_error(error)
                break
            if data is not None:
                return self._keep_in_memory(key, data)
            tokens = self._find(shard, number, key)
            if tokens is not None:
                return tokens
        return self._keep_in_memory(key, fetch_block(shard, number, self.figures, self._is_closed))

    def _fetch_into_folder(self, shard: ShardFile, number: int, key: str) -> bytes | None:
        """Fetch a block that is needed now, or wait until another process has. Where it would push out what
        is needed as soon, it is fetched past the folder: then its bytes are returned."""
        claim = self._folder.claim(key, self._is_closed)
        if claim is None:
            return None
        return self._fetch_claimed(claim, shard, number, self._schedule.step, urgent=True)[1]

    def _fetch_claimed(
        self, claim: Claim, shard: ShardFile, number: int, use: int, *, urgent: bool
    ) -> tuple[bool, bytes | None]:
        """Whether the claimed block, which step `use` needs, is in the folder now; if not, and it is
        `urgent`, its bytes."""
        # Room is reserved before the fetch, so that a full disk is met while nothing is lost. The claim is
        # dropped on every way out but publication: a process that waits for it would otherwise wait as long
        # as this one lives.
        key, published = key_of(shard, number), False
        try:
            dropped = self._folder.make_room(key, claim, self._rank, use)
            self.figures.count("evictions", dropped or 0)
            if dropped is None and not urgent:
                return False, None
            data = fetch_block(shard, number, self.figures, self._is_closed)
            if dropped is None:
                return False, data
            claim.publish(data)
            published = True
            return True, None
        finally:
            if not published:
                claim.drop()

    def _is_closed(self) -> bool:
        return self._closed

    def _fetch_ahead(self) -> None:
        """What each of the fetching threads does until the reader is closed."""
        elsewhere: set[BlockAt] = set()
        while not self._closed:
            block = self._next_missing(elsewhere)
            goes_on = False
            if block is not None:
                try:
                    goes_on = self._fetch_one_ahead(block, elsewhere)
                finally:
                    with self._lock:
                        self._in_hand.discard(block)
            if not goes_on:
                elsewhere.clear()
                with self._wake:
                    self._wake.wait_for(lambda: self._closed, _IDLE_SECONDS)

    def _next_missing(self, elsewhere: set[BlockAt]) -> BlockAt | None:
        """The block that is needed first of those that this process neither has nor fetches and that are not
        `elsewhere`; it is in hand from now on."""
        try:
            present = self._folder.keys()
        except DiskError as error:
            self._note_disk_error(error)
            return None
        with self._lock:
            for block in self._schedule.upcoming():
                taken = block in self._in_hand or block in elsewhere
                if not taken and key_of(*self._shard_at(block)) not in present:
                    self._in_hand.add(block)
                    return block
        return None

    def _fetch_one_ahead(self, block: BlockAt, elsewhere: set[BlockAt]) -> bool:
        """Fetch a block unless another process does, then it is `elsewhere`; False: to go on is of no use
        now."""
        shard, number = self._shard_at(block)
        try:
            claim = self._folder.claim(key_of(shard, number), self._is_closed, wait=False)
            if claim is None:
                elsewhere.add(block)
                return True
            return self._fetch_claimed(claim, shard, number, self._schedule.next_use(block), urgent=False)[0]
        except DiskError as error:
            self._note_disk_error(error)
        except (StorageError, FileNotFoundError) as error:
            # The step that needs the block will meet this error itself, unless it has passed by then.
            _log.warning("block %d of %s could not be fetched ahead: %s", number, shard.file, error)
        return False

    def _shard_at(self, block: BlockAt) -> tuple[ShardFile, int]:
        source, shard, number = block
        return self._shards[source][shard], number

    def _rank(self, key: str) -> int:
        """When the node needs the block of `key` next."""
        content, number, _ = key.split("-")
        return min(
            (self._schedule.next_use((*place, int(number))) for place in self._places_of.get(content, ())),
            default=NEVER,
        )

    def _keep_in_memory(self, key: str, data: bytes) -> Tokens:
        tokens = np.frombuffer(data, "<u4")
        self.figures.count("streamed_blocks")
        with self._lock:
            self._streamed[key] = tokens
            while len(self._streamed) > self._most_streamed:
                self._streamed.popitem(last=False)
        return tokens

    def _note_disk_error(self, error: DiskError) -> None:
        if self.figures.disk_errors == 0:
            _log.warning("the block cache fails, blocks are streamed past it: %s", error)
        self.figures.count("disk_errors")
