"""The order of training: sequence number <-> (source, shard, start), a pure function with a pure inverse.

1. Shards are cut into blocks of 8 MiB and these into sequences (`geometry`). A shard that an epoch reads
  several times counts as so many.
2. For each source and epoch a keyed permutation orders the blocks, another the sequences of a window of
  blocks.
3. The mixture says which source the n-th sequence of a run is, and how many of that source came before
  (`mixture`).

Nothing here depends on how many processes train, nor on how long; memory is in the number of shards. Changing
what any of the three gives for the same plan needs a new ORDER_VERSION."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from lineage.ids import content_hash, length_prefixed
from lineage.index.blocks import BLOCK_TOKENS
from trainer.ordering.geometry import Geometry, Passes
from trainer.ordering.mixture import Mixture, Segment, quantise
from trainer.ordering.permutation import Int64s, Keys, derive

ORDER_VERSION: Final = 1
_MAX_RAGGED: Final = 1 << 20  # ragged blocks held at once: about 24 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPlan:
    """Everything that the order depends on. `lengths`: tokens of each shard (by number) of each source, by
    name. `repeats`: how often an epoch reads each shard of the sources of which it reads one other than
    once."""

    lengths: tuple[tuple[str, tuple[int, ...]], ...]
    seed: int
    seq_len: int
    global_batch: int
    window_blocks: int
    validation: float
    segments: tuple[Segment, ...]
    repeats: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names, sorted; a source's number is its place here."""
        return tuple(source for source, _ in self.lengths)

    def to_json(self) -> str:
        """The plan as canonical JSON: equal plans give equal bytes."""
        return _canonical(self._as_plain(self.segments))

    @staticmethod
    def from_json(text: str) -> OrderPlan:
        """The plan that `to_json` wrote; ValueError if it was written for another version of the order."""
        raw = json.loads(text)
        if raw["order_version"] != ORDER_VERSION:
            raise ValueError(
                f"the plan is of order version {raw['order_version']}: expected {ORDER_VERSION}; "
                "read it with the release that wrote it"
            )
        return OrderPlan(
            lengths=tuple((source, tuple(shards)) for source, shards in raw["lengths"].items()),
            seed=raw["seed"],
            seq_len=raw["seq_len"],
            global_batch=raw["global_batch"],
            window_blocks=raw["window_blocks"],
            validation=raw["validation"],
            segments=tuple(
                Segment(first_step=segment["first_step"], counts=tuple(sorted(segment["counts"].items())))
                for segment in raw["segments"]
            ),
            repeats=tuple((source, tuple(times)) for source, times in raw.get("repeats", {}).items()),
        )

    def repeats_by_shard(self) -> list[tuple[int, ...]]:
        """How often an epoch reads each shard of each source."""
        given = dict(self.repeats)
        return [given.get(source, (1,) * len(shards)) for source, shards in self.lengths]

    def fingerprint(self, up_to_sequence: int) -> str:
        """32 hex digits over all that decided the sequences before `up_to_sequence`: later segments are left
        out, so they may be edited. The segment at step 0 always counts."""
        reached = [
            s for s in self.segments if s.first_step == 0 or s.first_step * self.global_batch < up_to_sequence
        ]
        return content_hash(_canonical(self._as_plain(reached)).encode()).hex()

    def _as_plain(self, segments: Sequence[Segment]) -> dict[str, object]:
        return {
            "order_version": ORDER_VERSION,
            "lengths": {source: list(shards) for source, shards in self.lengths},
            "seed": self.seed,
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "window_blocks": self.window_blocks,
            "validation": self.validation,
            "segments": [{"first_step": s.first_step, "counts": dict(s.counts)} for s in segments],
            **({"repeats": {source: list(times) for source, times in self.repeats}} if self.repeats else {}),
        }


def _canonical(plain: object) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What a recipe says about the order. `mixture`: (first_step, shares by source); none: in proportion to
    the tokens that an epoch reads."""

    seed: int
    seq_len: int
    global_batch: int
    window_blocks: int = 64
    mixture_block: int = 1000
    validation: float = 0.0
    mixture: tuple[tuple[int, Mapping[str, float]], ...] = ()


def plan_order(
    lengths: Mapping[str, Sequence[int]],
    options: OrderOptions,
    repeats: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> OrderPlan:
    """The plan over shards of these lengths, which an epoch reads so often (`repeats`, by source; once, where
    it has none). ValueError says what is wrong with lengths, repeats, sizes or shares."""
    named = tuple(
        sorted((source, tuple(int(length) for length in shards)) for source, shards in lengths.items())
    )
    _check_sizes(options)
    for source, shards in named:
        if any(length < 0 for length in shards):
            raise ValueError(f"source {source!r} has a shard of {min(shards)} tokens: expected at least 0")
    times = {source: tuple(repeats.get(source, (1,) * len(shards))) for source, shards in named}
    _check_repeats(dict(named), times, repeats)
    counts = Geometry(
        [shards for _, shards in named], options.seq_len, options.validation, list(times.values())
    ).num_train
    empty = {source for (source, _), num_train in zip(named, counts, strict=True) if num_train == 0}
    if len(empty) == len(named):
        raise ValueError(
            "no source has a sequence to train on: give shards with tokens, and validation below 1"
        )
    tokens = {
        source: float(sum(map(operator.mul, shards, times[source]))) if source not in empty else 0.0
        for source, shards in named
    }
    segments = []
    for first_step, shares in options.mixture or ((0, tokens),):
        _check_shares(shares, set(tokens), empty)
        complete = {source: shares.get(source, 0.0) for source in tokens}
        segments.append(Segment(first_step=first_step, counts=quantise(complete, options.mixture_block)))
    steps = [segment.first_step for segment in segments]
    if steps[0] != 0 or steps != sorted(set(steps)):
        raise ValueError(f"mixture segments start at steps {steps}: expected 0 first, then rising numbers")
    return OrderPlan(
        lengths=named,
        seed=options.seed,
        seq_len=options.seq_len,
        global_batch=options.global_batch,
        window_blocks=options.window_blocks,
        validation=options.validation,
        segments=tuple(segments),
        repeats=tuple((source, each) for source, each in times.items() if set(each) - {1}),
    )


def _check_repeats(
    lengths: Mapping[str, Sequence[int]],
    times: Mapping[str, Sequence[int]],
    repeats: Mapping[str, Sequence[int]],
) -> None:
    for source in sorted(repeats):
        if source not in lengths:
            raise ValueError(f"repeats are given for source {source!r}, which has no shards")
    for source, each in times.items():
        if len(each) != len(lengths[source]):
            raise ValueError(
                f"source {source!r} has {len(lengths[source])} shards and repeats for {len(each)}: expected"
                " one number for each"
            )
        if any(number < 0 for number in each):
            raise ValueError(
                f"an epoch of source {source!r} reads a shard {min(each)} times: expected at least 0"
            )


def _check_sizes(options: OrderOptions) -> None:
    if not 1 <= options.seq_len <= BLOCK_TOKENS:
        raise ValueError(f"seq_len is {options.seq_len}: expected 1 to {BLOCK_TOKENS}, the tokens of a block")
    for name in ("global_batch", "window_blocks", "mixture_block"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: expected at least 1")
    if not 0 <= options.validation < 1:
        raise ValueError(f"validation is {options.validation}: expected at least 0 and below 1")


def _check_shares(shares: Mapping[str, float], sources: set[str], empty: set[str]) -> None:
    known = ", ".join(map(repr, sorted(sources)))
    for source in sorted(shares):
        if source not in sources:
            raise ValueError(
                f"the mixture names source {source!r}, which the data do not have: expected {known}"
            )
        if source in empty and shares[source] > 0:
            raise ValueError(
                f"the mixture gives source {source!r} {shares[source]}, but it has no sequence to train on"
            )
    missing = sorted(sources - empty - set(shares))
    if missing:
        raise ValueError(
            f"the mixture does not name source {missing[0]!r}: give each of {known} a share (0: left out)"
        )


class Places(NamedTuple):
    """Where sequences lie: arrays of one shape. `source` is a place in `OrderPlan.sources`, `start` counts
    tokens."""

    source: Int64s
    epoch: Int64s
    shard: Int64s
    start: Int64s
    num_tokens: Int64s


class Readings(NamedTuple):
    """The sequences that read some tokens: number, epoch, and which positions of the sequence hold them."""

    sequence: Int64s
    epoch: Int64s
    first_token: Int64s
    num_tokens: Int64s


class Order:
    """The order of `plan`. Calls are pure; a small memo of the passes in use is the only state."""

    def __init__(self, plan: OrderPlan) -> None:
        self.plan = plan
        self._geometry = Geometry(
            [shards for _, shards in plan.lengths], plan.seq_len, plan.validation, plan.repeats_by_shard()
        )
        keys = [_key(plan.seed, "mixture", str(segment.first_step)) for segment in plan.segments]
        self._mixture = Mixture(plan.segments, plan.global_batch, keys)
        self._source_key: Keys = np.array(
            [_key(plan.seed, "source", name) for name in plan.sources], np.uint64
        )
        self._passes_at_once = max(1, _MAX_RAGGED // max(1, *self._geometry.num_listings.tolist()))
        self._memo: tuple[dict[tuple[int, int], int], Passes | None] = ({}, None)

    @property
    def num_train(self) -> Int64s:
        """Training sequences of an epoch of each source."""
        return self._geometry.num_train

    @property
    def num_validation(self) -> Int64s:
        """Sequences of each source that are held out."""
        return self._geometry.num_validation

    def locate(self, n: Int64s) -> Places:
        """Where each sequence number lies, shape (num,); numbers are at least 0 and have no upper bound but
        int64."""
        n = np.asarray(n, np.int64)
        if n.size and int(n.min()) < 0:
            raise ValueError(f"sequence number {int(n.min())}: expected at least 0")
        source, count = self._mixture.draw(n)
        epoch, index = np.divmod(count, self._geometry.num_train[source])
        block, within = np.empty_like(n), np.empty_like(n)
        for rows, passes, pair in self._grouped(source, epoch):
            block[rows], within[rows] = passes.locate(pair, index[rows])
        return Places(source, epoch, *self._geometry.place(source, block, within))

    def find(self, source: str, shard: int, start: int, num_tokens: int, up_to: int) -> Readings:
        """Every sequence below `up_to` that reads any of the tokens, each epoch and as often as the epoch
        does, by rising number: the inverse of `locate`. Held-out tokens give none. ValueError for a source or
        shard that the plan does not have."""
        number = self._number_of(source, shard)
        block, within = self._geometry.covering(number, shard, start, num_tokens)
        read = int(self._mixture.counts_before(up_to)[number])
        num_train = int(self._geometry.num_train[number])
        num_epochs = -(-read // num_train) if num_train else 0
        found = [
            self._find_in(
                number, np.arange(first, min(first + self._passes_at_once, num_epochs)), block, within
            )
            for first in range(0, num_epochs, self._passes_at_once)
        ]
        sequence = np.concatenate(found) if found else np.empty(0, np.int64)
        epoch = np.repeat(np.arange(num_epochs, dtype=np.int64), len(block))
        _, begin, length = self._geometry.place(np.full(len(block), number, np.int64), block, within)
        first = np.tile(np.maximum(start - begin, 0), num_epochs)
        last = np.tile(np.minimum(start + num_tokens - begin, length), num_epochs)
        kept = np.flatnonzero((sequence >= 0) & (sequence < up_to))
        kept = kept[np.argsort(sequence[kept])]
        return Readings(sequence[kept], epoch[kept], first[kept], (last - first)[kept])

    def validation(self, source: str, number: Int64s) -> Places:
        """Where held-out sequences 0, 1, … of `source` lie, in shard order; their epoch is -1."""
        index = self._number_of(source)
        held = int(self._geometry.num_validation[index])
        if number.size and (int(number.min()) < 0 or int(number.max()) >= held):
            raise ValueError(
                f"validation sequence {int(number.max())} of {source!r}: expected 0 to {held - 1}"
            )
        places = self._geometry.held_out(index, number)
        return Places(np.full(len(number), index, np.int64), np.full(len(number), -1, np.int64), *places)

    def epochs(self, num_sequences: int) -> dict[str, float]:
        """How often each source has been read once the run has read `num_sequences`; 0 for a source without
        any."""
        read = self._mixture.counts_before(num_sequences)
        return {
            source: int(read[i]) / max(int(self._geometry.num_train[i]), 1)
            for i, source in enumerate(self.plan.sources)
        }

    def _number_of(self, source: str, shard: int = 0) -> int:
        if source not in self.plan.sources:
            raise ValueError(f"source {source!r}: expected one of {', '.join(map(repr, self.plan.sources))}")
        number = self.plan.sources.index(source)
        num_shards = len(self.plan.lengths[number][1])
        if not 0 <= shard < max(num_shards, 1):
            raise ValueError(f"shard {source}/{shard}: expected a number from 0 to {num_shards - 1}")
        return number

    def _find_in(self, source: int, epochs: Int64s, block: Int64s, within: Int64s) -> Int64s:
        """The sequence number of each (block, within) in each of `epochs`, epoch after epoch; -1: never
        read."""
        passes, slots = self._passes_for([(source, epoch) for epoch in epochs.tolist()])
        num = len(epochs)
        index = passes.find(np.repeat(slots, len(block)), np.tile(block, num), np.tile(within, num))
        return self._mixture.number_of(source, index + np.repeat(epochs, len(block)) * self.num_train[source])

    def _grouped(self, source: Int64s, epoch: Int64s) -> list[tuple[Int64s | slice, Passes, Int64s]]:
        """The rows to look up together, with their passes and each row's pair. One group, but where a call
        asks for more epochs than memory should hold at once."""
        num_sources = len(self.plan.sources)
        joined = epoch * num_sources + source
        distinct, which = np.unique(joined, return_inverse=True)
        pairs = [(int(code % num_sources), int(code // num_sources)) for code in distinct]
        at_once = self._passes_at_once
        if len(pairs) <= at_once:
            passes, slots = self._passes_for(pairs)
            return [(slice(None), passes, slots[which])]
        groups: list[tuple[Int64s | slice, Passes, Int64s]] = []
        for first in range(0, len(pairs), at_once):
            rows = np.flatnonzero((which >= first) & (which < first + at_once))
            passes, slots = self._passes_for(pairs[first : first + at_once])
            groups.append((rows, passes, slots[which[rows] - first]))
        return groups

    def _passes_for(self, pairs: Sequence[tuple[int, int]]) -> tuple[Passes, Int64s]:
        """Passes that hold `pairs`, and the place of each there. Those used last stay, as memory allows."""
        known, passes = self._memo
        if passes is None or any(pair not in known for pair in pairs):
            others = [pair for pair in known if pair not in pairs]
            kept = [*others[max(0, len(others) + len(pairs) - self._passes_at_once) :], *pairs]
            epochs = np.array([epoch for _, epoch in kept], np.int64)
            keys = derive(self._source_key[[source for source, _ in kept]], epochs)
            passes = Passes(self._geometry, self.plan.window_blocks, kept, keys)
            known = {pair: slot for slot, pair in enumerate(kept)}
            self._memo = (known, passes)
        return passes, np.array([known[pair] for pair in pairs], np.int64)


def _key(seed: int, *names: str) -> int:
    """A 64-bit key for a purpose."""
    named = length_prefixed(str(seed).encode(), *(name.encode() for name in names))
    return int.from_bytes(content_hash(named)[:8], "little")
