"""How a source's shards are cut into blocks and sequences, and in which permuted order an epoch goes through
them.

A full block holds the same number of sequences (Q); the last block of a shard, and the one that validation
cuts, hold fewer. Of these ragged blocks an epoch keeps the permuted positions, sorted, with the running
deficit: sequence i of the epoch then lies in position (i + deficit of the ragged blocks that end at or before
i) // Q.

A shard that an epoch reads r times stands r times in a row in the list of what the epoch goes through, and
each *listing* has blocks of its own, which lead to the same tokens. So the permutation stays one of blocks,
each read once. Memory is in the number of listings, which without repeats is that of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from lineage.index.blocks import BLOCK_TOKENS
from trainer.ordering.permutation import Int64s, Keys, derive, domain, permute, unpermute

_PLACED_AT_ONCE: Final = 1 << 16
"""Ragged blocks whose positions are found in one call, and those of one pass more."""


class Geometry:
    """The blocks and sequences of all sources, shard after shard. Arrays are by shard (all sources), by
    listing or by source."""

    def __init__(
        self,
        lengths: Sequence[Sequence[int]],
        seq_len: int,
        validation: float,
        repeats: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`repeats`: how often an epoch reads each shard, of the shape of `lengths`; none: once each."""
        self.seq_len = seq_len
        self.per_block = -(-BLOCK_TOKENS // seq_len)
        self.first_shard = np.concatenate(([0], np.cumsum([len(shards) for shards in lengths]))).astype(
            np.int64
        )
        self.length = np.array([length for shards in lengths for length in shards], np.int64)
        source_of = np.repeat(np.arange(len(lengths)), np.diff(self.first_shard))
        full, rest = np.divmod(self.length, BLOCK_TOKENS)
        per_shard = full * self.per_block + -(-rest // seq_len)
        times = (
            np.ones_like(self.length)
            if repeats is None
            else np.array([each for shards in repeats for each in shards], np.int64)
        )
        self._held_out = _held_out(source_of, per_shard, times, validation)
        self._first_held_out = np.concatenate(([0], np.cumsum(self._held_out)))
        self.num_validation = np.diff(self._first_held_out[self.first_shard])
        self._shard_of = np.repeat(np.arange(len(self.length)), times)
        self._first_listing = np.concatenate(([0], np.cumsum(times)))
        train = (per_shard - self._held_out)[self._shard_of]
        self.num_train = np.diff(
            np.concatenate(([0], np.cumsum(train)))[self._first_listing[self.first_shard]]
        )
        blocks = -(-train // self.per_block)
        # Only the last training block of a listing is not full: one number a listing says all.
        self._deficit = blocks * self.per_block - train
        self.first_block = np.concatenate(([0], np.cumsum(blocks)))
        source_edges = self.first_block[self._first_listing[self.first_shard]]
        self.num_blocks = np.diff(source_edges)
        self.source_first_block = source_edges[:-1]
        self._num_sequences = per_shard

    @property
    def num_listings(self) -> Int64s:
        """Shards of each source that an epoch goes through, one as often as it is read."""
        return np.diff(self._first_listing[self.first_shard])

    def ragged(self, source: int) -> tuple[Int64s, Int64s]:
        """The blocks of `source` that hold fewer than Q training sequences, and how many fewer."""
        first, end = self._first_listing[self.first_shard[source : source + 2]]
        deficit = self._deficit[first:end]
        # Blocks are numbered from 0 in each source: that is what the permutation runs over.
        last = self.first_block[1:][first:end] - 1 - self.source_first_block[source]
        return last[deficit > 0], deficit[deficit > 0]

    def place(self, source: Int64s, block: Int64s, within: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(shard, start, num_tokens) of sequence `within` of each source's `block`."""
        number = self.source_first_block[source] + block
        listing = _searchsorted(self.first_block, number) - 1
        start = (number - self.first_block[listing]) * BLOCK_TOKENS + within * self.seq_len
        shard = self._shard_of[listing]
        return shard - self.first_shard[source], start, self._tokens_at(shard, start)

    def _tokens_at(self, shard: Int64s, start: Int64s) -> Int64s:
        block_end = (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        return np.minimum(np.minimum(block_end, self.length[shard]) - start, self.seq_len)

    def held_out(self, source: int, number: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(shard, start, num_tokens) of the held-out sequences 0, 1, … of `source`, in shard order."""
        absolute = number + self._first_held_out[self.first_shard[source]]
        shard = np.searchsorted(self._first_held_out, absolute, side="right") - 1
        # They are the last ones of a shard.
        of_shard = absolute - self._first_held_out[shard + 1] + self._num_sequences[shard]
        block, within = np.divmod(of_shard, self.per_block)
        start = block * BLOCK_TOKENS + within * self.seq_len
        return shard - self.first_shard[source], start, self._tokens_at(shard, start)

    def covering(self, source: int, shard: int, start: int, num_tokens: int) -> tuple[Int64s, Int64s]:
        """(block, within) of every training sequence of `source` that holds some of the tokens, in each
        listing of the shard."""
        absolute = int(self.first_shard[source]) + shard
        end = min(start + num_tokens, int(self.length[absolute]))
        if end <= start:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        first, last = self._sequence_at(start), self._sequence_at(end - 1)
        # Held-out sequences are a shard's last ones, so what is trained on is a prefix.
        trained = int(self._num_sequences[absolute] - self._held_out[absolute])
        sequences = np.arange(first, min(last + 1, trained), dtype=np.int64)
        block, within = np.divmod(sequences, self.per_block)
        listings = np.arange(self._first_listing[absolute], self._first_listing[absolute + 1])
        begins = self.first_block[listings] - self.source_first_block[source]
        return (begins[:, None] + block).ravel(), np.tile(within, len(listings))

    def _sequence_at(self, token: int) -> int:
        """The sequence of its shard that holds `token`."""
        return token // BLOCK_TOKENS * self.per_block + token % BLOCK_TOKENS // self.seq_len


def _held_out(source_of: Int64s, num_sequences: Int64s, times: Int64s, validation: float) -> Int64s:
    """How many sequences of each shard are held out: of a source the last ones in shard order, round(v * N)
    of N. Where shards are read differently often, that many of those that are read equally often, so that
    what is held out is like what is trained on; of a shard that is never read none."""
    kinds, kind = np.unique(np.stack([source_of, times], axis=1), axis=0, return_inverse=True)
    order = np.argsort(kind.ravel(), kind="stable")
    edges = np.searchsorted(kind.ravel()[order], np.arange(len(kinds) + 1)).tolist()
    ends = np.concatenate(([0], np.cumsum(num_sequences[order])))
    found = np.zeros_like(num_sequences)
    for (_, each), first, end in zip(kinds.tolist(), edges[:-1], edges[1:], strict=True):
        held_out = round(validation * int(ends[end] - ends[first])) if each else 0
        shards = order[first:end]
        found[shards] = np.clip(ends[first + 1 : end + 1] - (ends[end] - held_out), 0, num_sequences[shards])
    return found


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
        passes = self._passes()
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

    def _passes(self) -> list[Pass]:
        ragged = [self._geometry.ragged(int(source)) for source in self.source]
        lengths = np.array([len(blocks) for blocks, _ in ragged], np.int64)
        # Many short passes are placed in one call, which takes as long as one of them; long ones a few at a
        # time, since a placing holds some arrays of their length.
        group = np.cumsum(lengths) // _PLACED_AT_ONCE
        found: list[Pass] = []
        for pairs in np.split(np.arange(len(ragged)), np.flatnonzero(np.diff(group)) + 1):
            blocks = np.concatenate([ragged[pair][0] for pair in pairs])
            positions = self._position_of(np.repeat(pairs, lengths[pairs]), blocks)
            placed = np.split(positions, np.cumsum(lengths[pairs])[:-1])
            found += [self._pass(each, ragged[pair][1]) for pair, each in zip(pairs, placed, strict=True)]
        return found

    def _pass(self, positions: Int64s, deficit: Int64s) -> Pass:
        """The pass of ragged blocks at these positions that fall short by so many sequences."""
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
