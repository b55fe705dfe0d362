"""How a source's shards are cut into blocks and sequences, and in which permuted order an epoch goes through
them.

A full block holds the same number of sequences (Q); the last block of a shard, and the one that validation
cuts, hold fewer. Of these ragged blocks an epoch keeps the permuted positions, sorted, with the running
deficit: sequence i of the epoch then lies in position (i + deficit of the ragged blocks that end at or before
i) // Q. Memory is in the number of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lineage.index.blocks import BLOCK_TOKENS
from trainer.ordering.permutation import Int64s, Keys, derive, domain, permute, unpermute


class Geometry:
    """The blocks and sequences of all sources, shard after shard. Arrays are by shard (all sources) or by
    source."""

    def __init__(self, lengths: Sequence[Sequence[int]], seq_len: int, validation: float) -> None:
        self.seq_len = seq_len
        self.per_block = -(-BLOCK_TOKENS // seq_len)
        self.first_shard = np.concatenate(([0], np.cumsum([len(shards) for shards in lengths]))).astype(
            np.int64
        )
        self.length = np.array([length for shards in lengths for length in shards], np.int64)
        source_of = np.repeat(np.arange(len(lengths)), np.diff(self.first_shard))
        full, rest = np.divmod(self.length, BLOCK_TOKENS)
        per_shard = full * self.per_block + -(-rest // seq_len)
        self.first_sequence = np.concatenate(([0], np.cumsum(per_shard)))
        totals = np.diff(self.first_sequence[self.first_shard])
        self.num_validation = np.array([round(validation * int(total)) for total in totals], np.int64)
        self.num_train = totals - self.num_validation
        source_first = self.first_sequence[self.first_shard[:-1]]
        before = self.first_sequence[:-1] - source_first[source_of]
        train = np.clip(self.num_train[source_of] - before, 0, per_shard)
        blocks = -(-train // self.per_block)
        self._deficit = blocks * self.per_block - train
        self.first_block = np.concatenate(([0], np.cumsum(blocks)))
        self.num_blocks = np.diff(self.first_block[self.first_shard])
        self.source_first_block = self.first_block[self.first_shard[:-1]]

    def ragged(self, source: int) -> tuple[Int64s, Int64s]:
        """The blocks of `source` that hold fewer than Q training sequences, and how many fewer."""
        shards = slice(self.first_shard[source], self.first_shard[source + 1])
        deficit = self._deficit[shards]
        last = self.first_block[1:][shards] - 1 - self.source_first_block[source]
        return last[deficit > 0], deficit[deficit > 0]

    def place(self, source: Int64s, block: Int64s, within: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(shard, start, num_tokens) of sequence `within` of each source's `block`."""
        number = self.source_first_block[source] + block
        shard = _searchsorted(self.first_block, number) - 1
        start = (number - self.first_block[shard]) * BLOCK_TOKENS + within * self.seq_len
        return shard - self.first_shard[source], start, self._tokens_at(shard, start)

    def _tokens_at(self, shard: Int64s, start: Int64s) -> Int64s:
        block_end = (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        return np.minimum(np.minimum(block_end, self.length[shard]) - start, self.seq_len)

    def in_shard_order(self, source: int, number: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(shard, start, num_tokens) of each sequence `number` of `source` counted in shard order, held out
        or not."""
        absolute = number + self.first_sequence[self.first_shard[source]]
        shard = np.searchsorted(self.first_sequence, absolute, side="right") - 1
        block, within = np.divmod(absolute - self.first_sequence[shard], self.per_block)
        start = block * BLOCK_TOKENS + within * self.seq_len
        return shard - self.first_shard[source], start, self._tokens_at(shard, start)

    def covering(self, source: int, shard: int, start: int, num_tokens: int) -> tuple[Int64s, Int64s]:
        """(block, within) of every training sequence of `source` that holds some of the tokens."""
        absolute = int(self.first_shard[source]) + shard
        end = min(start + num_tokens, int(self.length[absolute]))
        if end <= start:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        first, last = self._sequence_at(start), self._sequence_at(end - 1)
        block, within = np.divmod(np.arange(first, last + 1, dtype=np.int64), self.per_block)
        number = block + (self.first_block[absolute] - self.source_first_block[source])
        fill = np.full(len(block), self.per_block)
        is_last = block == self.first_block[absolute + 1] - self.first_block[absolute] - 1
        fill -= is_last * self._deficit[absolute]
        held = (number < self.first_block[absolute + 1] - self.source_first_block[source]) & (within < fill)
        return number[held], within[held]

    def _sequence_at(self, token: int) -> int:
        """The sequence of its shard that holds `token`."""
        return token // BLOCK_TOKENS * self.per_block + token % BLOCK_TOKENS // self.seq_len


def _searchsorted(edges: Int64s, values: Int64s) -> Int64s:
    """`edges.searchsorted(values, "right")`; on values in no order it is several times faster to sort them
    first, since then neither the cache nor the branch predictor is surprised."""
    order = np.argsort(values)
    found = np.empty(len(values), np.int64)
    found[order] = edges.searchsorted(values[order], side="right")
    return found


class Pass(NamedTuple):
    """The ragged blocks of one epoch of one source, in permuted order."""

    position: Int64s
    """Where each comes, sorted."""
    end: Int64s
    """The epoch's sequences up to and with it."""
    deficit: Int64s
    """Running deficit before each, and after the last: one entry more."""


class Passes:
    """Several (source, epoch) pairs side by side, so that one look-up serves a batch that mixes them."""

    def __init__(
        self, geometry: Geometry, window_blocks: int, pairs: Sequence[tuple[int, int]], keys: Keys
    ) -> None:
        """`keys`: the key of each pair, shape (len(pairs),)."""
        self._geometry, self._window_blocks = geometry, window_blocks
        self.source = np.array([source for source, _ in pairs], np.int64)
        self._block_key = derive(keys, np.zeros(len(pairs), np.int64))
        self._window_key = derive(keys, np.ones(len(pairs), np.int64))
        self._num_blocks = geometry.num_blocks[self.source]
        passes = [self._pass(number) for number in range(len(pairs))]
        self._first = np.concatenate(([0], np.cumsum([len(each.position) for each in passes]))).astype(
            np.int64
        )
        # One sorted array for all pairs: pair p's entries are raised by p times a stride above them all.
        self._stride = int(geometry.num_blocks.max(initial=0) + 1) * geometry.per_block
        raised = [each.end + number * self._stride for number, each in enumerate(passes)]
        self._ends = np.concatenate(raised) if raised else np.empty(0, np.int64)
        placed = [each.position + number * self._stride for number, each in enumerate(passes)]
        self._positions = np.concatenate(placed) if placed else np.empty(0, np.int64)
        self._deficit = np.concatenate([each.deficit for each in passes])

    def _pass(self, pair: int) -> Pass:
        blocks, deficit = self._geometry.ragged(int(self.source[pair]))
        positions = self._position_of(np.full(len(blocks), pair, np.int64), blocks)
        order = np.argsort(positions)
        # `running[k]`: by how many sequences the first k ragged blocks fall short. Were every block full, a
        # block would end at (position + 1) * Q; it ends earlier by what it and the ragged blocks before it
        # fall short.
        position, running = positions[order], np.concatenate(([0], np.cumsum(deficit[order])))
        return Pass(position, (position + 1) * self._geometry.per_block - running[1:], running)

    def _blocks_under(self, pair: Int64s) -> tuple[Int64s, Keys]:
        return self._num_blocks[pair], self._block_key[pair]

    def _position_of(self, pair: Int64s, block: Int64s) -> Int64s:
        return unpermute(block, domain(*self._blocks_under(pair)))

    def _padded(self, pair: Int64s, index: Int64s) -> Int64s:
        """Sequence `index` of each pass, counted as if every block were full: position * Q + place in the
        block."""
        # Each ragged block that ended at or before `index` moves it on by its deficit. Ends rise with
        # positions, so a binary search counts these blocks, and their deficits are already summed. A pass has
        # one sum more than it has ragged blocks, hence `+ pair` where passes lie end to end.
        ended = np.searchsorted(self._ends, index + pair * self._stride, side="right")
        padded: Int64s = index + self._deficit[ended + pair]
        return padded

    def _starts(self, pair: Int64s, position: Int64s) -> Int64s:
        """Sequences of each pass before `position`."""
        ragged = np.searchsorted(self._positions, position + pair * self._stride)
        starts: Int64s = position * self._geometry.per_block - self._deficit[ragged + pair]
        return starts

    def _window(self, pair: Int64s, position: Int64s) -> tuple[Int64s, Int64s, Keys]:
        """(first sequence, number of sequences, key) of the window of each position."""
        number = position // self._window_blocks
        first = number * self._window_blocks
        start = self._starts(pair, first)
        end = self._starts(pair, np.minimum(first + self._window_blocks, self._num_blocks[pair]))
        return start, end - start, derive(self._window_key[pair], number)

    def locate(self, pair: Int64s, index: Int64s) -> tuple[Int64s, Int64s]:
        """(block, within) of the `index`-th sequence of each pass."""
        block, within = np.empty_like(index), np.empty_like(index)
        order = np.argsort(index + pair * self._stride)  # see _searchsorted
        block[order], within[order] = self._locate_sorted(pair[order], index[order])
        return block, within

    def _locate_sorted(self, pair: Int64s, index: Int64s) -> tuple[Int64s, Int64s]:
        start, size, key = self._window(pair, self._padded(pair, index) // self._geometry.per_block)
        shuffled = start + permute(index - start, domain(size, key))
        position, within = np.divmod(self._padded(pair, shuffled), self._geometry.per_block)
        return permute(position, domain(*self._blocks_under(pair))), within

    def find(self, pair: Int64s, block: Int64s, within: Int64s) -> Int64s:
        """Which sequence of each pass reads (block, within): the inverse of `locate`."""
        position = self._position_of(pair, block)
        start, size, key = self._window(pair, position)
        return start + unpermute(self._starts(pair, position) + within - start, domain(size, key))


def num_validated(held: int, most: int | None) -> int:
    """How many of a source's held-out sequences an evaluation reads, where it reads `most` of each (None:
    all)."""
    return held if most is None else min(held, most)
