"""Figures of a step: utilisation, phases, ranks, learning rate, and the line that machines read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from lineage.storage.folder import Folder, StorageError
from tests.support.training import watched_report
from trainer.data.figures import ReadFigures, load_figures
from trainer.model.config.sizes import model_config
from trainer.optim.learning_rate import learning_rate
from trainer.planning.gpus import GPUS, mfu, peak_of_device
from trainer.processes.watchdog import RankProgress, diagnose
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.telemetry import metrics_file
from trainer.telemetry.gauges import GAUGES, values
from trainer.telemetry.metrics_file import JsonLines, last_reports, read_reports
from trainer.telemetry.phases import PHASES
from trainer.telemetry.sinks import TensorBoard, describe, describe_straggler
from trainer.telemetry.step_report import ExpertLoad, OverRanks, StepReport
from trainer.telemetry.stragglers import Straggler
from trainer.telemetry.symptoms import Symptom
from trainer.telemetry.timing import PhaseClock, StepTiming


@pytest.mark.parametrize(("tokens_per_second", "share"), [(5762, 0.337), (6667, 0.390)])
def test_utilisation_of_llama_3_8b_is_as_published(tokens_per_second: float, share: float) -> None:
    utilised = mfu(model_config("8B", 128_256), 8192, tokens_per_second, GPUS["H100"].peak_flops)
    assert utilised == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(("name", "known"), [
    ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
    ("NVIDIA B200", "B200"), ("AMD Instinct MI300X", "MI300X"),
])  # fmt: skip
def test_a_peak_is_known_by_the_name_that_a_device_gives_itself(name: str, known: str) -> None:
    assert peak_of_device(name) == GPUS[known].peak_flops


def test_the_peak_of_an_unknown_device_is_not_guessed() -> None:
    assert peak_of_device("NVIDIA GeForce RTX 4090") is None


def test_phases_add_up_to_the_step() -> None:
    clock = PhaseClock(torch.device("cpu"))
    clock.data_arrived()
    for phase in ("data loading", "forward", "loss", "backward", "forward", "optimizer"):
        clock.enter(phase)  # type: ignore[arg-type]
    timing = clock.end_step()
    seconds = timing.seconds()
    assert set(seconds) == set(PHASES)
    assert sum(seconds.values()) == pytest.approx(timing._end - timing._marks[0][1])
    assert seconds["checkpoint"] == 0.0


def test_what_a_step_waits_for_data_is_a_part_of_its_first_phase() -> None:
    clock = PhaseClock(torch.device("cpu"))
    clock.enter("data loading")
    clock.data_arrived()
    clock.enter("forward")
    timing = clock.end_step()
    assert 0 < timing.data_wait_seconds() < timing.seconds()["data loading"]


def test_a_pipeline_is_idle_between_the_passes_of_its_stages() -> None:
    # Four passes of one second; waits of two and one seconds between them, and what comes before and after is
    # no part.
    passes = [(10.0, 11.0), (13.0, 14.0), (14.0, 15.0), (16.0, 17.0)]
    timing = StepTiming([("data loading", 0.0)], 1.0, 30.0, passes)
    assert timing.pipeline_idle_share() == pytest.approx(3 / 7)


def test_without_a_pipeline_none_is_idle() -> None:
    clock = PhaseClock(torch.device("cpu"))
    clock.enter("data loading")
    clock.data_arrived()
    assert clock.end_step().pipeline_idle_share() is None


def test_the_passes_of_a_step_are_no_part_of_the_next() -> None:
    clock = PhaseClock(torch.device("cpu"))
    with clock.stage_pass():
        clock.enter("data loading")
        clock.data_arrived()
    assert clock.end_step().pipeline_idle_share() == 0.0
    clock.enter("data loading")
    clock.data_arrived()
    assert clock.end_step().pipeline_idle_share() is None


def test_the_slowest_rank_is_named() -> None:
    assert OverRanks.of([0.1, 0.5, 0.3]) == OverRanks(
        least=0.1, mean=pytest.approx(0.3), most=0.5, slowest_rank=1
    )
    ranks = {"forward": OverRanks.of([0.3, 0.3, 0.4]), "data wait": OverRanks.of([0.0, 2.0, 0.1])}
    told = describe(StepReport(step=3, attempt=1, loss=2.0, gradient_norm=1.0, own_ranks=ranks), 9)
    assert "slowest rank 1 (own data wait 2.00 s, mean 0.70)" in told
    alone = {"forward": OverRanks.of([0.3])}
    assert StepReport(step=3, attempt=1, loss=2.0, own_ranks=alone).slowest is None


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (0.5, "step 3/103, 50 s left  loss"),
        (30, "step 3/103, 50 min left"),
        (900, "25 h left"),
        (8640, "9.9 days left"),
    ],
)
def test_the_time_that_is_left_is_told(seconds: float, left: str) -> None:
    told = describe(StepReport(step=3, attempt=1, loss=2.0, gradient_norm=1.0, seconds=seconds), 103)
    assert left in told


def test_the_last_step_leaves_none() -> None:
    told = describe(StepReport(step=8, attempt=1, loss=2.0, gradient_norm=1.0, seconds=3.0), 9)
    assert told.startswith("step 8/9  loss")


STRAGGLER = Straggler(
    rank=3, node="n7", phase="forward", seconds=0.3, usual=0.2, since_step=40, detail="its disk"
)
EXPERTS = ExpertLoad(fullest=1.5, dropped=0.25, entropy=2.0, balance_loss=1.125, z_loss=4.5)
LOADING = ReadFigures(
    hits=90, misses=10, bytes_fetched=12_000_000, damaged_blocks=2, disk_errors=1, evictions=3
)


def test_loading_is_told_for_all_ranks_and_counts_tokens_of_peers_once() -> None:
    counted = [sum(pair) for pair in zip(*([LOADING.counted(num_tokens=1_000_000)] * 4), strict=True)]
    figures = load_figures(counted, num_peers=2)
    assert (figures.hit_share, figures.bytes_fetched, figures.damaged_blocks) == (0.9, 48_000_000, 8)
    assert figures.read_amplification == 48e6 / (2 * 1_000_000 * 4)
    told = describe(StepReport(step=3, attempt=1, loss=2.0, gradient_norm=1.0, loading=figures), 9)
    assert "cache hits 90.0%, 48 MB fetched (6.00 of what was read), 8 damaged blocks, 4 disk errors" in told


def test_nothing_fetched_is_all_hits() -> None:
    figures = load_figures(ReadFigures(hits=5).counted(100), num_peers=1)
    assert (figures.hit_share, figures.read_amplification) == (1.0, 0.0)


def test_a_line_of_the_metrics_file_tells_the_whole_report() -> None:
    report = StepReport(
        step=10,
        attempt=2,
        loss=3.5,
        loss_by_source={"web": 3.5},
        tokens_by_source={"web": 7},
        gradient_norm=0.5,
        lr=1e-3,
        pipeline_idle_share=0.25,
        context_imbalance=1.5,
        experts=EXPERTS,
        skipped="spike",
        first_sequence=70,
        last_sequence=76,
        seconds=2.0,
        tokens_per_second=99.0,
        mfu=0.4,
        phases={"forward": 1.0},
        data_wait_seconds=0.5,
        own={"forward": 0.75},
        waiting={"forward": 0.25},
        ranks={"forward": OverRanks.of([0.1, 0.2])},
        own_ranks={"forward": OverRanks.of([0.1, 0.15])},
        stragglers=(STRAGGLER, dataclasses.replace(STRAGGLER, ended=True)),
        loading=load_figures(LOADING.counted(1000), 1),
        checkpoint_age_seconds=60.0,
        validation_loss={"web": 3.0},
        max_memory_bytes=5,
        at=1.8e9,
        evaluation_seconds=0.5,
        goodput={"steps": 3.0},
        health=(Symptom(rank=1, kind="slow", text="rank 1 is slow"),),
    )
    assert StepReport.from_json(report.as_json()) == report
    plain = StepReport(step=0, attempt=1, loss=None)
    assert StepReport.from_json(plain.as_json()) == plain


def test_a_line_tells_the_goodput_once_a_run_is_longer_than_its_start() -> None:
    report = StepReport(step=3, attempt=1, loss=2.0, gradient_norm=1.0, goodput={"start": 9.0, "steps": 3.0})
    assert "goodput" not in describe(report, 9)
    assert "goodput 85.0%" in describe(dataclasses.replace(report, goodput={"start": 9.0, "steps": 51.0}), 9)


def test_every_gauge_is_set_from_a_report_and_has_its_labels() -> None:
    report = StepReport(
        step=10,
        attempt=2,
        loss=3.5,
        z_loss=0.25,
        loss_by_source={"web": math.nan, "books": 3.5},
        tokens_by_source={"web": 7},
        pipeline_idle_share=0.25,
        context_imbalance=1.5,
        experts=EXPERTS,
        gradient_norm=0.5,
        mfu=0.4,
        phases=dict.fromkeys(PHASES, 1.0),
        own={"forward": 0.75},
        waiting={"forward": 0.25},
        ranks={"data wait": OverRanks.of([0.1, 0.2])},
        own_ranks={"forward": OverRanks.of([0.1, 0.2])},
        stragglers=(STRAGGLER, dataclasses.replace(STRAGGLER, phase="loss", ended=True)),
        checkpoint_age_seconds=60.0,
        loading=load_figures(LOADING.counted(1000), 1),
        validation_loss={"web": 3.0},
        evaluations=watched_report.report().evaluations,
        goodput={"steps": 3.0, "lost work": 1.0},
    )
    told = list(values(report))
    assert {value.name for value in told} == set(GAUGES) - {"skipped"}
    assert all(set(value.labels) == set(GAUGES[value.name][1]) for value in told)
    assert [value.labels for value in told if value.name == "source_loss"] == [{"source": "books"}]
    (slowest,) = [value for value in told if value.name == "slowest_rank"]
    assert (slowest.value, slowest.labels) == (1.0, {"phase": "data wait"})
    factors = [(value.value, value.labels) for value in told if value.name == "straggler_factor"]
    assert factors == [
        (pytest.approx(1.5), {"rank": "3", "node": "n7", "phase": "forward"}),
        (1.0, {"rank": "3", "node": "n7", "phase": "loss"}),
    ]
    scores = {value.labels["score"]: value.value for value in told if value.name == "evaluation"}
    assert (scores["arc/accuracy"], scores["arc/clean/accuracy"], scores["arc/seen_items"]) == (
        0.5,
        0.375,
        1.0,
    )
    (dropped,) = [value for value in told if value.name == "expert_dropped"]
    assert (dropped.value, dropped.labels) == (0.25, {})


def test_a_straggler_is_told_with_rank_node_phase_factor_and_since_when() -> None:
    assert describe_straggler(STRAGGLER) == (
        "straggler: rank 3 on n7 takes 1.50 times as long as others at the same work in forward (0.300 s a"
        " step beside 0.200) since step 40; its disk"
    )
    ended = describe_straggler(dataclasses.replace(STRAGGLER, ended=True))
    assert ended == "straggler no more: rank 3 on n7 keeps up with the others in forward again"


def test_what_a_step_does_not_have_sets_no_gauge() -> None:
    without = {value.name for value in values(StepReport(step=3, attempt=1, loss=2.0))}
    assert not {name for name in without if name.startswith(("expert_", "pipeline_", "context_"))}
    unknown = dataclasses.replace(EXPERTS, entropy=None)
    told = {value.name for value in values(StepReport(step=3, attempt=1, loss=2.0, experts=unknown))}
    assert "expert_fullest" in told and "expert_entropy" not in told


def test_the_terminal_tells_of_pipelines_shared_sequences_and_experts() -> None:
    report = StepReport(
        step=3,
        attempt=1,
        loss=2.0,
        gradient_norm=1.0,
        pipeline_idle_share=0.125,
        context_imbalance=1.5,
        experts=EXPERTS,
    )
    told = describe(report, 9)
    assert "pipeline idle 12.5%" in told
    assert "attention's fullest rank 1.50 of the mean" in told
    assert "fullest expert 1.50 of the mean, 25.0% dropped" in told


def test_a_line_is_json_whatever_the_figures() -> None:
    report = StepReport(
        step=3,
        attempt=2,
        loss=math.nan,
        gradient_norm=math.inf,
        skipped="non_finite_loss",
        first_sequence=21,
        last_sequence=27,
        ranks={"forward": OverRanks.of([0.1, 0.2])},
        loss_by_source={"web": math.nan},
    )
    row = json.loads(report.as_json())
    assert (row["step"], row["attempt"], row["loss"], row["skipped"]) == (3, 2, None, True)
    assert (row["reason"], row["sequences"], row["loss_by_source"]) == (
        "non_finite_loss",
        [21, 27],
        {"web": None},
    )
    assert row["ranks"]["forward"]["slowest"] == 1


def test_half_a_line_of_a_killed_attempt_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1, "lo')
    sink = JsonLines(Folder(str(tmp_path)))
    sink.write(StepReport(step=1, attempt=2, loss=1.0))
    sink.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]


@pytest.mark.parametrize("behind", [-1, 0, 700, 2_997, 2_999])
def test_the_end_of_a_long_file_is_read_back_to_the_last_report_that_is_known(
    tmp_path: Path, behind: int
) -> None:
    reports = [StepReport(step=step, attempt=1, loss=1.0) for step in range(3_000)]
    text = "".join(report.as_json() + "\n" for report in reports)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 3000, "at')
    assert len(text) > 4 * metrics_file._END_BYTES
    found = last_reports(Folder(str(tmp_path)), lambda report: report.step > behind)
    assert [report.step for report in found] == list(range(behind + 1, 3_000))


def test_a_run_without_metrics_has_no_last_reports(tmp_path: Path) -> None:
    assert last_reports(Folder(str(tmp_path)), lambda report: True) == []


def steps_in(output: Folder) -> list[tuple[int, int]]:
    return [(report.attempt, report.step) for report in read_reports(output)]


def test_two_attempts_lose_no_line_of_each_other_in_an_object_store(s3: dict[str, str]) -> None:
    output = Folder("s3://runs/one")
    fenced = JsonLines(output)
    fenced.write(StepReport(step=0, attempt=1, loss=1.0))
    fenced.flush()
    newer = JsonLines(output)
    newer.write(StepReport(step=1, attempt=2, loss=1.0))
    newer.flush()
    fenced.write(StepReport(step=1, attempt=1, loss=1.0))
    fenced.close()
    assert steps_in(output) == [(1, 0), (2, 1), (1, 1)]
    newer.write(StepReport(step=2, attempt=2, loss=1.0))
    newer.close()
    assert steps_in(output) == [(1, 0), (2, 1), (1, 1), (2, 2)]


def test_lines_reach_an_object_store_between_checkpoints(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(metrics_file.time, "monotonic", lambda: clock[0])
    output = Folder("s3://runs/one")
    sink = JsonLines(output)
    sink.write(StepReport(step=0, attempt=1, loss=1.0))
    assert steps_in(output) == []
    clock[0] = 61.0
    sink.write(StepReport(step=1, attempt=1, loss=1.0))
    sink.write(StepReport(step=2, attempt=1, loss=1.0))
    assert steps_in(output) == [(1, 0), (1, 1)]


def test_a_store_that_is_down_between_checkpoints_ends_no_training(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(metrics_file.time, "monotonic", lambda: clock[0])
    output = Folder("s3://runs/one")
    sink = JsonLines(output)
    with monkeypatch.context() as down:

        def refuse(*_: object) -> None:
            raise StorageError("the store does not answer")

        down.setattr(metrics_file.objects, "put_new", refuse)
        clock[0] = 61.0
        sink.write(StepReport(step=0, attempt=1, loss=1.0))
        assert "the store does not answer" in caplog.text
        with pytest.raises(StorageError):
            sink.flush()
    sink.close()
    assert steps_in(output) == [(1, 0)]


def test_a_store_that_goes_down_after_it_refused_a_put_ends_no_training(
    s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(metrics_file.time, "monotonic", lambda: clock[0])
    output = Folder("s3://runs/one")
    sink, other = JsonLines(output), JsonLines(output)
    other.write(StepReport(step=0, attempt=2, loss=1.0))
    other.close()
    with monkeypatch.context() as down:
        reads = iter([metrics_file.objects.get])  # the refused put looks once at what is there

        def read_once(url: str) -> Any:
            for read in reads:
                return read(url)
            raise StorageError("the store does not answer")

        down.setattr(metrics_file.objects, "get", read_once)
        clock[0] = 61.0
        sink.write(StepReport(step=0, attempt=1, loss=1.0))
    sink.write(StepReport(step=1, attempt=1, loss=1.0))
    sink.close()
    assert steps_in(output) == [(2, 0), (1, 0), (1, 1)]


def test_a_skipped_step_tells_its_sequences() -> None:
    told = describe(
        StepReport(step=3, attempt=1, loss=None, skipped="spike", first_sequence=21, last_sequence=27), 9
    )
    assert "skipped (spike): sequences 21 to 27" in told


TABLE = OptimizerTable(lr=1.0, warmup_steps=10, min_lr_ratio=0.1)


def test_the_rate_rises_then_falls_along_a_cosine_to_its_floor() -> None:
    rates = [learning_rate(step, 110, TABLE) for step in range(110)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[10 + 99 // 2] == pytest.approx(0.55, abs=0.01)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_stable_rate_stays_until_the_last_fifth() -> None:
    table = OptimizerTable(lr=1.0, warmup_steps=10, min_lr_ratio=0.1, schedule="wsd")
    rates = [learning_rate(step, 100, table) for step in range(100)]
    assert set(rates[10:80]) == {1.0}
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("shape", "halfway"), [("linear", 0.55), ("sqrt", 1 - 0.9 * 0.5**0.5), ("cosine", 0.55)]
)
def test_a_decay_after_the_stable_rate_has_the_shape_and_the_share_that_are_asked_for(
    shape: Literal["linear", "sqrt", "cosine"], halfway: float
) -> None:
    table = OptimizerTable(
        lr=1.0, warmup_steps=10, min_lr_ratio=0.1, schedule="wsd", decay=shape, decay_share=0.5
    )
    rates = [learning_rate(step, 101, table) for step in range(101)]
    assert set(rates[10:51]) == {1.0}
    assert rates[50 + 25] == pytest.approx(halfway)
    quarter = {"linear": 0.775, "sqrt": 0.55, "cosine": 0.1 + 0.9 * (2 + 2**0.5) / 4}
    assert rates[50 + 12] == pytest.approx(quarter[shape], abs=0.02)
    assert rates[-1] == pytest.approx(0.1)


def test_a_linear_rate_falls_from_the_warm_up_to_the_last_step() -> None:
    table = OptimizerTable(lr=1.0, warmup_steps=10, min_lr_ratio=0.0, schedule="linear")
    rates = [learning_rate(step, 111, table) for step in range(111)]
    assert rates[10:] == pytest.approx([1 - step / 100 for step in range(101)])
    assert learning_rate(60, 111, table, peak=4.0) == pytest.approx(2.0)


def test_a_rate_beyond_the_planned_steps_stays_at_the_floor() -> None:
    assert learning_rate(500, 110, TABLE) == pytest.approx(0.1)


def at(num_markers: int, where: str, step: int = 5) -> RankProgress:
    return RankProgress(num_markers=num_markers, step=step, where=where)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        (
            [at(40, "backward"), at(37, "data loading"), at(40, "backward")],
            "rank 1 is hung in step 5, data loading; others wait in step 5 in the reduce-scatter or"
            " all-reduce of gradients",
        ),
        (
            [at(40, "forward"), None, None],
            "rank 1, 2 gives no sign of life; others wait in step 5 in the all-gather of parameters",
        ),
        (
            [at(40, "all-reduce of losses"), at(40, "all-reduce of losses")],
            "all ranks wait in step 5 in the all-reduce of losses; `sluice train diagnose OUTPUT` says who"
            " came to it",
        ),
    ],
)
def test_the_rank_that_others_wait_for_is_named(standings: list[RankProgress | None], expected: str) -> None:
    assert diagnose(standings) == expected


def test_a_failing_disk_under_tensorboard_is_named_without_a_traceback_of_its_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = threading.excepthook
    events = TensorBoard(Folder(str(tmp_path)))
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", fail)
    with pytest.raises(StorageError, match=f"No space left on device: '{tmp_path}/tensorboard'"):
        for step in range(1000):
            events.write(StepReport(step=step, attempt=1, loss=2.0))
            events.flush()
    with contextlib.suppress(StorageError):  # if its thread has told it already
        events.close()
    assert threading.excepthook is before
    assert "Traceback" not in capsys.readouterr().err
