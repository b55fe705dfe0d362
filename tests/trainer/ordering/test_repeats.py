"""The order with shards that an epoch reads several times, or never: a bijection, and exact in count."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.index.blocks import BLOCK_TOKENS
from trainer.order import Order, OrderOptions, OrderPlan, plan_order

OPTIONS = OrderOptions(seed=3, seq_len=BLOCK_TOKENS // 4, global_batch=4, window_blocks=3, mixture_block=40)
SOURCES = ("books", "web")


@st.composite
def plans(draw: st.DrawFn, *, validation: bool = False) -> OrderPlan:
    """Plans of one or two sources of which some have a sequence to train on."""
    lengths, repeats = {}, {}
    for source in SOURCES[: draw(st.integers(1, 2))]:
        shards = draw(
            st.lists(st.tuples(st.integers(1, 3 * BLOCK_TOKENS), st.integers(0, 5)), min_size=1, max_size=5)
        )
        if not any(times for _, times in shards):
            shards.append((BLOCK_TOKENS, 1))
        lengths[source], repeats[source] = map(list, zip(*shards, strict=True))
    options = dataclasses.replace(
        OPTIONS,
        seed=draw(st.integers(0, 2**40)),
        seq_len=draw(st.integers(BLOCK_TOKENS // 9, BLOCK_TOKENS)),
        window_blocks=draw(st.integers(1, 5)),
        mixture=((0, dict.fromkeys(lengths, 1)),),
        validation=draw(st.floats(0.05, 0.4)) if validation else 0.0,
    )
    try:
        return plan_order(lengths, options, repeats)
    except ValueError:  # all of a small source was held out
        return plan_order(lengths, dataclasses.replace(options, validation=0.0), repeats)


def sequences_of(plan: OrderPlan) -> list[tuple[int, int, int, int]]:
    """(source, shard, start, times) of every sequence, held out or not, in shard order."""
    found = []
    for source, (shards, repeats) in enumerate(
        zip((shards for _, shards in plan.lengths), plan.repeats_by_shard(), strict=True)
    ):
        for shard, (length, times) in enumerate(zip(shards, repeats, strict=True)):
            for block in range(0, length, BLOCK_TOKENS):
                starts = range(block, min(block + BLOCK_TOKENS, length), plan.seq_len)
                found += [(source, shard, start, times) for start in starts]
    return found


def held_out_of(order: Order) -> set[tuple[int, int, int]]:
    held = set()
    for source, (name, num) in enumerate(zip(order.plan.sources, order.num_validation.tolist(), strict=True)):
        places = order.validation(name, np.arange(num))
        held |= {(source, *each) for each in zip(places.shard.tolist(), places.start.tolist(), strict=True)}
        assert len(held) == int(order.num_validation[: source + 1].sum()), "each is held out once"
    return held


@given(st.one_of(plans(), plans(validation=True)))
@settings(max_examples=150, deadline=None)
def test_an_epoch_reads_each_sequence_as_often_as_its_shard_says_and_none_that_is_held_out(
    plan: OrderPlan,
) -> None:
    order = Order(plan)
    held = held_out_of(order)
    expected = {
        (source, shard, start): times
        for source, shard, start, times in sequences_of(plan)
        if times and (source, shard, start) not in held
    }
    num = 4 * int(max(order.num_train)) + 80  # two epochs of each of two sources, in whole mixture blocks
    places = order.locate(np.arange(num))
    for epoch in (0, 1):
        rows = places.epoch == epoch
        read = Counter(
            zip(
                places.source[rows].tolist(),
                places.shard[rows].tolist(),
                places.start[rows].tolist(),
                strict=True,
            )
        )
        assert read == expected


@given(st.one_of(plans(), plans(validation=True)), st.data())
@settings(max_examples=100, deadline=None)
def test_find_names_every_reading(plan: OrderPlan, data: st.DataObject) -> None:
    order = Order(plan)
    up_to = data.draw(st.integers(1, 300))
    places = order.locate(np.arange(up_to))
    number = data.draw(st.integers(0, len(plan.lengths) - 1))
    name, shards = plan.lengths[number]
    shard = data.draw(st.integers(0, len(shards) - 1))
    start = data.draw(st.integers(0, shards[shard] - 1))
    length = data.draw(st.integers(1, shards[shard] - start))
    found = order.find(name, shard, start, length, up_to)
    begins, ends = places.start, places.start + places.num_tokens
    hit = (places.source == number) & (places.shard == shard) & (begins < start + length) & (ends > start)
    assert found.sequence.tolist() == np.flatnonzero(hit).tolist()
    assert found.epoch.tolist() == places.epoch[hit].tolist()
    assert found.first_token.tolist() == np.maximum(start - begins, 0)[hit].tolist()
    last = np.minimum(start + length - begins, places.num_tokens)[hit]
    assert (found.first_token + found.num_tokens).tolist() == last.tolist()


@given(plans(validation=True))
@settings(max_examples=50, deadline=None)
def test_as_large_a_share_is_held_out_of_what_is_read_once_as_of_what_is_read_often(plan: OrderPlan) -> None:
    held = held_out_of(Order(plan))
    totals, of_kind = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for source, shard, start, times in sequences_of(plan):
        totals[source, times] += 1
        of_kind[source, times] += (source, shard, start) in held
    for (source, times), total in totals.items():
        assert of_kind[source, times] == (round(plan.validation * total) if times else 0)


@given(plans(validation=True))
@settings(max_examples=30, deadline=None)
def test_a_plan_with_repeats_survives_json(plan: OrderPlan) -> None:
    read = OrderPlan.from_json(plan.to_json())
    assert read == plan and read.fingerprint(1) == plan.fingerprint(1)
    plain = dataclasses.replace(plan, repeats=())
    assert (plain.fingerprint(1) == plan.fingerprint(1)) == (not plan.repeats)


def test_without_repeats_a_plan_is_what_it_was() -> None:
    lengths = {"web": [5 * BLOCK_TOKENS, 100], "books": [BLOCK_TOKENS]}
    plan = plan_order(lengths, OPTIONS, {"web": [1, 1]})
    assert plan == plan_order(lengths, OPTIONS) and "repeats" not in plan.to_json()


def test_without_a_mixture_sources_come_in_proportion_to_what_an_epoch_reads() -> None:
    lengths = {"web": [4 * BLOCK_TOKENS, BLOCK_TOKENS], "books": [5 * BLOCK_TOKENS]}
    plan = plan_order(lengths, OPTIONS, {"web": [3, 3], "books": [1]})
    assert dict(plan.segments[0].counts) == {"web": 30, "books": 10}


def test_what_is_never_read_has_no_share() -> None:
    lengths = {"web": [BLOCK_TOKENS], "books": [BLOCK_TOKENS]}
    plan = plan_order(lengths, OPTIONS, {"books": [0]})
    assert dict(plan.segments[0].counts) == {"web": 40, "books": 0}
    with pytest.raises(ValueError, match="no source has a sequence to train on"):
        plan_order(lengths, OPTIONS, {"books": [0], "web": [0]})


@pytest.mark.parametrize(
    ("repeats", "says"),
    [
        ({"blog": [1]}, "repeats are given for source 'blog', which has no shards"),
        ({"web": [1]}, "source 'web' has 2 shards and repeats for 1: expected one number for each"),
        ({"web": [1, -1]}, "an epoch of source 'web' reads a shard -1 times"),
    ],
)
def test_repeats_that_fit_no_shards_are_refused(repeats: dict[str, list[int]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan_order({"web": [5, 6]}, OPTIONS, repeats)
