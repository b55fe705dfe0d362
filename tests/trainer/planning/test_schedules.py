"""Schedules: the action tables are torch's own, and executed they give the bubbles that are known in closed
form."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import device, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.planning.schedules import (
    Action,
    PassTimes,
    PipelinePlan,
    RankMemory,
    action_table,
    fullest_instants,
    long_span,
    span,
)
from trainer.recipe_tables.parallelism import PipelineTable, Schedule, rank_of_stage

pytestmark = pytest.mark.differential("trainer/planning", "trainer/recipe_tables")

IN_TORCH: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
EVEN = PassTimes(forward=1.0, input=1.0, weight=1.0)
SIZES = [
    (schedule, pp, 1 if schedule in ("gpipe", "1f1b") else 2) for schedule in IN_TORCH for pp in (2, 4, 8)
]


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.ERROR)
    dist.init_process_group("fake", rank=0, world_size=16, store=FakeStore())
    yield
    dist.destroy_process_group()


def actions_of_torch(
    schedule: Schedule, pp: int, num_stages: int, num_micro_batches: int
) -> list[list[Action]]:
    """The compute actions of torch's table, pairs flattened."""
    stages = [0, 2 * pp - 1] if schedule in ("zbv", "dualpipev") else range(0, pp * num_stages, pp)
    group = dist.new_group(list(range(pp)))
    stages = [PipelineStage(nn.Linear(1, 1), i, pp * num_stages, device("cpu"), group=group) for i in stages]
    make: Any = get_schedule_class(IN_TORCH[schedule])
    made = make(
        stages[0] if num_stages == 1 else stages,
        n_microbatches=num_micro_batches,
        loss_fn=lambda *parts: None,
    )
    order = made._get_pipeline_order() if made.pipeline_order is None else made.pipeline_order
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    table: list[list[Action]] = []
    for rank in range(pp):
        flat = [
            part for action in order[rank] if action is not None for part in action.sub_actions or (action,)
        ]
        found = [
            (part.stage_index, kinds.get(part.computation_type.name), part.microbatch_index) for part in flat
        ]
        # torch numbers the forward passes of 1F1B's last rank from 1 in this table, and executes them
        # rightly.
        shift = 1 if schedule == "1f1b" and rank == pp - 1 else 0
        table.append([Action(c, k, m - shift if k == "F" else m) for c, k, m in found if k is not None])  # type: ignore[arg-type]
    return table


@pytest.mark.parametrize(("schedule", "pp", "num_stages"), [*SIZES, ("interleaved", 4, 3)])
@pytest.mark.parametrize("num_micro_batches", [1, 4, 8, 12, 16, 18, 33])
@pytest.mark.usefixtures("process_group")
def test_every_rank_works_in_the_order_of_torch(
    schedule: Schedule, pp: int, num_stages: int, num_micro_batches: int
) -> None:
    taken = PipelineTable(schedule=schedule, virtual_stages=num_stages).fill_up(num_micro_batches, pp)
    if taken != num_micro_batches and schedule != "1f1b":  # which torch refuses only when it runs
        with pytest.raises(ValueError, match="microbatches"):
            actions_of_torch(schedule, pp, num_stages, num_micro_batches)
    table = action_table(PipelinePlan(schedule, pp, num_stages, taken))
    assert [list(actions) for actions in table] == actions_of_torch(schedule, pp, num_stages, taken)
    for rank, actions in enumerate(table):
        assert {rank_of_stage(schedule, action.stage, pp) for action in actions} == {rank}


def idle_of_useful(pipeline: PipelinePlan, times: PassTimes, shares: Sequence[float]) -> float:
    """Idle time over useful time, of all ranks: uneven stages included."""
    useful = pipeline.num_micro_batches * (times.forward + times.input + times.weight) * sum(shares)
    return pipeline.pp * span(pipeline, times, shares) / useful - 1


@pytest.mark.parametrize(("schedule", "pp", "num_stages"), SIZES)
@pytest.mark.parametrize("rounds", [2, 4])
def test_bubbles_are_those_of_the_closed_forms(
    schedule: Schedule, pp: int, num_stages: int, rounds: int
) -> None:
    num_micro_batches = rounds * pp
    pipeline = PipelinePlan(schedule, pp, num_stages, num_micro_batches)
    shares = [1 / (pp * num_stages)] * (pp * num_stages)
    # (p − 1)/(v·m) of schedules that compute both gradients at once, a third of that where F = I = W and they
    # do not.
    apart = 3 if schedule in ("interleaved_zero_bubble", "zbv", "dualpipev") else 1
    expected = Fraction(pp - 1, num_stages * num_micro_batches * apart)
    assert idle_of_useful(pipeline, EVEN, shares) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "times", "expected"),
    [
        ("interleaved_zero_bubble", (1.0, 1.2, 0.8), 0.0875),
        ("zbv", (1.0, 1.2, 0.8), 0.075),
        ("dualpipev", (1.0, 1.2, 0.8), 0.0875),
        ("1f1b", (1.0, 1.2, 0.8), 0.375),
    ],
)
def test_a_longer_gradient_of_the_input_leaves_more_bubble(
    schedule: Schedule, times: tuple[float, float, float], expected: float
) -> None:
    num_stages = 1 if schedule == "1f1b" else 2
    passes = PassTimes(forward=times[0], input=times[1], weight=times[2])
    found = idle_of_useful(
        PipelinePlan(schedule, 4, num_stages, 8), passes, [1 / (4 * num_stages)] * (4 * num_stages)
    )
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "num_stages", "expected"),
    [
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("interleaved", 2, [11, 9, 7, 5]),
        ("interleaved_zero_bubble", 2, [8, 8, 8, 8]),
        ("zbv", 2, [8, 8, 8, 8]),
        ("dualpipev", 2, [9, 9, 9, 9]),
    ],
)
def test_a_rank_keeps_as_many_stages_as_its_schedule_has_under_way(
    schedule: Schedule, num_stages: int, expected: list[int]
) -> None:
    table = action_table(PipelinePlan(schedule, 4, num_stages, 8))
    ones, kinds = [1.0] * (4 * num_stages), [0] * (4 * num_stages)
    assert [
        max(instant.kept for instant in fullest_instants(actions, ones, ones, kinds)) for actions in table
    ] == expected


def test_gradients_are_there_from_a_stages_first_backward_pass_on() -> None:
    # gpipe has made none before all its forward passes are done; 1F1B has while it still begins
    # micro-batches.
    assert pairs("gpipe", 1, 1) == [(8, 0), (7, 1)]
    assert pairs("1f1b", 1, 1) == [(3, 0), (3, 1)]
    assert pairs("1f1b", 3, 1) == [(1, 0), (1, 1)]
    # Where backward is split gradients come with W.
    assert [made for _, made in pairs("zbv", 0, 2)] == [0, 1, 2]
    assert max(instant.between for instant in instants_on("zbv", 3, 2)) == 7
    assert max(instant.between for instant in instants_on("interleaved", 3, 2)) == 0


def instants_on(schedule: Schedule, rank: int, num_stages: int) -> tuple[RankMemory, ...]:
    ones, kinds = [1.0] * (4 * num_stages), [0] * (4 * num_stages)
    return fullest_instants(action_table(PipelinePlan(schedule, 4, num_stages, 8))[rank], ones, ones, kinds)


def pairs(schedule: Schedule, rank: int, num_stages: int) -> list[tuple[float, int]]:
    """The most that is kept with each number of stages that have gradients."""
    most: dict[int, float] = {}
    for instant in instants_on(schedule, rank, num_stages):
        (made,) = instant.made
        most[made] = max(instant.kept, most.get(made, 0.0))
    return [(kept, made) for made, kept in most.items()]


@given(
    st.sampled_from(list(IN_TORCH)),
    st.integers(1, 6),
    st.integers(1, 4),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)),
)
def test_a_pipeline_is_never_faster_than_its_work_nor_than_its_first_pass(
    schedule: Schedule, pp: int, rounds: int, times: tuple[int, int, int, int]
) -> None:
    num_stages, num_micro_batches = 1 if schedule in ("gpipe", "1f1b") else 2, 2 * pp * rounds
    passes = PassTimes(forward=times[0], input=times[1], weight=times[2], send=times[3])
    shares = [1 / (pp * num_stages)] * (pp * num_stages)
    table = action_table(PipelinePlan(schedule, pp, num_stages, num_micro_batches))
    pipeline = PipelinePlan(schedule, pp, num_stages, num_micro_batches)
    whole = span(pipeline, passes, shares)
    work = num_micro_batches * sum(times[:3]) / pp
    # The last rank begins when p − 1 stages have passed the first micro-batch on.
    assert whole >= work + (pp - 1) * (times[0] / (pp * num_stages) + times[3]) - 1e-9
    free = span(pipeline, PassTimes(forward=times[0], input=times[1], weight=times[2]), shares)
    assert whole >= free - 1e-9
    assert len({action for actions in table for action in actions}) == sum(map(len, table))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(schedule, num) for schedule, pp, num in SIZES if pp == 2] + [("interleaved", 3)]),
    st.integers(2, 4),
    st.integers(20, 160),
    st.tuples(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.1, 2), st.sampled_from([0.0, 0.01, 0.3])),
    st.lists(st.sampled_from([0.98, 1.0, 1.0, 1.02, 1.3]), min_size=12, max_size=12),
)
def test_a_long_table_takes_as_long_as_if_every_action_were_executed(
    of: tuple[Schedule, int],
    pp: int,
    num_micro_batches: int,
    times: tuple[float, float, float, float],
    shares: list[float],
) -> None:
    schedule, num_stages = of
    taken = PipelineTable(schedule=schedule, virtual_stages=num_stages).fill_up(num_micro_batches, pp)
    pipeline = PipelinePlan(schedule, pp, num_stages, taken)
    passes = PassTimes(forward=times[0], input=times[1], weight=times[2], send=times[3])
    uneven = shares[: pp * num_stages]
    assert long_span(pipeline, passes, uneven) == pytest.approx(span(pipeline, passes, uneven), rel=1e-9)


def test_an_uneven_pipeline_is_as_slow_as_its_fullest_rank() -> None:
    assert idle_of_useful(PipelinePlan("1f1b", 2, 1, 64), EVEN, [0.75, 0.25]) == pytest.approx(0.5, rel=0.02)
