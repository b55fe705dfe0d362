"""The plan beside runs that others published: those that its constants were fitted to, and those held out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from statistics import median

import pytest
from scipy.stats import spearmanr

from tests.trainer.planning.published import CALIBRATED, RUNS, SEEN, Run
from trainer.planning.counts import flops_per_token

SOURCES = tuple(dict.fromkeys(run.source for run in RUNS))


EARLIER = "Megatron Bridge, 25.09"
"""Held out as papers are: no constant was set by its rows."""


@functools.cache
def steps() -> dict[tuple[str, str], float]:
    """The predicted seconds of a step, by source and row: not made where tests are only collected."""
    return {(run.source, run.row): run.predicted().step_seconds for run in RUNS}


def step(run: Run) -> float:
    return steps()[run.source, run.row]


def rates(run: Run) -> tuple[float, float]:
    """Operations a GPU and second, published and predicted."""
    flops = flops_per_token(run.config, run.seq_len) * run.batch * run.seq_len / run.mesh.num_workers
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
    assert len(SOURCES) == 10
    assert len(CALIBRATED) == 4


def test_what_was_held_out_is_predicted() -> None:
    held_out = [run for run in RUNS if run.source not in (*CALIBRATED, EARLIER) and run.row not in SEEN]
    assert len(held_out) == 29
    found = errors(held_out)
    assert median(found) < 0.1
    assert max(found) < 0.23
    for source in {run.source for run in held_out}:
        assert misranked(run for run in held_out if run.source == source) == [], source


def test_what_the_constants_were_fitted_to_is_predicted() -> None:
    found = errors(of_source(*CALIBRATED))
    assert median(found) < 0.06
    assert max(found) < 0.22
    assert sum(len(misranked(of_source(source))) for source in CALIBRATED) == 6  # of 683


@pytest.mark.parametrize(
    ("source", "least"),
    list(zip(SOURCES, (0.8, 0.95, 0.9, 1.0, 0.9, 0.95, 0.5, 0.8, 0.8, 0.8), strict=True)),
    ids=SOURCES,
)
def test_runs_of_a_source_are_ranked_as_measured(source: str, least: float) -> None:
    published, predicted = zip(*(rates(run) for run in of_source(source)), strict=True)
    assert spearmanr(published, predicted).statistic >= least - 1e-9


BRIDGE = "Megatron Bridge, 25.11 and 26.02"
SMALL_KERNELS = ("GPT OSS 120B", "Qwen3 30B", "Qwen3 235B")
"""Models of many small experts, whose kernels wait for the host where no CUDA graph starts them. The plan counts
no host."""


def rows_of_bridge(*, gpus: tuple[str, ...], small: bool) -> list[Run]:
    return [
        run
        for run in of_source(BRIDGE)
        if run.gpu in gpus and any(f", {name}," in run.row for name in SMALL_KERNELS) == small
    ]


def test_dense_models_and_deepseek_v3_are_predicted_on_four_machines_in_float8_and_bfloat16() -> None:
    racks, nodes = (
        rows_of_bridge(gpus=gpus, small=False) for gpus in (("GB200", "GB300"), ("B200", "B300", "H100"))
    )
    assert (len(racks), len(nodes)) == (21, 12)
    assert max(errors(racks)) < 0.13
    assert max(errors(nodes)) < 0.24


def test_rows_of_an_earlier_release_that_no_constant_was_set_by_are_predicted() -> None:
    rows = of_source(EARLIER)
    found = errors(rows)
    assert len(rows) == 26
    assert median(found) < 0.13
    assert max(found) < 0.33
    assert sum(error > 0.2 for error in found) == 6


def test_expert_groups_that_no_multiple_of_a_rack_is_keep_its_fast_link() -> None:
    (bfloat16,) = (run for run in of_source(BRIDGE) if run.row.startswith("GB200, 25.11, V3, BF16"))
    assert bfloat16.mesh.ep == 64  # of 72
    assert step(bfloat16) / bfloat16.seconds == pytest.approx(1, abs=0.13)
    straddling = bfloat16.predicted(gpus_per_node=72, gpu_domain=72)  # of which none can be left out
    assert straddling.step_seconds > 1.8 * step(bfloat16)


def test_a_gb300_is_faster_than_a_gb200_at_the_same_layout() -> None:
    for precision, published in (("FP8-CS", 37556 / 31508), ("FP8-MX", 36108 / 29789)):
        faster, slower = (
            next(run for run in of_source(BRIDGE) if run.row.startswith(f"{gpu}, 25.11, 8B, {precision}"))
            for gpu in ("GB300", "GB200")
        )
        assert step(slower) / step(faster) == pytest.approx(published, rel=0.1)


def test_what_the_plan_misses_of_small_experts_is_known() -> None:
    """docs/plan.md tells these."""
    wrong = {
        run.row: step(run) / run.seconds - 1
        for run in rows_of_bridge(gpus=("GB200", "GB300", "B200", "B300", "H100"), small=True)
    }
    assert len(wrong) == 27
    assert sum(abs(error) > 0.2 for error in wrong.values()) == 17
    assert min(wrong.values()) == pytest.approx(-0.78, abs=0.02)
    assert max(wrong.values()) == pytest.approx(0.28, abs=0.02)


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
