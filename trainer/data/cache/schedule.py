"""When each block is needed next: the order is known, so prefetch and eviction look ahead instead of
guessing.

Eviction drops what is needed furthest ahead (Belady, "A study of replacement algorithms for a virtual-storage
computer", 1966). The look-ahead grows by a few steps a step until it sees more blocks than the cache holds:
what lies beyond is needed later than everything within."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage.index.blocks import BLOCK_TOKENS
from trainer.data.dataset import Slice, rows_of_slice
from trainer.order import Order, Places

NEVER: Final = 1 << 62
_FIRST_STEPS: Final = 4
_STEPS_A_STEP: Final = 4
_STEPS_BEHIND: Final = (
    3  # what the slowest rank of a node may still be reading while the fastest makes batches ahead
)
_MOST_STEPS: Final = 1 << 14

BlockAt = tuple[int, int, int]
"""(source, shard, block number)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NeededBlock:
    step: int
    own: tuple[BlockAt, ...]
    node: tuple[BlockAt, ...]


class Schedule:
    """The blocks of the steps ahead: of this rank's rows (`part`), and of all rows of its node (`node`).

    Looks ahead until it has seen `num_blocks` different ones, or to the run's end. Safe from several
    threads."""

    def __init__(
        self, order: Order, part: Slice, node: tuple[Slice, ...], *, num_blocks: int, num_steps: int = NEVER
    ) -> None:
        self._order, self._part, self._node = order, part, node
        self._num_blocks, self._num_steps = num_blocks, num_steps
        self._ahead: deque[_NeededBlock] = deque()
        self._uses: dict[BlockAt, deque[int]] = {}
        self._upcoming: list[BlockAt] | None = None
        self._lock = threading.Lock()
        self.step = 0

    def at(self, step: int) -> None:
        """`step` is read next; a step other than the one expected plans anew."""
        with self._lock:
            if not self._ahead or not self.step <= step <= self._ahead[-1].step:
                self._ahead.clear()
                self._uses.clear()
                self._extend(step, _FIRST_STEPS)
            while self._ahead[0].step < step - _STEPS_BEHIND:
                self._forget(self._ahead.popleft())
            self._extend(self._ahead[-1].step + 1, _STEPS_A_STEP)
            self.step, self._upcoming = step, None

    def next_use(self, block: BlockAt) -> int:
        """The step at which the node needs `block` next (or needed it last, if just now); NEVER if not within
        sight."""
        with self._lock:
            uses = self._uses.get(block)
            return uses[0] if uses else NEVER

    def upcoming(self) -> list[BlockAt]:
        """The blocks of this rank's rows, by the step that needs them first."""
        with self._lock:
            if self._upcoming is None:
                coming = (needed.own for needed in self._ahead if needed.step >= self.step)
                self._upcoming = list(dict.fromkeys(block for blocks in coming for block in blocks))
            return self._upcoming

    def _extend(self, first: int, num_steps: int) -> None:
        for step in range(first, first + num_steps):
            far = (
                len(self._uses) >= self._num_blocks
                or len(self._ahead) >= _MOST_STEPS
                or step >= self._num_steps
            )
            if self._ahead and far:
                return
            needed = self._needed(step)
            self._ahead.append(needed)
            for block in needed.node:
                self._uses.setdefault(block, deque()).append(step)

    def _forget(self, needed: _NeededBlock) -> None:
        for block in needed.node:
            uses = self._uses[block]
            uses.popleft()
            if not uses:
                del self._uses[block]

    def _needed(self, step: int) -> _NeededBlock:
        size = self._order.plan.global_batch
        numbers = np.arange(step * size, (step + 1) * size, dtype=np.int64)
        _, places = rows_of_slice(numbers, self._order.locate(numbers), Slice())
        own = _blocks(places, *self._part.bounds(size))
        node = dict.fromkeys(block for part in self._node for block in _blocks(places, *part.bounds(size)))
        return _NeededBlock(step=step, own=own, node=tuple(node))


def _blocks(places: Places, low: int, high: int) -> tuple[BlockAt, ...]:
    """The different blocks of rows [low, high) of a batch sorted by place, in their order."""
    rows = zip(
        places.source[low:high].tolist(),
        places.shard[low:high].tolist(),
        (places.start[low:high] // BLOCK_TOKENS).tolist(),
        strict=True,
    )
    return tuple(dict.fromkeys(rows))
