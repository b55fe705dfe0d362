"""Weights & Biases and MLflow have the numbers of metrics.jsonl, and no fault of theirs stops a run."""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.telemetry import trackers
from trainer.telemetry.metrics_file import read_reports
from trainer.telemetry.scalars import scalars
from trainer.telemetry.step_report import StepReport
from trainer.telemetry.trackers import TrackedRun, Tracker, dotted

STEPS = 4


def tracked(tmp_path: Path) -> TrackedRun:
    return TrackedRun(name="mine", output=Folder(str(tmp_path)), config={"lineage.run": "mine"})


def report(step: int = 0) -> StepReport:
    return StepReport(step=step, attempt=1, loss=2.5, z_loss=0.25, gradient_norm=math.inf)


@pytest.fixture()
def data(tmp_path: Path) -> str:
    return make_corpus(str(tmp_path / "out"), {"web": [3000]}).url


def trained(data: str, output: Path, name: str) -> list[StepReport]:
    """The reports of a run that has this tracker."""
    run = Run(data=data, output=output, changes={"trackers": [name], "steps": STEPS, "z_loss": 1e-4})
    run.start()
    return list(read_reports(Folder(str(output))))


def wanted(reports: list[StepReport]) -> dict[tuple[int, str], float]:
    return {
        (each.step, name): value
        for each in reports
        for name, value in scalars(each).items()
        if math.isfinite(value)
    }


def test_mlflows_file_store_holds_the_numbers_of_metrics_jsonl(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason='the extra "mlflow" is not installed')
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    output = tmp_path / "run"
    reports = trained(data, output, "mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=f"file://{output}/mlflow")
    (experiment,) = (each for each in client.search_experiments() if each.name == "sluice")
    (run,) = client.search_runs([experiment.experiment_id])
    found = {
        (metric.step, name): metric.value
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    }
    assert found == wanted(reports)
    assert (0, "loss/z") in found
    assert run.data.params["lineage.run"] == reports_run(output)
    assert len(run.data.params["lineage.plan_fingerprint"]) == 32
    assert run.info.status == "FINISHED"


def test_wandbs_offline_files_hold_the_numbers_of_metrics_jsonl(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason='the extra "wandb" is not installed')
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    output = tmp_path / "run"
    reports = trained(data, output, "wandb")
    (file,) = output.glob("wandb/offline-run-*/run-*.wandb")
    rows, config = wandb_contents(file.read_bytes())
    found = {
        (int(row["step"]), name): value
        for row in rows
        for name, value in row.items()
        if not name.startswith("_") and name != "step"
    }
    assert found == wanted(reports)
    assert config["lineage.run"] == reports_run(output)
    assert len(str(config["lineage.plan_fingerprint"])) == 32


def reports_run(output: Path) -> object:
    """The run's name as lineage has it."""
    first = (output / "lineage.jsonl").read_text().splitlines()[0]
    return json.loads(first)["run"]


def wandb_contents(data: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """History and configuration in a file of records, framed as LevelDB's logs."""
    from wandb.proto import wandb_internal_pb2

    rows, config = [], {}
    for raw in records(data):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        if record.WhichOneof("record_type") == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return rows, config


def records(data: bytes) -> Iterator[bytes]:
    """Those of 32 KiB blocks, each piece behind checksum, length and kind (whole, first, middle, last)."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_an_error_of_a_tracker_is_told_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the server is away")

    monkeypatch.setitem(trackers._OPENERS, "mlflow", lambda run: (fail, fail))  # type: ignore[arg-type]
    tracker = Tracker("mlflow", tracked(tmp_path))
    for step in range(3):
        tracker.write(report(step))
    tracker.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(
        "train.trackers: mlflow gets no more reports (OSError: the server is away); the run goes on"
    )


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    monkeypatch.setattr(trackers, "_CLOSING_SECONDS", 0.1)
    monkeypatch.setitem(
        trackers._OPENERS,
        "wandb",
        lambda run: (lambda *_: released.wait(30), lambda: None),  # type: ignore[arg-type]
    )
    tracker = Tracker("wandb", tracked(tmp_path))
    tracker.write(report())
    tracker.close()
    assert "it did not take the last reports within 0 s" in capsys.readouterr().err
    released.set()


def test_an_extra_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    tracker = Tracker("wandb", tracked(tmp_path))
    tracker._thread.join(10)
    tracker.close()
    assert 'expected the extra "wandb" to be installed' in capsys.readouterr().err


def test_a_configuration_has_dotted_names_and_no_passwords() -> None:
    found = dotted({"run": {"name": "mine"}, "train": {"data": "https://me:secret@host/out", "skip": [1]}})
    assert found.keys() == {"run.name", "train.data", "train.skip"}
    assert "secret" not in str(found)


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(found={})
    monkeypatch.setitem(
        trackers._OPENERS,  # type: ignore[arg-type]
        "mlflow",
        lambda run: (lambda step, at, found: seen.found.update(found), lambda: None),
    )
    tracker = Tracker("mlflow", tracked(tmp_path))
    tracker.write(report())
    tracker.close()
    assert seen.found["loss/train"] == 2.5
    assert "optimizer/gradient_norm" not in seen.found
