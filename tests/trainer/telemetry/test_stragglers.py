"""Slow ranks are found, and fast ones are left alone: over simulated times, by rank, phase, size and
noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from trainer.recipe_tables.failures import StragglersTable
from trainer.telemetry.phases import PHASES
from trainer.telemetry.stragglers import StepWindow, Straggler, StragglerDetector

LIMITS = StragglersTable()
SECONDS: Mapping[str, float] = dict(zip(PHASES, (0.002, 0.2, 0.02, 0.4, 0.03, 0.05, 0.0001), strict=True))
STEP_SECONDS = 0.8


def named(
    seed: int, num_ranks: int, sigma: float, slow: tuple[int, str] | None, *, factor: float = 1.5
) -> set[tuple[int, str]]:
    """Whom the detector names in a run with log-normal noise where `slow`, a rank and a phase, takes `factor`
    times as long."""
    random = np.random.default_rng(seed)
    detector = StragglerDetector(LIMITS, [list(range(num_ranks))], ["node"] * num_ranks)
    windows = [StepWindow(LIMITS.window) for _ in range(num_ranks)]
    found = set()
    for step in range(100):
        noise = random.lognormal(0.0, sigma, (num_ranks, len(PHASES)))
        ended = [
            windows[rank].add(
                step,
                {
                    phase: SECONDS[phase] * noise[rank, at] * (factor if slow == (rank, phase) else 1.0)
                    for at, phase in enumerate(PHASES)
                },
                STEP_SECONDS,
            )
            for rank in range(num_ranks)
        ]
        if ended[0] is not None:
            medians: list[Mapping[str, float]] = [each[1] for each in ended if each is not None]
            found |= {(one.rank, one.phase) for one in detector.add_window(ended[0][0], medians, ended[0][2])}
    return found


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_one_of_four_that_is_half_as_slow_again_in_one_phase_is_named_in_each_of_twenty_runs(
    phase: str,
) -> None:
    for seed in range(20):
        slow = (seed % 4, phase)
        assert named(seed, 4, 0.15, slow) == {slow}, seed


@pytest.mark.parametrize("num_ranks", [3, 4, 8, 64])
def test_nobody_is_named_in_twenty_runs_without_a_slow_one(num_ranks: int) -> None:
    assert [named(seed, num_ranks, 0.2, None) for seed in range(20)] == [set()] * 20


def test_a_phase_that_costs_next_to_nothing_is_nobodys_fault() -> None:
    assert named(1, 8, 0.05, (2, "checkpoint"), factor=40.0) == set()


def times(forward: float) -> Mapping[str, float]:
    return {**SECONDS, "forward": forward}


def feed(detector: StragglerDetector, windows: list[float], others: int = 3) -> list[list[Straggler]]:
    """Windows in which the last rank took so long in forward, and the others 0.2 s."""
    return [
        detector.add_window(20 * number, [times(0.2)] * others + [times(seconds)], STEP_SECONDS)
        for number, seconds in enumerate(windows)
    ]


def test_it_is_named_after_two_windows_in_a_row_and_let_go_after_two_good_ones() -> None:
    detector = StragglerDetector(LIMITS, [[0, 1, 2, 3]], ["a", "a", "b", "b"])
    told = feed(detector, [0.3, 0.2, 0.3, 0.3, 0.2, 0.3, 0.2, 0.2, 0.2])
    assert [[(one.rank, one.since_step, one.ended) for one in each] for each in told] == [
        [], [], [], [(3, 40, False)], [], [(3, 40, False)], [], [(3, 40, True)], [],
    ]  # fmt: skip
    (straggler,) = told[3]
    assert (straggler.node, straggler.phase, straggler.factor) == ("b", "forward", pytest.approx(1.5))
    assert told[7][0].factor == 1.0


def test_of_two_ranks_none_is_named_and_stages_are_judged_by_themselves() -> None:
    pair = StragglerDetector(LIMITS, [[0, 1]], ["a"] * 2)
    assert feed(pair, [0.9, 0.9, 0.9], others=1) == [[], [], []]
    stages = StragglerDetector(LIMITS, [[0, 1, 2], [3, 4, 5]], ["a"] * 6)
    of_first, of_last = times(0.2), times(0.5)  # the last stage has the loss
    told = [
        stages.add_window(at, [of_first] * 3 + [of_last, times(0.75), of_last], STEP_SECONDS)
        for at in range(2)
    ]
    assert [(one.rank, one.factor) for one in told[1]] == [(4, pytest.approx(1.5))]


def test_rank_0_may_take_longer_where_it_has_more_to_do() -> None:
    detector = StragglerDetector(LIMITS, [[0, 1, 2]], ["a"] * 3, exempt=((0, "checkpoint"),))
    longer = {**SECONDS, "checkpoint": 0.5}
    assert [detector.add_window(at, [longer, SECONDS, SECONDS], STEP_SECONDS) for at in range(3)] == [
        [],
        [],
        [],
    ]
    told = [detector.add_window(at, [SECONDS, longer, SECONDS], STEP_SECONDS) for at in range(2)]
    assert [one.rank for one in told[1]] == [1]


def test_one_slow_step_in_a_window_does_not_move_its_median() -> None:
    window = StepWindow(5)
    seconds = [0.2, 9.0, 0.2, 0.25, 0.15]
    ended = [window.add(step, {"forward": each}, 1.0) for step, each in enumerate(seconds)]
    assert ended == [None] * 4 + [(0, {"forward": 0.2}, 1.0)]


def test_limits_are_those_of_the_recipe() -> None:
    strict = dataclasses.replace(LIMITS, factor=2.0)
    assert feed(StragglerDetector(strict, [[0, 1, 2, 3]], ["a"] * 4), [0.3, 0.3]) == [[], []]
