"""Sequence numbers and places: each other's inverse, nothing lost, nothing repeated within an epoch."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lineage.index.blocks import BLOCK_TOKENS
from trainer.order import Order, OrderOptions, OrderPlan, Places, plan_order

SMALL = OrderOptions(seed=3, seq_len=BLOCK_TOKENS // 4, global_batch=4, window_blocks=3, mixture_block=7)


def order_of(lengths: dict[str, list[int]], **changes: object) -> Order:
    return Order(plan_order(lengths, dataclasses.replace(SMALL, **changes)))


def tuples(places: Places) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in places), strict=True))


def tokens_of_one_epoch(order: Order, source: int, places: Places) -> dict[int, list[tuple[int, int]]]:
    """(start, end) of what the first epoch of a source reads of each shard, sorted."""
    rows = (places.source == source) & (places.epoch == 0)
    read: dict[int, list[tuple[int, int]]] = {}
    for shard, start, num_tokens in zip(
        places.shard[rows].tolist(),
        places.start[rows].tolist(),
        places.num_tokens[rows].tolist(),
        strict=True,
    ):
        read.setdefault(shard, []).append((start, start + num_tokens))
    return {shard: sorted(ranges) for shard, ranges in read.items()}


lengths_strategy = st.dictionaries(
    st.sampled_from(["web", "books", "code", "chat"]),
    st.lists(st.integers(0, 3 * BLOCK_TOKENS), min_size=1, max_size=5).filter(any),
    min_size=1,
)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    lengths = draw(lengths_strategy)
    shares = st.fixed_dictionaries({source: st.integers(1, 5) for source in lengths})
    steps = sorted({0, *draw(st.lists(st.integers(1, 12), max_size=2))})
    options = OrderOptions(
        seed=draw(st.integers(0, 2**40)),
        seq_len=draw(st.integers(BLOCK_TOKENS // 9, BLOCK_TOKENS)),
        global_batch=draw(st.integers(1, 9)),
        window_blocks=draw(st.integers(1, 5)),
        mixture_block=draw(st.integers(25, 60)),
        mixture=tuple((step, draw(shares)) for step in steps),
    )
    return Order(plan_order(lengths, options))


@given(orders())
@settings(max_examples=80, deadline=None)
def test_every_epoch_of_every_source_reads_every_token_once(order: Order) -> None:
    n = np.arange(500, dtype=np.int64)
    places = order.locate(n)
    for number, (_, shards) in enumerate(order.plan.lengths):
        rows = places.source == number
        epochs = places.epoch[rows]
        assert np.all(np.diff(epochs) >= 0)
        sizes = np.bincount(epochs) if rows.any() else np.zeros(1, np.int64)
        assert np.all(sizes[:-1] == order.num_train[number])
        distinct = set(
            zip(epochs.tolist(), places.shard[rows].tolist(), places.start[rows].tolist(), strict=True)
        )
        assert len(distinct) == rows.sum()
        if len(sizes) > 1:
            read = tokens_of_one_epoch(order, number, places)
            for shard, length in enumerate(shards):
                edges = [edge for pair in read.get(shard, []) for edge in pair]
                assert [0, *edges, length][::2] == [0, *edges, length][1::2], "ranges must tile the shard"


@given(orders())
@settings(max_examples=100, deadline=None)
def test_no_sequence_straddles_blocks_or_is_longer_than_asked(order: Order) -> None:
    places = order.locate(np.arange(300))
    assert np.all(places.num_tokens >= 1)
    assert np.all(places.num_tokens <= order.plan.seq_len)
    assert np.all(places.start // BLOCK_TOKENS == (places.start + places.num_tokens - 1) // BLOCK_TOKENS)


@given(orders(), st.data())
@settings(max_examples=80, deadline=None)
def test_find_names_exactly_the_sequences_whose_places_hold_the_tokens(
    order: Order, data: st.DataObject
) -> None:
    up_to = 400
    places = order.locate(np.arange(up_to))
    source, shards = data.draw(st.sampled_from(order.plan.lengths))
    shard = data.draw(st.integers(0, len(shards) - 1))
    start = data.draw(st.integers(0, max(shards[shard] - 1, 0)))
    num_tokens = data.draw(st.integers(1, BLOCK_TOKENS))
    found = order.find(source, shard, start, num_tokens, up_to)
    same = (places.source == order.plan.sources.index(source)) & (places.shard == shard)
    overlap = np.minimum(places.start + places.num_tokens, start + num_tokens) - np.maximum(
        places.start, start
    )
    expected = np.flatnonzero(same & (overlap > 0))
    assert found.sequence.tolist() == expected.tolist()
    assert found.epoch.tolist() == places.epoch[expected].tolist()
    assert found.num_tokens.tolist() == overlap[expected].tolist()
    assert found.first_token.tolist() == np.maximum(start - places.start[expected], 0).tolist()


@given(orders(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_slice_of_a_batch_is_the_same_whatever_is_asked_beside_it(
    order: Order, data: st.DataObject
) -> None:
    world = data.draw(st.integers(1, 40))
    n = np.arange(120, dtype=np.int64) + data.draw(st.integers(0, 10**9))
    slices = [order.locate(part) for part in np.array_split(n, world)]
    assert [row for part in slices for row in tuples(part)] == tuples(order.locate(n))


@pytest.mark.parametrize("num_sequences", [65_537, 1_048_577])
def test_the_order_is_a_bijection_at_sizes_where_published_permutations_repeat(num_sequences: int) -> None:
    seq_len = 64
    order = order_of({"a": [(num_sequences - 1) * seq_len + 5]}, seq_len=seq_len, window_blocks=2)
    places = order.locate(np.arange(num_sequences, dtype=np.int64))
    assert order.num_train.tolist() == [num_sequences]
    assert np.array_equal(np.sort(places.start), np.arange(num_sequences) * seq_len)
    assert int(places.num_tokens.sum()) == (num_sequences - 1) * seq_len + 5


def sampled_round_trip(order: Order, total: int) -> None:
    n = np.unique(np.random.default_rng(1).integers(0, total, 100_000))
    places = order.locate(n)
    assert len(
        set(zip(places.source.tolist(), places.shard.tolist(), places.start.tolist(), strict=True))
    ) == len(n)
    assert places.epoch.max() == 0
    for i in range(0, len(n), 5000):
        name = order.plan.sources[places.source[i]]
        found = order.find(name, int(places.shard[i]), int(places.start[i]), int(places.num_tokens[i]), total)
        assert found.sequence.tolist() == [n[i]]


def test_samples_at_two_to_the_27_and_one_sequences_are_distinct_and_found_again() -> None:
    order = order_of({"a": [(1 << 27) * 512 + 3]}, seq_len=512, window_blocks=64)
    assert order.num_train.tolist() == [(1 << 27) + 1]
    sampled_round_trip(order, (1 << 27) + 1)


def test_fifteen_trillion_tokens_need_memory_by_shards_and_not_by_sequences() -> None:
    rng = np.random.default_rng(0)
    shards = (2**28 - rng.integers(0, 5000, 15 * 10**12 // 2**28 + 1)).tolist()
    plan = plan_order(
        {"web": shards}, dataclasses.replace(SMALL, seq_len=2048, global_batch=1024, window_blocks=64)
    )
    assert sum(shards) > 149 * 10**11
    tracemalloc.start()
    order = Order(plan)
    total = int(order.num_train[0])
    sampled_round_trip(order, total)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 2**32
    assert peak < 100 << 20


def test_the_order_is_what_version_one_has_always_been() -> None:
    order = order_of({"a": [9 * BLOCK_TOKENS - 5, 77], "b": [5_000_000]}, validation=0.1)
    assert order.plan.fingerprint(0) == "a0edd2c42dd98dcf9b1b57e0edc5f153"
    assert tuples(order.locate(np.array([0, 1, 2, 40, 10**15]))) == [
        (0, 0, 0, 15204352, 524288),
        (1, 0, 0, 1572864, 524288),
        (0, 0, 0, 16252928, 524288),
        (0, 1, 0, 6291456, 524288),
        (1, 15873015873015, 0, 1048576, 524288),
    ]


def test_sequences_of_one_window_come_from_its_blocks_only() -> None:
    order = order_of({"a": [40 * BLOCK_TOKENS]}, seq_len=BLOCK_TOKENS // 32, window_blocks=4)
    block = order.locate(np.arange(40 * 32)).start.reshape(10, 4 * 32) // BLOCK_TOKENS
    assert [len(set(row.tolist())) for row in block] == [4] * 10


def test_places_inside_a_window_and_block_order_are_unrelated_to_their_neighbours() -> None:
    num_blocks, per_block = 4096, 32
    order = order_of({"a": [num_blocks * BLOCK_TOKENS]}, seq_len=BLOCK_TOKENS // per_block, window_blocks=64)
    sequence = order.locate(np.arange(num_blocks * per_block)).start // order.plan.seq_len
    size, p_values = num_blocks * per_block, []
    for lag in (1, 2, 3, 5, 8, 32, 64):
        within = (sequence[lag:] - sequence[:-lag]) % per_block
        p_values.append(stats.chisquare(np.bincount(within, minlength=per_block)).pvalue)
    first_block = sequence.reshape(-1, 64 * per_block)[:, 0] // per_block
    p_values.append(stats.kstest(first_block / num_blocks, "uniform").pvalue)
    for bit in range(5):
        number_bit, place_bit = (np.arange(size) >> bit) & 1, (sequence >> bit) & 1
        table = np.bincount(number_bit * 2 + place_bit, minlength=4).reshape(2, 2)
        p_values.append(stats.chi2_contingency(table, correction=False).pvalue)
    print("p-values", [f"{p:.2g}" for p in p_values])
    assert min(p_values) > 1e-4


def test_the_last_sequences_of_each_source_are_held_out_and_never_trained_on() -> None:
    lengths = {"a": [BLOCK_TOKENS + 10, 3 * BLOCK_TOKENS], "b": [BLOCK_TOKENS // 2]}
    order = order_of(lengths, validation=0.3, mixture=((0, {"a": 1, "b": 1}),))
    assert order.num_validation.tolist() == [round(0.3 * 17), round(0.3 * 2)]
    trained = order.locate(np.arange(200))
    in_training = set(
        zip(trained.source.tolist(), trained.shard.tolist(), trained.start.tolist(), strict=True)
    )
    held = order.validation("a", np.arange(5))
    assert not in_training & set(
        zip(held.source.tolist(), held.shard.tolist(), held.start.tolist(), strict=True)
    )
    quarter = BLOCK_TOKENS // 4
    assert held.start.tolist() == [number * quarter for number in (7, 8, 9, 10, 11)]
    assert order.find("a", 1, 8 * quarter, 1, 10_000).sequence.size == 0
    assert order.find("a", 1, 6 * quarter, 1, 10_000).sequence.size > 0
    with pytest.raises(ValueError, match="expected 0 to 4"):
        order.validation("a", np.array([5]))


def test_a_weight_change_leaves_all_that_was_read_before_as_it_was() -> None:
    lengths = {"a": [9_000_000], "b": [7_000_000]}
    before = order_of(lengths, mixture=((0, {"a": 1, "b": 2}),))
    after = order_of(lengths, mixture=((0, {"a": 1, "b": 2}), (5, {"a": 3, "b": 1})))
    assert tuples(before.locate(np.arange(20))) == tuples(after.locate(np.arange(20)))
    assert before.plan.fingerprint(20) == after.plan.fingerprint(20)
    assert before.plan.fingerprint(21) != after.plan.fingerprint(21)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 4}, {"seq_len": 4096}, {"global_batch": 5}, {"window_blocks": 4}, {"mixture_block": 8},
     {"validation": 0.1}],
)  # fmt: skip
def test_the_fingerprint_covers_everything_that_decides_the_order(changes: dict[str, float]) -> None:
    lengths = {"a": [9_000_000]}
    assert order_of(lengths).plan.fingerprint(0) != order_of(lengths, **changes).plan.fingerprint(0)
    assert order_of(lengths).plan.fingerprint(0) != order_of({"a": [9_000_001]}).plan.fingerprint(0)


@given(orders())
@settings(max_examples=30, deadline=None)
def test_a_plan_survives_json(order: Order) -> None:
    again = OrderPlan.from_json(order.plan.to_json())
    assert again == order.plan
    assert again.fingerprint(10**6) == order.plan.fingerprint(10**6)


def test_a_plan_of_another_order_version_is_refused() -> None:
    text = order_of({"a": [5]}).plan.to_json().replace('"order_version":1', '"order_version":2')
    with pytest.raises(ValueError, match="order version 2: expected 1"):
        OrderPlan.from_json(text)


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (((0, {"a": 1, "b": 1, "c": 1}),), "names source 'c'"),
        (((0, {"a": 1}),), "does not name source 'b'"),
        (((0, {"a": 1, "b": -1}),), "'b' is -1"),
        (((0, {"a": 1, "b": 1, "empty": 0.5}),), "'empty' 0.5, but it has no sequence"),
        (((1, {"a": 1, "b": 1}),), r"start at steps \[1\]"),
        (((0, {"a": 1, "b": 1}), (0, {"a": 1, "b": 1})), r"start at steps \[0, 0\]"),
    ],
)
def test_a_wrong_mixture_is_refused(mixture: tuple[tuple[int, dict[str, float]], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order_of({"a": [100], "b": [100], "empty": []}, mixture=mixture)


def test_wrong_sizes_and_places_are_refused() -> None:
    with pytest.raises(ValueError, match="seq_len is 2097153"):
        order_of({"a": [100]}, seq_len=BLOCK_TOKENS + 1)
    with pytest.raises(ValueError, match="no source has a sequence"):
        order_of({"a": [0]})
    order = order_of({"a": [100]})
    with pytest.raises(ValueError, match="sequence number -1"):
        order.locate(np.array([-1]))
    with pytest.raises(ValueError, match="shard a/1: expected a number from 0 to 0"):
        order.find("a", 1, 0, 1, 10)
    with pytest.raises(ValueError, match="source 'b': expected one of 'a'"):
        order.find("b", 0, 0, 1, 10)


def test_without_a_mixture_sources_come_in_proportion_to_tokens() -> None:
    order = order_of({"a": [3 * BLOCK_TOKENS], "b": [BLOCK_TOKENS]}, mixture_block=1000)
    assert dict(order.plan.segments[0].counts) == {"a": 750, "b": 250}
    assert order.epochs(1000) == {"a": 62.5, "b": 62.5}
