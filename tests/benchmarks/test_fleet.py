"""The fleet's proof by intervals says what counting every token says, also where something is planted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet import (
    Stretch,
    counted,
    epoch_tiles,
    fetched,
    holds,
    make_order,
    own_bounds,
    with_failures,
)
from trainer.order import Order

EPOCHS = 2


@pytest.fixture(scope="module")
def order() -> Order:
    return make_order(150_001, 24, seq_len=64, shard_tokens=40_000)


@pytest.fixture
def stretches(order: Order) -> tuple[Stretch, ...]:
    return with_failures([16, 7, 3, 12, 24, 40], -(-int(order.num_train.sum()) * EPOCHS // 24), 20)


def test_every_token_is_read_once_an_epoch(order: Order, stretches: tuple[Stretch, ...]) -> None:
    assert holds(order, stretches, EPOCHS)
    assert counted(order, stretches, EPOCHS)


def test_a_row_that_two_ranks_take_is_found_by_both(order: Order, stretches: tuple[Stretch, ...]) -> None:
    def overlapping(rank: int, num_ranks: int, num_rows: int) -> tuple[int, int]:
        low, high = own_bounds(rank, num_ranks, num_rows)
        return (low, high + 1) if (rank, num_ranks) == (1, 12) else (low, high)

    assert not holds(order, stretches, EPOCHS, overlapping)
    assert not counted(order, stretches, EPOCHS, overlapping)


def test_steps_that_no_attempt_applies_are_found_by_both(
    order: Order, stretches: tuple[Stretch, ...]
) -> None:
    gap = (*stretches[:3], replace(stretches[3], first=stretches[3].first + 1), *stretches[4:])
    short = (*stretches[:2], replace(stretches[2], reached=stretches[3].first - 1), *stretches[3:])
    for faulty in (gap, short) if stretches[2].reached <= stretches[3].first else (short,):
        assert not holds(order, faulty, EPOCHS)
        assert not counted(order, faulty, EPOCHS)


def test_an_order_that_reads_a_block_twice_is_found(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    assert epoch_tiles(order, 0, 0, num_random=1000)
    monkeypatch.setattr("benchmarks.fleet.permute", lambda values, where: values // 2)
    assert not epoch_tiles(order, 0, 0, num_random=1000)


def test_more_nodes_fetch_more_for_the_same_rows() -> None:
    fleet = make_order(5e9, 1024)
    few, many = (fetched(fleet, ranks, 4, 3) for ranks in (16, 1024))
    assert few["amplification"] < many["amplification"]
