"""Goodput of a fleet: the simulation beside the closed forms and published figures."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from trainer.checkpoint.cadence import daly_interval
from trainer.planning.fleet.reliability import (
    LLAMA_3,
    Reliability,
    best_spares,
    expected_goodput,
    fleet_case,
    nodes_in_repair,
    share_of,
    simulate,
    waiting_shares,
)

MTBF = 11_135.0
DAYS = 54 * 86_400.0
LLAMA_3_INTERRUPTIONS = 466
"""With the 47 that were planned (2407.21783, section 3.3.4)."""


def case(stall: float, restart: float, **more: float) -> Reliability:
    return Reliability(mtbf=MTBF, interval=daly_interval(stall, MTBF), stall=stall, restart=restart, **more)  # type: ignore[arg-type]


def test_llama_3_lists_its_unexpected_interruptions() -> None:
    assert sum(cause.count for cause in LLAMA_3) == LLAMA_3_INTERRUPTIONS - 47
    assert pytest.approx(MTBF, abs=1) == DAYS / 419


@pytest.mark.parametrize(
    ("stall", "restart", "published"), [(2, 600, 0.9297), (2, 30, 0.9785), (120, 900, 0.7935)]
)
def test_the_simulation_is_the_closed_form_within_three_standard_errors(
    stall: float, restart: float, published: float
) -> None:
    found, exact = simulate(case(stall, restart), DAYS), expected_goodput(case(stall, restart))
    assert exact == pytest.approx(published, abs=1e-4)
    assert abs(found.wall_per_useful - 1 / exact) < 3 * found.wall_error
    assert found.wall_error < 2e-3


def test_in_place_the_simulation_is_the_closed_form_of_a_step() -> None:
    # A fleet that fails every ten minutes, so that steps and recoveries count.
    failing = Reliability(
        mtbf=600.0, interval=300.0, stall=2.0, restart=1e9, in_place=20.0, in_place_share=1.0, step=15.0
    )
    found, exact = simulate(failing, 5 * 86_400.0, runs=400), expected_goodput(failing)
    assert abs(found.wall_per_useful - 1 / exact) < 3 * found.wall_error
    assert found.wall_error < 1e-3


def test_where_some_failures_need_a_restart_the_expectation_lies_between() -> None:
    mixed = case(2, 600, in_place=30.0, in_place_share=0.8, step=15.0)
    found = simulate(mixed, DAYS)
    assert (
        expected_goodput(case(2, 600))
        < found.mean
        < expected_goodput(dataclasses.replace(mixed, in_place_share=1.0))
    )
    assert found.mean == pytest.approx(expected_goodput(mixed), abs=2e-3)


def test_waiting_for_repair_is_erlangs_loss() -> None:
    assert next(waiting_shares(15.5)) == pytest.approx(15.5 / 16.5)
    for spares in (2, 5):
        # Long runs, since the first days have no node in repair; restarts and saves cost nothing here.
        repaired = Reliability(
            mtbf=3600.0, interval=36.0, stall=0.0, restart=0.0, repair=4 * 3600.0, spares=spares
        )
        found = simulate(repaired, 200 * 86_400.0, runs=64)
        expected = next(itertools.islice(waiting_shares(nodes_in_repair(repaired)), spares, None))
        assert found.waiting == pytest.approx(expected, rel=0.03)


def test_spares_as_measured_elsewhere() -> None:
    """2,048 nodes, two days of repair, 30 s for a swap, a save every 300 s: .52, .86, .970, .977 with 8 to
    32."""
    swapped = Reliability(mtbf=MTBF, interval=300.0, stall=2.0, restart=30.0, repair=2 * 86_400.0)
    found = [
        simulate(dataclasses.replace(swapped, spares=spares), DAYS / 3, runs=100).mean
        for spares in (8, 16, 24, 32)
    ]
    assert found == pytest.approx([0.54, 0.86, 0.970, 0.977], abs=0.03)


def test_spares_are_bought_as_long_as_they_pay() -> None:
    fleet = Reliability(mtbf=MTBF, interval=300.0, stall=2.0, restart=30.0, repair=2 * 86_400.0)
    best = best_spares(fleet, 2048)
    assert nodes_in_repair(fleet) < best < nodes_in_repair(fleet) + 5 * math.sqrt(nodes_in_repair(fleet))
    assert best_spares(dataclasses.replace(fleet, repair=0.0), 2048) == 0
    # Linear in the spares: of ninety thousand nodes in repair too.
    away = dataclasses.replace(fleet, repair=1e9)
    assert best_spares(away, 10**6) == pytest.approx(nodes_in_repair(away), rel=0.02)


def test_where_nothing_is_ever_done_the_closed_form_is_0() -> None:
    assert expected_goodput(case(2, 1e9)) == 0.0
    assert expected_goodput(dataclasses.replace(case(2, 600), interval=1e9)) == 0.0


def test_llama_3s_published_failures_give_above_90_percent() -> None:
    rate = LLAMA_3_INTERRUPTIONS / (54 * 2048)
    llama = fleet_case(
        num_nodes=2048, failures_per_node_day=rate, stall=2.0, restart=600.0, repair=2 * 86_400.0
    )
    assert 0.90 < simulate(llama, DAYS).low < expected_goodput(llama)


def test_in_place_recovery_is_asked_for_what_it_can_do() -> None:
    assert share_of(LLAMA_3, in_place=True) == pytest.approx(350 / 419)
    assert share_of(LLAMA_3, needs_repair=True) == pytest.approx(356 / 419)


def test_the_same_seed_gives_the_same_runs() -> None:
    assert simulate(case(2, 600), DAYS, runs=20, seed=3) == simulate(case(2, 600), DAYS, runs=20, seed=3)
    assert simulate(case(2, 600), DAYS, runs=20, seed=3) != simulate(case(2, 600), DAYS, runs=20, seed=4)
