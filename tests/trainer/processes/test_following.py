"""What a run writes elsewhere is shown here once: lines of its metrics, and why processes of it ended."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from trainer.attempts import claim, failures, record_failure
from trainer.processes.following import Follower, following
from trainer.telemetry.metrics_file import JsonLines
from trainer.telemetry.step_report import StepReport
from trainer.telemetry.symptoms import Symptom


def report(step: int) -> StepReport:
    return StepReport(step=step, attempt=1, loss=2.0 + step, gradient_norm=1.0)


def test_only_what_is_new_is_shown_and_only_once(output: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    sink = JsonLines(output)
    for step in (10, 20):
        sink.write(report(step))
    sink.flush()
    claim(output)
    record_failure(output, 0, "OSError: of an earlier launch")
    follower = Follower(output, 100)
    for step in (29, 30, 40):
        sink.write(report(step))
    sink.flush()
    claim(output)
    record_failure(output, 3, "rank 3 made no progress for 600 s")
    follower.look()
    follower.look()
    told = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[:2] for line in told] == [
        ["attempt 2, rank 3 ended: rank 3 made no progress for 600 s"],
        ["step 30/100", "loss 32.0000"],
        ["step 40/100", "loss 42.0000"],
    ]
    assert list(failures(output)) == [(1, 0), (2, 3)]


def test_metrics_that_were_put_leave_nothing_behind(
    output: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    sink = JsonLines(output)
    sink.write(report(10))
    sink.close()
    assert output.read("metrics.jsonl").decode() == report(10).as_json() + "\n"
    assert not list((tmp_path / "spool").iterdir())


def test_half_a_line_is_shown_when_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    follower, line = Follower(Folder(str(tmp_path)), 100), report(10).as_json() + "\n"
    (tmp_path / "metrics.jsonl").write_text(line[:50])
    follower.look()
    assert capsys.readouterr().err == ""
    (tmp_path / "metrics.jsonl").write_text(line)
    follower.look()
    assert capsys.readouterr().err.startswith("step 10/100  loss 12.0000")


def test_the_last_lines_are_shown_before_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with following(Folder(str(tmp_path)), 100):
        (tmp_path / "metrics.jsonl").write_text(report(99).as_json() + "\n")
    assert capsys.readouterr().err.startswith("step 99/100")


def test_what_a_run_elsewhere_found_of_its_machines_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sign = Symptom(rank=1, kind="sign", text="rank 1 (b) shows a sign: 9 disk errors")
    told = dataclasses.replace(report(11), health=(sign,))
    (tmp_path / "metrics.jsonl").write_text("")
    follower = Follower(Folder(str(tmp_path)), 100)
    (tmp_path / "metrics.jsonl").write_text(told.as_json() + "\n")
    follower.look()
    assert capsys.readouterr().err == "health: rank 1 (b) shows a sign: 9 disk errors\n"
