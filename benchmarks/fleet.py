"""The order at full size, without processes: 16,384 ranks, 15 trillion tokens, 5 epochs, 20 world sizes with
failures.

Every token is read exactly once an epoch if four things hold, each of which is an arithmetic of intervals or
a bijection that is checked whole: the steps that attempts apply tile the run; the rows of a batch that ranks
take tile the batch; windows tile an epoch of a source, and blocks lie in them in a permutation; a block's
sequences tile its tokens. What is drawn within a window is looked at in windows drawn at random, and by way
there and back of a million sequences an epoch. At a million sequences the same checks stand beside counting
every token.

    python -m benchmarks.fleet [--tokens 15e12] [--epochs 5] [--brute 1e6]

Besides: processor time to plan a step for all ranks, and what nodes fetch for their rows (the cache's
schedule), by number of ranks."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BYTES
from trainer.data.dataset import Slice, rows_of_slice
from trainer.order import Order, OrderOptions, plan_order
from trainer.ordering.geometry import Passes
from trainer.ordering.permutation import Int64s, domain, permute

SHARD_TOKENS: Final = 1 << 28
WORLDS: Final = (
    16_384, 16_376, 16_000, 15_360, 12_288, 16_384, 8_192, 8_184, 4_096, 16_384,
    3_072, 2_048, 1_024, 1_000, 16_384, 512, 64, 16, 7, 16_384,
)  # fmt: skip
SEQ_LEN: Final = 8_192
_AT_ONCE: Final = 1 << 20
_RANKS_A_NODE: Final = 8

Bounds = Callable[[int, int, int], tuple[int, int]]
"""(rank, number of ranks, rows of a batch) -> the first of the sorted rows that the rank takes, and the
end."""


def own_bounds(rank: int, num_ranks: int, num_rows: int) -> tuple[int, int]:
    """What the trainer's ranks take."""
    return Slice(rank=rank, num_ranks=num_ranks).bounds(num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An attempt: from `first` it did the steps below `reached` with so many ranks."""

    num_ranks: int
    first: int
    reached: int


def with_failures(worlds: Sequence[int], steps: int, every: int, seed: int = 0) -> tuple[Stretch, ...]:
    """An attempt for each number of ranks, each beginning at the newest checkpoint (one `every` steps) of the
    one before, which failed at a step drawn at random; the last does the rest."""
    generator = random.Random(seed)
    found, first = [], 0
    for number, ranks in enumerate(worlds):
        left = len(worlds) - number
        reached = (
            steps if left == 1 else min(steps, first + generator.randint(1, 2 * (steps - first) // left + 1))
        )
        found.append(Stretch(num_ranks=ranks, first=first, reached=reached))
        first = max(first, reached // every * every)
    return tuple(found)


def applied(stretches: Sequence[Stretch]) -> list[tuple[int, int, int]]:
    """(ranks, first step, end) of the steps that count: what a later attempt did again does not."""
    ends = [
        min((later.first for later in stretches[place + 1 :]), default=10**18)
        for place in range(len(stretches))
    ]
    cut = [
        (each.num_ranks, each.first, min(each.reached, end))
        for each, end in zip(stretches, ends, strict=True)
    ]
    return [(ranks, first, end) for ranks, first, end in cut if first < end]


def steps_tile(stretches: Sequence[Stretch], steps: int) -> bool:
    """Whether the applied steps are each of the run's exactly once."""
    kept = sorted((first, end) for _, first, end in applied(stretches))
    return (
        bool(kept)
        and kept[0][0] == 0
        and kept[-1][1] == steps
        and all(a[1] == b[0] for a, b in pairwise(kept))
    )


def rows_tile(num_ranks: int, num_rows: int, bounds: Bounds = own_bounds) -> bool:
    """Whether the ranks take each row of a batch exactly once."""
    taken = [bounds(rank, num_ranks, num_rows) for rank in range(num_ranks)]
    return taken[0][0] == 0 and taken[-1][1] == num_rows and all(a[1] == b[0] for a, b in pairwise(taken))


def epoch_tiles(
    order: Order, source: int, epoch: int, *, num_windows: int = 16, num_random: int = _AT_ONCE
) -> bool:
    """Whether an epoch of a source reads each of its training sequences exactly once: see the head of this
    file."""
    passes, slots = order._passes_for([(source, epoch)])
    pair, num = int(slots[0]), int(order.num_train[source])
    num_blocks = int(order._geometry.num_blocks[source])
    sizes = 0
    seen = np.zeros(num_blocks, np.bool_)
    for low in range(0, num_blocks, _AT_ONCE):
        position = np.arange(low, min(low + _AT_ONCE, num_blocks), dtype=np.int64)
        pairs = np.full(len(position), pair, np.int64)
        begins, ends = passes._starts(pairs, position), passes._starts(pairs, position + 1)
        if int(begins[0]) != sizes or np.any(ends[:-1] != begins[1:]) or np.any(ends < begins):
            return False
        sizes = int(ends[-1])
        block = _blocks_at(passes, pairs, position)
        if np.any(seen[block]) or np.any(passes._position_of(pairs, block) != position):
            return False
        seen[block] = True
    generator = np.random.default_rng(epoch)
    windows = -(-num_blocks // order.plan.window_blocks)
    return (
        sizes == num
        and bool(seen.all())
        and all(
            _window_is_whole(passes, pair, int(window))
            for window in generator.integers(0, windows, num_windows)
        )
        and _goes_and_returns(passes, pair, generator.integers(0, num, min(num, num_random)))
    )


def _blocks_at(passes: Passes, pairs: Int64s, position: Int64s) -> Int64s:
    """The block at each position: that of the first sequence that lies there."""
    return permute(position, domain(*passes._blocks_under(pairs)))


def _window_is_whole(passes: Passes, pair: int, window: int) -> bool:
    one = np.array([pair], np.int64)
    first, size, _ = passes._window(one, np.array([window * passes._window_blocks], np.int64))
    index = np.arange(int(first[0]), int(first[0] + size[0]), dtype=np.int64)
    block, within = passes.locate(np.full(len(index), pair, np.int64), index)
    inside = (
        passes._position_of(np.full(len(index), pair, np.int64), block) // passes._window_blocks == window
    )
    return bool(inside.all()) and len(np.unique(block * passes._geometry.per_block + within)) == len(index)


def _goes_and_returns(passes: Passes, pair: int, index: Int64s) -> bool:
    pairs = np.full(len(index), pair, np.int64)
    return bool(np.array_equal(passes.find(pairs, *passes.locate(pairs, index)), index))


def tokens_tile(order: Order, source: int) -> bool:
    """Whether the sequences of all full blocks of one shard tile it, and those of a ragged end: by shard
    lengths there are few kinds, of each of which one is laid out whole."""
    lengths = order.plan.lengths[source][1]
    for length in {*lengths}:
        shard = lengths.index(length)
        last = max(0, (length - 1) // BLOCK_TOKENS)
        for begin, size in (
            (0, min(length, BLOCK_TOKENS)),
            (last * BLOCK_TOKENS, length - last * BLOCK_TOKENS),
        ):
            first, count = begin // BLOCK_TOKENS, -(-size // order.plan.seq_len)
            number = np.full(
                count, int(order._geometry.first_block[shard + order._geometry.first_shard[source]])
            )
            block = number - int(order._geometry.source_first_block[source]) + first
            _, start, num = order._geometry.place(
                np.full(count, source), block, np.arange(count, dtype=np.int64)
            )
            edges = np.append(start, start[-1] + num[-1])
            if int(edges[0]) != begin or int(edges[-1]) != begin + size or np.any(np.diff(edges) != num):
                return False
    return True


def holds(order: Order, stretches: Sequence[Stretch], epochs: int, bounds: Bounds = own_bounds) -> bool:
    """Whether a run of `epochs` whole epochs reads every token exactly once in each, by intervals."""
    size = order.plan.global_batch
    total = int(order.num_train.sum()) * epochs
    return (
        steps_tile(stretches, -(-total // size))
        and all(rows_tile(ranks, size, bounds) for ranks in {each.num_ranks for each in stretches})
        and all(
            epoch_tiles(order, source, epoch)
            for source in range(len(order.num_train))
            for epoch in range(epochs)
        )
        and all(tokens_tile(order, source) for source in range(len(order.num_train)))
    )


def counted(order: Order, stretches: Sequence[Stretch], epochs: int, bounds: Bounds = own_bounds) -> bool:
    """The same by counting: every rank's rows of every applied step, each token of each epoch."""
    size = order.plan.global_batch
    lengths = order.plan.lengths[0][1]
    first = np.concatenate(([0], np.cumsum(lengths)))
    seen = np.zeros((epochs + 1, int(first[-1]) + 1), np.int16)
    for ranks, low, high in applied(stretches):
        for step in range(low, high):
            numbers = np.arange(step * size, (step + 1) * size, dtype=np.int64)
            _, places = rows_of_slice(numbers, order.locate(numbers), Slice())
            for rank in range(ranks):
                begin, end = bounds(rank, ranks, size)
                rows = slice(begin, end)
                at = first[places.shard[rows]] + places.start[rows]
                np.add.at(seen, (places.epoch[rows], at), 1)
                np.add.at(seen, (places.epoch[rows], at + places.num_tokens[rows]), -1)
    read = np.cumsum(seen, axis=1)[:epochs, :-1]
    return bool(np.all(read == 1))


def make_order(
    tokens: float, global_batch: int, *, seq_len: int = SEQ_LEN, shard_tokens: int = SHARD_TOKENS
) -> Order:
    """Shards of one source, all but the last of them full."""
    whole, rest = divmod(int(tokens), shard_tokens)
    lengths = [shard_tokens] * whole + ([rest] if rest else [])
    options = OrderOptions(seed=11, seq_len=seq_len, global_batch=global_batch)
    return Order(plan_order({"web": lengths}, options))


def fetched(order: Order, num_ranks: int, num_steps: int, first: int) -> dict[str, float]:
    """What nodes of 8 data parallel ranks fetch for some steps, each block that it needs once and whole:
    blocks of the busiest node and of all a step, and bytes fetched over bytes read."""
    size, nodes = order.plan.global_batch, max(1, num_ranks // _RANKS_A_NODE)
    rows = np.arange(size, dtype=np.int64)
    # The node of each sorted row: ranks take neighbouring rows, nodes neighbouring ranks.
    edges = np.array([own_bounds(rank, num_ranks, size)[0] for rank in range(0, num_ranks, _RANKS_A_NODE)])
    node = np.searchsorted(edges, rows, side="right") - 1
    pairs = []
    for step in range(first, first + num_steps):
        numbers = step * size + rows
        _, places = rows_of_slice(numbers, order.locate(numbers), Slice())
        block = places.shard * (SHARD_TOKENS // BLOCK_TOKENS) + places.start // BLOCK_TOKENS
        pairs.append(np.unique(node * (1 << 40) + block))
    distinct = np.unique(np.concatenate(pairs))
    by_node = np.bincount(distinct >> 40, minlength=nodes)
    return {
        "blocks_a_step": len(distinct) / num_steps,
        "blocks_a_step_of_the_busiest_node": float(by_node.max()) / num_steps,
        "amplification": len(distinct) * BLOCK_BYTES / (num_steps * size * order.plan.seq_len * TOKEN_BYTES),
    }


def plan_seconds(order: Order, num_ranks: int, step: int) -> float:
    """Processor seconds to plan a step for all ranks: places, the sort, and what each takes."""
    began = time.process_time()
    size = order.plan.global_batch
    numbers = np.arange(step * size, (step + 1) * size, dtype=np.int64)
    _, places = rows_of_slice(numbers, order.locate(numbers), Slice())
    taken = [own_bounds(rank, num_ranks, size) for rank in range(num_ranks)]
    assert taken[-1][1] == len(places.start)
    return time.process_time() - began


def figures(tokens: float, epochs: int, brute: float) -> Iterator[dict[str, object]]:
    """The rows of the output."""
    small = make_order(brute * 64, 512, seq_len=64, shard_tokens=1 << 22)
    runs = with_failures(
        [ranks for ranks in WORLDS if ranks <= 512] * 5, -(-int(small.num_train.sum()) // 512), 50
    )
    yield {
        "sequences": int(small.num_train.sum()),
        "by intervals": holds(small, runs, 1),
        "by counting every token": counted(small, runs, 1),
    }
    order = make_order(tokens, WORLDS[0])
    steps = -(-int(order.num_train.sum()) * epochs // order.plan.global_batch)
    runs = with_failures(WORLDS, steps, 500)
    began = time.process_time()
    yield {
        "tokens": int(tokens),
        "epochs": epochs,
        "steps": steps,
        "attempts": len(runs),
        "steps done again": sum(each.reached - each.first for each in runs) - steps,
        "every token once an epoch": holds(order, runs, epochs),
        "processor seconds": round(time.process_time() - began, 1),
    }
    plan_seconds(order, WORLDS[0], 0)
    for ranks in (16, 1_024, 16_384):
        planned = sorted(plan_seconds(order, ranks, step) for step in (steps // 3, steps // 2, steps - 1))[1]
        found = fetched(order, ranks, 32, steps // 2)
        yield {
            "ranks": ranks,
            "plan a step, s": round(planned, 4),
            **{k: round(v, 3) for k, v in found.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=float, default=15e12)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--brute", type=float, default=1e6, help="sequences that are counted token by token")
    options = parser.parse_args()
    for row in figures(options.tokens, options.epochs, options.brute):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
