"""What the processes of a new generation agree on: from what each holds, without any process."""

from __future__ import annotations

import random

import pytest

from trainer.processes.agreement import Agreement, CannotRecoverError, RankReport, agree, keeps_copy_of
from trainer.recipe_tables.parallelism import Mesh


def mesh(**sizes: int) -> Mesh:
    return Mesh(**{"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1} | sizes)


def of_ddp(num: int):  # type: ignore[no-untyped-def]
    return lambda rank: mesh(dp_replicate=num).replicas_of(rank, shards=False)


def held(
    rank: int, applied: int, *, done: int | None = None, ready: bool = False, attempt: int = 1
) -> RankReport:
    return RankReport(
        rank=rank,
        holds=True,
        applied=applied,
        done=applied if done is None else done,
        ready=ready,
        attempt=attempt,
    )


def test_where_nobody_holds_anything_the_run_starts_from_its_checkpoint() -> None:
    assert agree([RankReport(rank=0), RankReport(rank=1)], of_ddp(2)) is None


@pytest.mark.parametrize("ready", [False, True])
def test_a_step_that_nobody_finished_voting_on_is_done_again(ready: bool) -> None:
    found = agree([held(0, 5, ready=ready), RankReport(rank=1), held(2, 5)], of_ddp(3))
    assert found == Agreement(step=5, progress_from=0, attempt=1, filled_by={1: 0})


def test_a_rank_that_did_not_hear_of_the_vote_brings_the_step_in_by_itself() -> None:
    found = agree([held(0, 5, ready=True), RankReport(rank=1), held(2, 6, done=5)], of_ddp(3))
    assert found == Agreement(step=6, progress_from=2, attempt=1, behind=(0,), filled_by={1: 0})


def test_the_progress_is_that_of_a_rank_that_did_the_end_of_the_step() -> None:
    found = agree([held(0, 6, done=5), held(1, 6), RankReport(rank=2)], of_ddp(3))
    assert found == Agreement(step=6, progress_from=1, attempt=1, filled_by={2: 0})


@pytest.mark.parametrize(
    "late", [held(0, 5), held(0, 4, ready=True)], ids=["without gradients", "two steps behind"]
)
def test_a_rank_that_cannot_catch_up_makes_the_run_start_again(late: RankReport) -> None:
    with pytest.raises(CannotRecoverError, match=r"rank 0 has . steps in its weights and no gradients"):
        agree([late, RankReport(rank=1), held(2, 6)], of_ddp(3))


def test_the_newest_attempt_of_those_that_are_left_is_the_one_that_ended() -> None:
    found = agree([held(0, 5, attempt=2), RankReport(rank=1), held(2, 5, attempt=3)], of_ddp(3))
    assert found is not None
    assert found.attempt == 3


def test_a_shard_whose_replicas_are_all_lost_makes_the_run_start_again() -> None:
    hsdp = mesh(dp_replicate=2, dp_shard=2)
    reports = [RankReport(rank=0), held(1, 5), RankReport(rank=2), held(3, 5)]
    with pytest.raises(
        CannotRecoverError, match="rank 0 is lost, and no other rank holds its weights and moments"
    ):
        agree(reports, lambda rank: hsdp.replicas_of(rank, shards=True))


@pytest.mark.parametrize(
    ("sizes", "shards", "rank", "expected"),
    [
        ({"dp_replicate": 4}, False, 2, (0, 1, 3)),
        ({"dp_shard": 4}, False, 2, (0, 1, 3)),
        ({"dp_shard": 4}, True, 2, ()),
        ({"dp_replicate": 2, "dp_shard": 2}, True, 1, (3,)),
        ({"dp_replicate": 2, "tp": 2}, True, 1, (3,)),
        ({"dp_shard": 2, "tp": 2}, False, 3, (1,)),
        ({"pp": 2, "dp_replicate": 2}, True, 2, (3,)),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}, True, 21, (29,)),
    ],
)
def test_the_ranks_that_hold_the_same_pieces(
    sizes: dict[str, int], shards: bool, rank: int, expected: tuple[int, ...]
) -> None:
    assert mesh(**sizes).replicas_of(rank, shards=shards) == expected


def kept(rank: int, steps: tuple[int, ...], num: int = 4) -> RankReport:
    applied = steps[-1]
    return RankReport(
        rank=rank,
        holds=True,
        applied=applied,
        done=applied,
        attempt=1,
        kept=steps,
        keeps_of=keeps_copy_of(rank, num),
    )


def test_without_a_replica_all_go_back_to_the_newest_step_that_every_copy_has() -> None:
    reports = [kept(0, (7, 8)), RankReport(rank=1), kept(2, (7, 8)), kept(3, (8, 9))]
    found = agree(reports, lambda rank: ())
    assert found == Agreement(step=8, progress_from=0, attempt=1, filled_by={1: 2}, from_copies=True)


def test_two_neighbours_that_are_lost_together_make_the_run_start_again() -> None:
    reports = [kept(0, (7, 8)), RankReport(rank=1), RankReport(rank=2), kept(3, (7, 8))]
    with pytest.raises(
        CannotRecoverError, match="rank 1 is lost, and rank 2, which keeps its copy, is lost too"
    ):
        agree(reports, lambda rank: ())


def test_copies_of_no_common_step_make_the_run_start_again() -> None:
    reports = [kept(0, (7, 8)), RankReport(rank=1), kept(2, (9, 10)), kept(3, (9, 10))]
    with pytest.raises(CannotRecoverError, match="keep no copies of one step"):
        agree(reports, lambda rank: ())


def test_whatever_dies_when_the_step_after_which_it_counts_is_in_every_weight() -> None:
    """A step of four ranks as a machine: each comes to the vote, finishes it once all came, applies and ends
    the step. At a random moment some die; those that are left must agree on the step that the furthest of
    them has."""
    rng = random.Random(3)
    for _ in range(2000):
        arrived = [rng.random() < 0.7 for _ in range(4)]
        finished = [all(arrived) and rng.random() < 0.5 for _ in range(4)]
        ended = [finished[rank] and rng.random() < 0.5 for rank in range(4)]
        dead = set(rng.sample(range(4), rng.randint(1, 3)))
        reports = [
            RankReport(rank=rank)
            if rank in dead
            else held(
                rank, 5 + finished[rank], done=5 + ended[rank], ready=arrived[rank] and not finished[rank]
            )
            for rank in range(4)
        ]
        found = agree(reports, of_ddp(4))
        assert found is not None
        left = [rank for rank in range(4) if rank not in dead]
        assert found.step == 5 + any(finished[rank] for rank in left)
        assert set(found.filled_by) == dead
        assert set(found.behind) == {rank for rank in left if 5 + finished[rank] < found.step}
        assert found.progress_from in left
