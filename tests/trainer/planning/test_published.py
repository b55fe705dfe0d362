"""The plan beside runs that others published: those that its constants were fitted to, and those held out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from statistics import median

import pytest
from scipy.stats import spearmanr

from tests.trainer.planning.published import CALIBRATED, RUNS, SEEN, Run

SOURCES = tuple(dict.fromkeys(run.source for run in RUNS))


@functools.cache
def steps() -> dict[tuple[str, str], float]:
    """The predicted seconds of a step, by source and row: not made where tests are only collected."""
    return {(run.source, run.row): run.predicted().step_seconds for run in RUNS}


def step(run: Run) -> float:
    return steps()[run.source, run.row]


def rates(run: Run) -> tuple[float, float]:
    """Operations a GPU and second, published and predicted."""
    flops = run.config.flops_per_token(run.seq_len) * run.batch * run.seq_len / run.mesh.num_workers
    return flops / run.seconds, flops / step(run)


def of_source(*sources: str) -> list[Run]:
    return [run for run in RUNS if run.source in sources]


def errors(runs: Iterable[Run]) -> list[float]:
    return [abs(step(run) / run.seconds - 1) for run in runs]


def misranked(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Pairs whose published rates differ by over 10% and whose predicted ones lie the other way round."""
    wrong = []
    for one, other in itertools.combinations(runs, 2):
        (published, predicted), (published_other, predicted_other) = rates(one), rates(other)
        apart = max(published, published_other) / min(published, published_other) > 1.1
        if apart and (published - published_other) * (predicted - predicted_other) <= 0:
            wrong.append((one.row, other.row))
    return wrong


def test_there_are_as_many_runs_as_it_takes_to_judge_a_plan() -> None:
    assert len(steps()) == len(RUNS) >= 100
    assert len(SOURCES) == 8
    assert len(CALIBRATED) == 4


def test_what_was_held_out_is_predicted() -> None:
    held_out = [run for run in RUNS if run.source not in CALIBRATED and run.row not in SEEN]
    assert len(held_out) == 29
    found = errors(held_out)
    assert median(found) < 0.1
    assert max(found) < 0.23
    for source in set(SOURCES) - set(CALIBRATED):
        assert misranked(run for run in held_out if run.source == source) == [], source


def test_what_the_constants_were_fitted_to_is_predicted() -> None:
    found = errors(of_source(*CALIBRATED))
    assert median(found) < 0.06
    assert max(found) < 0.22
    # Of 603 pairs: a model of 28.3B beside one of 6.2B, and a long sequence beside a larger model.
    assert sum(len(misranked(of_source(source))) for source in CALIBRATED) == 2


@pytest.mark.parametrize(
    ("source", "least"),
    list(zip(SOURCES, (0.8, 0.95, 0.9, 1.0, 0.9, 0.95, 0.5, 0.8), strict=True)),
    ids=SOURCES,
)
def test_runs_of_a_source_are_ranked_as_measured(source: str, least: float) -> None:
    published, predicted = zip(*(rates(run) for run in of_source(source)), strict=True)
    assert spearmanr(published, predicted).statistic >= least - 1e-9


def test_zero_3_falls_behind_with_the_number_of_gpus_and_model_parallel_layouts_do_not() -> None:
    runs = {run.row: run for run in of_source("Narayanan 2021, table 2")}
    for name, sizes in (("ZeRO-3, 175B", (384, 768, 1536)), ("ZeRO-3, 530B", (640, 1120, 2240))):
        first, second, third = (rates(runs[f"{name}, {size}"])[1] for size in sizes)
        assert first > 1.4 * second > 1.4 * 1.8 * third
    plain, wide = (rates(runs[f"TP 8 x PP 12, 175B, {size}"])[1] for size in (384, 1536))
    assert 1 < plain / wide < 1.15
    assert plain > rates(runs["ZeRO-3, 175B, 384"])[1]


def test_a_plain_and_an_overlapped_system_are_told_apart_by_keys() -> None:
    (run,) = (run for run in of_source("MegaScale, table 2") if run.row == "MegaScale, 12288")
    hidden, plain = run.predicted(), run.predicted(overlap=0.0)
    assert plain.compute_seconds == hidden.compute_seconds
    assert plain.exposed_seconds > 1.5 * hidden.exposed_seconds


def test_the_share_of_the_peak_rises_with_the_size_of_the_model() -> None:
    shares = [rates(run)[1] for run in of_source("Narayanan 2021, table 1")]
    assert shares[-1] > 1.05 * shares[0]
