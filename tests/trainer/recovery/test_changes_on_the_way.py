"""What a run is told that goes on with another recipe than it had."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.recovery.rollbacks import Rollback, record_rollback
from trainer.recovery.same_recipe import changes_on_the_way

OPTIMIZER = {"lr": 1e-3, "warmup_steps": 2}
MIXTURE = [{"first_step": 0, "weights": {"web": 1.0}}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of six steps, the fourth and the last saved."""
    folder = tmp_path_factory.mktemp("out")
    corpus = make_corpus(str(folder / "data"), {"web": [1700, 530]})
    changes = {"steps": 6, "optimizer": OPTIMIZER, "mixture": MIXTURE, "record_batches": False}
    run = Run(data=corpus.url, output=folder / "run", changes=changes)
    assert run.start().finished
    return run


def told(run: Run, **changes: Any) -> list[str]:
    return changes_on_the_way(run.recipe({"steps": 12} | changes))


LONGER = "train.steps is 12 now and was 6"


def test_more_steps_are_told_with_the_rate_before_and_after(run: Run) -> None:
    assert told(run) == [f"{LONGER}: the rate goes from 0.0001 to 0.00063 at step 6"]


@pytest.mark.parametrize(
    ("key", "value", "change", "rate"),
    [
        ("lr", 5e-3, "0.005 now and was 0.001", "0.0031"),
        ("warmup_steps", 9, "9 now and was 2", "0.00078"),
        ("min_lr_ratio", 1.0, "1.0 now and was 0.1", "0.001"),
        ("schedule", "wsd", "'wsd' now and was 'cosine'", "0.001"),
    ],
)
def test_keys_of_the_rate_stand_in_one_line(
    run: Run, key: str, value: object, change: str, rate: str
) -> None:
    told_of = f"train.optimizer.{key} is {change}; {LONGER}: the rate goes from 0.0001 to {rate} at step 6"
    assert told(run, optimizer=OPTIMIZER | {key: value}) == [told_of]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"optimizer": OPTIMIZER | {"clip": 0.5}}, "optimizer.clip is 0.5 now and was 1.0"),
        ({"optimizer": OPTIMIZER | {"betas": [0.9, 0.99]}}, "optimizer.betas[1] is 0.99 now and was 0.95"),
        ({"optimizer": OPTIMIZER | {"weight_decay": 0.0}}, "optimizer.weight_decay is 0.0 now and was 0.1"),
        ({"faults": {"spike_sigma": 3.0}}, "faults.spike_sigma is 3.0 now and was 6.0"),
        ({"skip": [[50, 60]]}, "skip is [[50, 60]] now and was []"),
        ({"dtype": "float32"}, "dtype is 'float32' now and was 'float64'"),
        ({"eval_every": 2}, "eval_every is 2 now and was 0"),
    ],
)
def test_each_other_key_that_changes_what_a_step_computes_has_a_line(
    run: Run, changes: dict[str, Any], line: str
) -> None:
    assert told(run, **changes)[1:] == [f"train.{line}, from step 6 on"]


def test_weights_to_begin_with_are_told_as_not_read(run: Run) -> None:
    (line,) = told(run, init_from="/elsewhere")[1:]
    assert line == "train.init_from is '/elsewhere' now and was not given, and is not read: the run has begun"


def test_a_later_mixture_is_told(run: Run) -> None:
    (line,) = told(run, mixture=[*MIXTURE, {"first_step": 8, "weights": {"web": 2.0}}])[1:]
    assert re.match(r"train\.mixture is \[\{.*… now and was \[\{.*, from step 6 on", line)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 2, "zero": 1},
        {"micro_batch": 1, "activation_checkpointing": "full"},
        {"checkpoint": {"every": 3, "keep": 9}, "recorder": {"steps": 9}},
        {"faults": {"watchdog_seconds": 9.0}},
    ],
)
def test_what_leaves_the_steps_as_they_are_is_not_told(run: Run, changes: dict[str, Any]) -> None:
    assert len(told(run, **changes)) == 1


def test_a_run_without_a_step_left_is_told_nothing(run: Run) -> None:
    assert told(run, steps=6, optimizer=OPTIMIZER | {"clip": 0.5}) == []


def test_a_run_that_goes_back_is_told_of_the_step_that_it_goes_back_to(run: Run, tmp_path: Path) -> None:
    copy = Run(data=run.data, output=tmp_path / "run", changes=run.changes)
    shutil.copytree(run.output, copy.output)
    back = Rollback(number=1, step=4, checkpoint="step-00000004.attempt-1", parent=1)
    record_rollback(Folder(str(copy.output)), back)
    assert told(copy, steps=6) == []
    (line,) = told(copy, steps=6, optimizer=OPTIMIZER | {"lr": 2e-3})
    assert line.endswith("the rate goes from 0.00033 to 0.00065 at step 4")


def test_a_recorded_recipe_that_cannot_be_read_is_a_line_too(run: Run, tmp_path: Path) -> None:
    copy = Run(data=run.data, output=tmp_path / "run", changes=run.changes)
    shutil.copytree(run.output, copy.output)
    (copy.output / "attempts/00001.toml").write_text("[train\n")
    (line,) = told(copy)
    assert (
        line.startswith("warning: what this recipe changes of the run is not known: ")
        and "00001.toml" in line
    )
