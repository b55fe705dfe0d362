"""The cadence that a run finds itself: Daly's optimum, the failures it has seen, and the same bytes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.checkpoint.cadence import FIRST_STEPS, AutoCadence, daly_interval, expected_mtbf


@pytest.mark.parametrize(
    ("stall", "restart", "mtbf"), [(2, 600, 11_135), (2, 30, 11_135), (120, 900, 11_135)]
)
def test_the_interval_is_the_optimum_of_the_exact_expectation(
    stall: float, restart: float, mtbf: float
) -> None:
    """Wall time per useful second for exponential failures: M·e^(R/M)·(e^((t+C)/M) - 1)/t (Daly 2006,
    equation 20)."""

    def wall(interval: float) -> float:
        return mtbf * math.exp(restart / mtbf) * math.expm1((interval + stall) / mtbf) / interval

    best = min(range(10, 5000), key=wall)
    assert daly_interval(stall, mtbf) == pytest.approx(best, rel=0.005)


def test_a_save_that_takes_longer_than_failures_are_apart_is_made_once_between_two() -> None:
    assert daly_interval(30.0, 10.0) == 10.0


def test_failures_that_were_seen_outweigh_the_prior() -> None:
    assert expected_mtbf(1000.0, 0.0, 0) == 1000.0
    assert expected_mtbf(1000.0, 9000.0, 0) == 10_000.0  # nothing has failed for long
    assert expected_mtbf(1e6, 1e6, 99) == pytest.approx(2e4)


def cadence(num_failures: int = 0) -> AutoCadence:
    return AutoCadence(prior=10_000.0, run_seconds=10_000.0, num_failures=num_failures)


def test_the_first_checkpoint_measures() -> None:
    found = cadence()
    assert found.steps(0.0) == FIRST_STEPS
    found.note_step(2.0)
    found.note_save(4.0)
    assert found.steps(0.0) == math.ceil(daly_interval(4.0, 20_000.0) / 2.0) == 199
    assert found.steps(1000.0) == 625  # never so often that one waits for the one before


def test_more_failures_make_it_save_more_often_and_one_slow_step_changes_nothing() -> None:
    few, many = cadence(1), cadence(9)
    for each in (few, many):
        for seconds in (2.0, 2.0, 60.0):
            each.note_step(seconds)
        each.note_save(4.0)
    assert many.steps(0.0) < few.steps(0.0) == math.ceil(daly_interval(4.0, 10_000.0) / 2.0)


def test_a_run_that_finds_its_cadence_trains_on_the_same_bytes(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    given = Run(data=corpus, output=tmp_path / "given", changes={"steps": 14})
    auto = {"every": "auto", "keep_every": 6, "keep": 9}
    found = Run(data=corpus, output=tmp_path / "found", changes={"steps": 14, "checkpoint": auto})
    assert given.start().finished and found.start().finished
    assert found.losses() == given.losses()
    assert found.sequences() == given.sequences()
    saved = {int(name[5:13]) for name in found.checkpoints()}
    assert {6, 12, 14} <= saved  # multiples of keep_every, which stay, and the last
