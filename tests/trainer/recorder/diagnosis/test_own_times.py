"""Who was slow over the recorded steps, the heat map, the timeline and the stacks: from rings made for it."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.training.rings import WORLD, Asked, ring, times
from trainer.recipe_tables.failures import StragglersTable
from trainer.recorder.diagnosis.own_times import heat_map, rank_times, stragglers
from trainer.recorder.diagnosis.stacks import Frame, last_stack
from trainer.recorder.diagnosis.timeline import clock_offsets, timeline
from trainer.recorder.ring import RingContent

TABLE = StragglersTable()


def slow_run(steps: int, slow_from: int) -> dict[int, RingContent]:
    """Four ranks, of which rank 2 takes half as long again in forward from a step on."""
    return {
        rank: ring(
            rank,
            [],
            times=[times(step, 0.3 if rank == 2 and step >= slow_from else 0.2) for step in range(steps)],
        )
        for rank in range(WORLD)
    }


def test_the_slow_rank_is_named_from_the_rings_as_the_run_names_it() -> None:
    (found,) = stragglers(slow_run(100, 40), [list(range(WORLD))], TABLE, TABLE.window, ())
    assert (found.rank, found.node, found.phase, found.since_step) == (2, "node-1", "forward", 40)
    assert found.factor == pytest.approx(1.5)
    assert not stragglers(slow_run(100, 100), [list(range(WORLD))], TABLE, TABLE.window, ())
    assert not stragglers({}, [list(range(WORLD))], TABLE, TABLE.window, ())


def test_a_rank_without_a_ring_does_not_hide_the_slow_one() -> None:
    rings = slow_run(60, 0)
    del rings[0]
    (found,) = stragglers(rings, [list(range(WORLD))], TABLE, TABLE.window, ())
    assert (found.rank, found.since_step) == (2, 0)


def test_own_and_waiting_of_a_rank_are_medians() -> None:
    rings = {1: ring(1, [], times=[times(0, 0.1), times(1, 5.0), times(2, 0.3, waiting=0.7)])}
    (found,) = rank_times(rings)
    assert (found.rank, found.own["forward"], found.waiting["forward"]) == (1, 0.3, 0.1)
    assert found.own_seconds == pytest.approx(0.58) and found.waiting_seconds == pytest.approx(0.1)


def test_a_cell_of_the_heat_map_is_own_time_over_the_median_of_all_ranks() -> None:
    heat = heat_map(slow_run(8, 4))
    assert heat.columns == tuple((step, step) for step in range(8))
    assert [row.name for row in heat.rows] == [f"rank {rank} · node-{rank // 2}" for rank in range(WORLD)]
    assert heat.rows[0].cells == (1.0,) * 8
    assert heat.rows[2].cells == (1.0,) * 4 + (pytest.approx(0.58 / 0.48),) * 4


def test_a_heat_map_of_many_ranks_and_steps_has_few_cells_and_still_shows_the_slow_one() -> None:
    usual, slow = ([times(step, forward) for step in range(500)] for forward in (0.2, 0.6))
    rings = {
        rank: ring(rank, [], times=slow if rank == 777 else usual, node=f"n{rank // 8}")
        for rank in range(1000)
    }
    heat = heat_map(rings)
    assert len(heat.columns) <= 120 and len(heat.rows) <= 64
    assert heat.columns[0] == (0, 4) and heat.columns[-1][1] == 499
    (hot,) = [row for row in heat.rows if row.cells[3] is not None and row.cells[3] > 1.5]
    assert hot.name == "ranks 768 to 783 · n96 and 1 more"


def test_the_timeline_puts_the_ends_of_common_collectives_together() -> None:
    rings = {rank: ring(rank, [[Asked(line=10), Asked(line=20, size=8)]]) for rank in range(WORLD)}
    assert clock_offsets(rings) == {0: 0.0, 1: -100.0, 2: -200.0, 3: -300.0}
    events = json.loads(gzip.decompress(timeline(rings)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["ts"], event["dur"]) for event in spans} == {
        (rank, at * 1e6, 5e5) for rank in range(WORLD) for at in (0, 1)
    }
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"rank {rank} on node-{rank // 2}" for rank in range(WORLD)}
    assert json.loads(gzip.decompress(timeline({}))) == {"traceEvents": []}


STACKS = """
== no progress for 4 s in forward
Thread 0x0000000000007f01 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/x.py", line 5 in wait
  File "/venv/lib/python3.11/site-packages/trainer/run/step.py", line 88 in train_step

Current thread 0x00000000000000aa (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in run
Thread 0x0000000000007f01 (most recent call first):
  File "/home/one/trainer/feed/feed.py", line 9 in _take
  File "/home/one/trainer/run/step.py", line 70 in train_step
"""


def test_the_last_stack_of_the_thread_that_steps_counts() -> None:
    stack = last_stack(STACKS, 0x7F01)
    assert stack is not None
    assert stack.in_trainer == Frame(file="trainer/feed/feed.py", line=9, function="_take")
    first = last_stack(STACKS.rsplit("Thread", 1)[0], 0x7F01)
    assert first is not None and first.why == "no progress for 4 s in forward"
    assert str(first.frames[0]) == "torch/x.py:5 in wait"
    assert str(first.in_trainer) == "trainer/run/step.py:88 in train_step"
    assert last_stack(STACKS, 0x1) is None and last_stack("", 0x1) is None
