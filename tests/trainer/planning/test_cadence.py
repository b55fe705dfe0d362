"""How often to save: the published intervals, and none that loses less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.options import PlanTable
from trainer.planning.cadence import (
    asynchronous_overhead,
    availability_interval,
    cadence_overhead,
    restart_overhead,
    young_interval,
)
from trainer.planning.plan import mtbf_hours


@pytest.mark.parametrize(
    ("mtbf_hours", "save", "young", "available", "percent"),
    [(1.8, 5, 255, 265, 3.9), (7.9, 30, 1306, 1344, 4.6)],
)
def test_cadence_is_as_published(
    mtbf_hours: float, save: float, young: float, available: float, percent: float
) -> None:
    mtbf = mtbf_hours * 3600
    assert young_interval(save, mtbf) == pytest.approx(young, abs=0.5)
    assert availability_interval(save, mtbf, 300) == pytest.approx(available, abs=0.5)
    assert 100 * cadence_overhead(young_interval(save, mtbf), save, mtbf) == pytest.approx(percent, abs=0.05)


@given(st.floats(1, 1e4), st.floats(1e3, 1e6), st.floats(0.1, 10))
def test_no_interval_loses_less_than_youngs(save: float, mtbf: float, factor: float) -> None:
    best = young_interval(save, mtbf)
    assert cadence_overhead(best, save, mtbf) <= cadence_overhead(best * factor, save, mtbf) * (1 + 1e-12)


def test_saving_beside_the_loop_waits_only_for_what_does_not_fit_between_two_saves() -> None:
    assert asynchronous_overhead(100, 20, 36_000) == 70 / 36_000
    assert asynchronous_overhead(100, 150, 36_000) == 0.5 + 200 / 36_000
    assert restart_overhead(300, 36_000) == 300 / 36_000


@pytest.mark.parametrize(("nodes", "hours"), [(2048, 1.8), (16384, 0.23), (1, 24 / 6.5e-3)])
def test_failures_come_with_the_number_of_nodes(nodes: int, hours: float) -> None:
    # 2410.21680: 1.8 hours at 16,384 GPUs and 0.23 at 131,072, of a measured rate a node.
    assert mtbf_hours(PlanTable(), nodes) == pytest.approx(hours, rel=0.03)
    assert mtbf_hours(PlanTable(mtbf_hours=8.0), nodes) == 8
    # Llama 3 (2407.21783, section 3.3.4): 419 interruptions in 54 days of 16,384 GPUs, three hours apart.
    assert mtbf_hours(PlanTable(), 2048) < 54 * 24 / 419 < 2 * mtbf_hours(PlanTable(), 2048)
