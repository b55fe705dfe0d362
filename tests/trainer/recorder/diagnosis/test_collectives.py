"""Who never came, who left one out and who brought another one: found in rings that are made for it."""

from __future__ import annotations

import pytest

from tests.support.training.rings import WORLD, Asked, ring
from trainer.recorder.diagnosis.collectives import absences, causes, describe, mismatches
from trainer.recorder.ring import RingContent

COUNTS, GATHER, SCATTER, LOSSES, NORM = (
    Asked(line=10),
    Asked(line=20, name="all_gather_single", size=4096),
    Asked(line=30, name="reduce_scatter_single", size=4096),
    Asked(line=40, group=(0, 1, 2, 3), size=24),
    Asked(line=50, size=160),
)
STEP = [COUNTS, GATHER, GATHER, SCATTER, SCATTER, LOSSES, NORM]
"""A line is gone through for each layer: it makes several operations of a step."""


def hang(at: int, hung: int = 2) -> dict[int, RingContent]:
    """The rings where rank `hung` never comes to operation `at` of the fourth step, and all others are in
    it."""
    whole = [STEP] * 3
    return {
        rank: ring(rank, [*whole, STEP[:at]])
        if rank == hung
        else ring(rank, [*whole, STEP[: at + 1]], is_open=True)
        for rank in range(WORLD)
    }


@pytest.mark.parametrize("at", range(len(STEP)))
def test_the_rank_that_never_comes_to_any_collective_of_a_step_is_named(at: int) -> None:
    (absence,) = absences(hang(at))
    assert (absence.absent, absence.waiting, absence.is_cause) == ((2,), (0, 1, 3), True)
    asked, operation = STEP[at], absence.operation
    assert (operation.site.name, operation.site.line, operation.step) == (asked.name, asked.line, 3)
    assert f"at trainer/run/step.py:{asked.line} in train_step" in describe(operation)
    assert not mismatches(hang(at))


def test_a_rank_whose_ring_is_gone_is_named_too() -> None:
    rings = hang(2)
    del rings[2]
    (absence,) = absences(rings)
    assert (absence.absent, absence.waiting) == ((2,), (0, 1, 3))


def test_nothing_is_wrong_with_a_run_that_goes_on_or_has_ended() -> None:
    rings = {rank: ring(rank, [STEP] * 4) for rank in range(WORLD)}
    assert not absences(rings) and not mismatches(rings)
    # Where all have come, they wait for no rank: the exchange itself is under way.
    rings = {rank: ring(rank, [STEP] * 4, is_open=True) for rank in range(WORLD)}
    assert not absences(rings)


def test_who_waits_for_a_rank_that_waits_itself_is_no_cause() -> None:
    left, right = Asked(line=60, group=(0, 1)), Asked(line=70, group=(1, 2, 3))
    rings = {
        0: ring(0, [[left], [left]], is_open=True),
        1: ring(1, [[right, left], [right]], is_open=True),
        2: ring(2, [[right], [right]], is_open=True),
        3: ring(3, [[right], []]),
    }
    cause, follows = absences(rings)
    assert (cause.absent, cause.waiting, cause.is_cause) == ((3,), (1, 2), True)
    assert (follows.absent, follows.waiting, follows.is_cause) == ((1,), (0,), False)


def replicated(rank: int) -> list[Asked]:
    """A step of two shards of two replicas each: two gathers within a replica, a sum over the replicas, a sum
    over all."""
    first = rank // 2 * 2
    shards, replicas = (first, first + 1), (rank % 2, rank % 2 + 2)
    gather = Asked(line=20, name="all_gather_single", group=shards)
    return [gather, gather, Asked(line=30, group=replicas), Asked(line=40)]


@pytest.mark.parametrize(
    ("hung_at", "others", "line", "waiting"),
    [(1, {0: 3, 1: 3, 3: 2}, 20, (3,)), (2, {0: 3, 1: 4, 3: 4}, 30, (0,))],
    ids=["before a gather", "before a sum"],
)
def test_of_ranks_that_wait_in_several_groups_the_first_collective_that_the_hung_one_misses_is_told(
    hung_at: int, others: dict[int, int], line: int, waiting: tuple[int, ...]
) -> None:
    rings = {
        rank: ring(rank, [replicated(rank), replicated(rank)[:done]], is_open=True)
        for rank, done in others.items()
    }
    rings[2] = ring(2, [replicated(2), replicated(2)[:hung_at]])
    found = absences(rings)
    assert len(found) > 1
    (cause,) = causes(found)
    assert (cause.absent, cause.waiting, cause.operation.site.line) == ((2,), waiting, line)


@pytest.mark.parametrize("at", range(len(STEP) - 1))
def test_a_rank_that_leaves_one_out_is_named_with_both_operations(at: int) -> None:
    others = {rank: ring(rank, [*[STEP] * 3, STEP[: at + 1]], is_open=True) for rank in (0, 1, 3)}
    rings = others | {2: ring(2, [*[STEP] * 3, [*STEP[:at], STEP[at + 1]]], is_open=True)}
    if (STEP[at].name, STEP[at].size, STEP[at].line) == (
        STEP[at + 1].name,
        STEP[at + 1].size,
        STEP[at + 1].line,
    ):
        assert not mismatches(
            rings
        )  # one gather of a layer is like the next: it is missed at the last of them
        return
    (mismatch,) = mismatches(rings)
    assert mismatch.ranks == (0, 1, 3) and list(mismatch.others) == [2]
    assert (mismatch.usual.site.line, mismatch.others[2].site.line) == (STEP[at].line, STEP[at + 1].line)


def test_a_rank_that_went_past_it_in_another_group_left_it_out() -> None:
    first, second = Asked(line=60, group=(0, 1, 2, 3)), Asked(line=70, group=(1, 2))
    rings = {
        0: ring(0, [[first], [first]], is_open=True),
        1: ring(1, [[first, second], [first]], is_open=True),
        2: ring(2, [[first, second], [second]], is_open=True),
        3: ring(3, [[first], [first]], is_open=True),
    }
    cause, follows = absences(rings)
    assert (cause.absent, cause.waiting, cause.is_cause) == ((2,), (0, 1, 3), True)
    assert cause.skipped[2].site.line == 70
    assert (follows.absent, follows.skipped, follows.is_cause) == ((1,), {}, False)


def test_another_size_is_a_mismatch_where_ranks_bring_as_much_and_none_where_they_may_not() -> None:
    even, odd = Asked(line=10, size=24), Asked(line=10, size=512)
    rings = {rank: ring(rank, [[odd if rank == 2 else even]]) for rank in range(WORLD)}
    (mismatch,) = mismatches(rings)
    assert (mismatch.ranks, list(mismatch.others), mismatch.others[2].size) == ((0, 1, 3), [2], 512)
    uneven = {
        rank: ring(rank, [[Asked(line=10, name="all_to_all_single", size=rank)]]) for rank in range(WORLD)
    }
    assert not mismatches(uneven)


def test_of_two_ranks_with_two_sizes_both_are_told() -> None:
    pair = (0, 2)
    rings = {
        0: ring(0, [[Asked(line=10, group=pair)]]),
        2: ring(2, [[Asked(line=90, group=pair, size=512)]]),
    }
    (mismatch,) = mismatches(rings)
    assert (mismatch.usual.site.line, mismatch.ranks, mismatch.others[2].site.line) == (10, (0,), 90)


def test_one_collective_may_be_asked_for_in_two_lines() -> None:
    sender, receiver = Asked(line=10, name="broadcast"), Asked(line=12, name="broadcast")
    rings = {rank: ring(rank, [[sender if rank == 0 else receiver]] * 3) for rank in range(WORLD)}
    assert not mismatches(rings)


def test_a_message_that_never_came_names_its_sender() -> None:
    asks = Asked(line=80, name="irecv", group=(0, 1), peer=0)
    gives = Asked(line=81, name="isend", group=(0, 1), peer=1)
    rings = {0: ring(0, [[gives], []]), 1: ring(1, [[asks], [asks]], is_open=True)}
    (absence,) = absences(rings)
    assert (absence.absent, absence.waiting, absence.operation.group_number) == ((0,), (1,), 2)
    assert "irecv from rank 0" in describe(absence.operation)
    assert not absences({0: ring(0, [[gives], [gives]]), 1: rings[1]})
