"""Goodput: the parts of a run's wall time, from what attempts leave on disk."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.training import goodput as command
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.attempts import (
    Attempt,
    AttemptEnd,
    attempt_ends,
    attempts,
    begin,
    claim,
    end,
    record_failure,
)
from trainer.processes.runtime import process_began
from trainer.telemetry.gauges import values
from trainer.telemetry.goodput import GoodputAccount, LiveGoodput, ReportedStep, read_account
from trainer.telemetry.metrics_file import JsonLines, each_line
from trainer.telemetry.step_report import OverRanks, StepReport


def step(
    number: int,
    at: float,
    *,
    attempt: int = 1,
    seconds: float = 10.0,
    wait: float = 0.0,
    stall: float = 0.0,
    evaluation: float = 0.0,
    skipped: str | None = None,
) -> StepReport:
    return StepReport(
        step=number,
        attempt=attempt,
        loss=1.0,
        seconds=seconds,
        phases={"checkpoint": stall},
        data_wait_seconds=wait,
        evaluation_seconds=evaluation,
        skipped=skipped,
        at=at,
    )


def attempt(number: int, first_step: int, began_at: float) -> Attempt:
    return Attempt(number=number, first_step=first_step, parent=None, began_at=began_at)


def account(
    begun: list[Attempt], ends: dict[int, AttemptEnd], reports: list[StepReport], now: float | None = None
) -> dict[str, float]:
    found = GoodputAccount(begun, ends)
    found.add(map(ReportedStep.of, reports))
    return {part: seconds for part, seconds in found.at(now).seconds.items() if seconds}


def test_an_attempt_that_ends_in_order_is_split_to_the_second() -> None:
    # Begun at 100, 20 s of start, two steps of 10 s (1 s between them), held-out losses of 4 s, 3 s of saving
    # at the end and 2 s of other things.
    reports = [step(0, 130.0, wait=2.0, stall=1.0), step(1, 141.0, evaluation=4.0)]
    ended = AttemptEnd(at=150.0, how="finished", saving_seconds=3.0)
    assert account([attempt(1, 0, 100.0)], {1: ended}, reports) == {
        "steps": 17.0,
        "data wait": 2.0,
        "checkpoint stall": 4.0,
        "evaluation": 4.0,
        "start": 20.0,
        "other": 3.0,
    }


def test_steps_that_a_later_attempt_does_again_are_lost_work() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 1, 100.0)]
    reports = [step(0, 20.0), step(1, 30.0, wait=5.0), step(2, 40.0, stall=1.0), step(1, 125.0, attempt=2)]
    ends = {1: AttemptEnd(at=47.0, how="failed"), 2: AttemptEnd(at=125.0, how="finished")}
    assert account(begun, ends, reports) == {
        "steps": 20.0,
        "lost work": 27.0,  # two steps, and 7 s of what came to no step
        "start": 10.0,
        "recovery": 15.0,
        "waiting for nodes": 53.0,
    }


def test_a_rollback_makes_the_steps_behind_it_lost_work_for_all_earlier_attempts() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 2, 30.0), attempt(3, 1, 60.0)]
    reports = [step(0, 10.0), step(1, 20.0), step(2, 50.0, attempt=2), step(1, 80.0, attempt=3)]
    ends = {
        number: AttemptEnd(at=at, how="failed" if number < 3 else "finished")
        for number, at in ((1, 20.0), (2, 50.0), (3, 80.0))
    }
    found = account(begun, ends, reports)
    assert (found["steps"], found["lost work"]) == (20.0, 20.0)


def test_of_a_killed_attempt_the_last_line_and_the_next_start_are_known() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 2, 100.0)]
    reports = [step(0, 20.0), step(1, 30.0), step(2, 120.0, attempt=2)]
    found = account(begun, {2: AttemptEnd(at=120.0, how="finished")}, reports)
    assert found == {
        "steps": 30.0,
        "start": 10.0,
        "lost work": 5.0,
        "waiting for nodes": 65.0,
        "recovery": 10.0,
    }


def test_a_killed_attempt_without_a_step_started_as_long_as_the_slowest_start() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 0, 50.0)]
    found = account(begun, {2: AttemptEnd(at=80.0, how="finished")}, [step(0, 80.0, attempt=2)])
    assert found == {"start": 20.0, "waiting for nodes": 30.0, "recovery": 20.0, "steps": 10.0}


def test_time_after_a_stop_is_no_part_of_the_wall_time() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 1, 1000.0)]
    ends = {1: AttemptEnd(at=20.0, how="stopped"), 2: AttemptEnd(at=1020.0, how="finished")}
    told = GoodputAccount(begun, ends)
    told.add(map(ReportedStep.of, [step(0, 20.0), step(1, 1020.0, attempt=2)]))
    found = told.at()
    assert (found.wall_seconds, found.stopped_seconds, found.num_failures) == (40.0, 980.0, 0)
    assert found.share == 0.5


def test_a_batch_skipped_for_its_loss_is_lost_work() -> None:
    ended = {1: AttemptEnd(at=20.0, how="finished")}
    found = account([attempt(1, 0, 0.0)], ended, [step(0, 10.0), step(1, 20.0, skipped="spike")])
    assert found == {"steps": 10.0, "lost work": 10.0}


def test_clocks_that_run_apart_make_nothing_negative() -> None:
    begun = [attempt(1, 0, 0.0), attempt(2, 1, 15.0)]  # the second machine is five seconds behind
    ends = {1: AttemptEnd(at=20.0, how="failed"), 2: AttemptEnd(at=35.0, how="finished")}
    assert min(account(begun, ends, [step(0, 20.0), step(1, 35.0, attempt=2)]).values()) > 0


def test_the_account_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    begin(output, attempt(claim(output), 0, 100.0))
    live = LiveGoodput(output)
    assert not live.noted(step(0, 120.0), 121.0).goodput  # ranks are not compared at this step
    compared = StepReport(
        step=1, attempt=1, loss=1.0, seconds=10.0, at=130.0, ranks={"forward": OverRanks.of([1.0])}
    )
    noted = live.noted(compared, 132.0)
    assert sum(noted.goodput.values()) == 32.0
    assert StepReport.from_json(noted.as_json()).goodput == noted.goodput
    told = {(value.name, value.labels.get("part")): value.value for value in values(noted)}
    assert told["goodput_share", None] == 20 / 32
    assert told["goodput_seconds", "start"] == 10.0


def test_what_an_attempt_says_first_of_its_end_holds(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    begin(output, attempt(claim(output), 3, 12.5))
    assert attempts(output)[0].began_at == 12.5
    before = time.time()
    record_failure(output, 1, "lost")
    end(output, 1, AttemptEnd(at=1e12, how="finished"))
    (ended,) = attempt_ends(output).values()
    assert ended.how == "failed" and before <= ended.at <= time.time()


def test_reports_are_read_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(Folder(str(tmp_path)))
    for number in range(50):
        lines.write(step(number, float(number)))
    lines.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "att')  # killed while it wrote
    monkeypatch.setattr("trainer.telemetry.metrics_file._STRETCH_BYTES", 700)
    found = [ReportedStep.from_json(line) for line in each_line(Folder(str(tmp_path)))]
    assert found == [ReportedStep.of(step(number, float(number))) for number in range(50)]


def test_this_process_began_before_now_and_after_the_machine() -> None:
    assert 0 < time.time() - process_began() < 86_400


def test_the_parts_of_a_run_with_three_failures_are_its_wall_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    run = Run(data=corpus, output=tmp_path / "run", changes={"validation": 0.1, "eval_every": 4})
    began = time.time()
    for killed_after in (3, 6, 10):
        run.start_and_kill(killed_after)
        time.sleep(0.3)
    assert run.start().finished
    ended = time.time()
    account = read_account(Folder(str(run.output)))
    found = account.at()
    assert (found.num_attempts, found.num_failures) == (4, 3)
    assert min(found.seconds.values()) >= 0
    # The forked processes start a little after `began`, and are gone a little before `ended`.
    spans = list(account.spans())
    inner = spans[-1].ended_at - spans[0].began_at
    assert found.wall_seconds == pytest.approx(inner, rel=0.01) and inner <= ended - began
    rows = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    applied = {row["step"]: row for row in rows}
    lost = sum(row["seconds"] for row in rows) - sum(row["seconds"] for row in applied.values())
    assert found.seconds["lost work"] >= lost > 0
    useful = sum(
        row["seconds"] - row["data_wait_seconds"] - row["phases"]["checkpoint"] for row in applied.values()
    )
    assert found.seconds["steps"] == pytest.approx(useful)
    # Three times 0.3 s lie between a death and the next start, and a death is taken to have come half a step
    # after the last report, on a busy machine later than it came.
    steps = [[row["seconds"] for row in rows if row["attempt"] == number] for number in (1, 2, 3)]
    assert found.seconds["waiting for nodes"] >= 0.9 - sum(sum(each) / len(each) / 2 for each in steps)
    assert found.seconds["evaluation"] > 0
    assert "goodput" in applied[10] and "goodput" in applied[11]

    page = tmp_path / "goodput.html"
    assert command.run(argparse.Namespace(run_output=str(run.output), to=str(page), json=False)) == 0
    assert "goodput" in capsys.readouterr().out
    assert "waiting for nodes" in page.read_text()
