"""Skipped batches in a row: a run that goes back and leaves them out, and one that lowers its rate."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.recipe import parse_table
from lineage.storage.folder import Folder
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.processes.forked import ChildFailedError, said
from tests.support.training.training_runs import Run
from trainer.attempts import TrainingStoppedError, attempts
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import read_position
from trainer.optim.learning_rate import learning_rate
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.recovery.repeated import left_out
from trainer.recovery.repeats import (
    LoweredRate,
    OnRepeat,
    RepeatedFaultsError,
    SkipCounter,
)
from trainer.recovery.rollbacks import rollbacks


def count(counter: SkipCounter, verdicts: str) -> list[LoweredRate | None]:
    """Note a verdict a step: x is a skipped one, l a listed one."""
    reasons = {"x": "spike", "l": "listed", ".": None}
    return [counter.note(step, reasons[verdict]) for step, verdict in enumerate(verdicts)]


def test_the_rate_is_lowered_from_the_second_step_behind_a_row_on() -> None:
    counter = SkipCounter(OnRepeat(max_skips=2, action="lower_lr", lower_factor=0.5, lower_steps=4))
    told = count(counter, ".x.xlx.xx")
    assert [step for step, lowered in enumerate(told) if lowered] == [5, 8]
    assert counter.lowered == (LoweredRate(7, 11, 0.5), LoweredRate(10, 14, 0.5))
    assert [counter.rate_factor(step) for step in range(6, 15)] == [1, 0.5, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5, 1]


def test_a_rate_that_was_lowered_in_vain_stops_the_run() -> None:
    counter = SkipCounter(OnRepeat(max_skips=2, action="lower_lr", lower_steps=50))
    count(counter, "xxxxxx")
    with pytest.raises(TrainingStoppedError, match="skipped though the rate was lowered 3 times"):
        count(counter, "xx")


def test_a_row_is_named_without_the_batches_that_the_recipe_lists() -> None:
    counter = SkipCounter(OnRepeat(max_skips=3, action="rollback"), row=(7,))
    with pytest.raises(RepeatedFaultsError) as raised:
        for step, reason in ((8, "listed"), (9, "spike"), (10, "non_finite_loss")):
            counter.note(step, reason)
    assert raised.value.steps == (7, 9, 10)


def test_looking_ahead_changes_nothing() -> None:
    counter = SkipCounter(OnRepeat(max_skips=2, action="lower_lr", lower_steps=3), row=(4,))
    ahead = counter.after([(5, "spike")])
    assert (ahead.row, ahead.lowered) == ((), (LoweredRate(7, 10, 0.5),))
    assert (counter.row, counter.lowered) == ((4,), ())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    from stages.tokens.tokenizer import load_tokenizer, train_bpe
    from tests.support.outputs.small_out.records import make_records

    folder = tmp_path_factory.mktemp("small")
    (folder / "few.tiktoken").write_bytes(train_bpe([record.text for record in make_records()[0]], 512))
    return make_small_out(str(folder / "out"), tokenizer=load_tokenizer(str(folder / "few.tiktoken")))


@pytest.fixture
def run(small: SmallOut, tmp_path: Path) -> Run:
    changes = {"seq_len": 64, "global_batch": 4, "steps": 12, "dtype": "float32", "record_batches": False}
    changes |= {"checkpoint": {"every": 2, "keep": 20}, "optimizer": {"lr": 3e-3, "warmup_steps": 2}}
    return Run(data=small.folder.url, output=tmp_path / "run", changes=changes)


BAD = (5, 6, 7)


def test_a_run_goes_back_before_bad_steps_and_ends_as_one_that_skips_them_by_recipe(run: Run) -> None:
    faults = {"nan_at_step": list(BAD), "max_skips": 3, "on_repeat": "rollback"}
    assert run.start(workers=2, faults=faults).finished
    output = Folder(str(run.output))
    (rollback,) = rollbacks(output)
    assert (rollback.step, rollback.checkpoint) == (4, "step-00000004.attempt-1")
    assert rollback.left_out == left_out(output) == ((20, 31),)
    assert [(each.first_step, each.parent, each.rollback) for each in attempts(output)] == [
        (0, None, None),
        (4, 1, 1),
    ]
    told = said(run.scratch)
    assert (
        "steps 5, 6, 7 were skipped in a row: the run goes back to checkpoint step-00000004.attempt-1" in told
    )
    assert "leaves sequences 20 to 31 out" in told
    assert "\n  document " in told and "http://host" in told
    by_recipe = replace(run, output=run.output.parent / "by-recipe")
    assert by_recipe.start(workers=2, skip=[[20, 31]]).finished
    assert run.losses() == by_recipe.losses()
    reasons = {step: row.get("reason") for step, row in run.metrics().items()}
    assert [step for step, reason in reasons.items() if reason] == list(BAD)
    assert {reasons[step] for step in BAD} == {"listed"}
    last = "checkpoints/step-00000012.attempt-"
    assert weights_digest(output.folder(f"{last}2")) == weights_digest(
        Folder(str(by_recipe.output)).folder(f"{last}1")
    )
    assert run.start(workers=2, faults=faults, steps=14).finished  # a later call leaves them out too
    assert len(rollbacks(output)) == 1


def test_a_run_that_meets_the_next_bad_steps_right_behind_those_left_out_stops(run: Run) -> None:
    faults = {"nan_at_step": list(range(3, 12)), "max_skips": 2, "on_repeat": "rollback"}
    with pytest.raises(ChildFailedError, match="right behind others that the run went back before 3 times"):
        run.start(faults=faults)
    assert left_out(Folder(str(run.output))) == ((12, 19), (20, 27), (28, 35))


def test_bad_steps_before_the_first_checkpoint_lead_back_to_the_first_weights(run: Run) -> None:
    faults = {"nan_at_step": [0, 1], "max_skips": 2, "on_repeat": "rollback"}
    assert run.start(faults=faults, steps=6, checkpoint={"every": 4}).finished
    (rollback,) = rollbacks(Folder(str(run.output)))
    assert (rollback.step, rollback.checkpoint, rollback.left_out) == (0, None, ((0, 7),))


@pytest.mark.parametrize("killed_after", [None, 9])
def test_the_rate_is_as_the_schedule_has_it_times_the_factor(killed_after: int | None, run: Run) -> None:
    faults = {
        "nan_at_step": list(BAD),
        "max_skips": 3,
        "on_repeat": "lower_lr",
        "lower_factor": 0.25,
        "lower_steps": 2,
    }
    if killed_after is not None:
        run.start_and_kill(killed_after, faults=faults)
    assert run.start(faults=faults).finished
    assert rollbacks(Folder(str(run.output))) == ()
    table = parse_table(OptimizerTable, run.changes["optimizer"])
    rates = {step: row["lr"] for step, row in run.metrics().items()}
    for step, rate in rates.items():
        assert math.isclose(
            rate, learning_rate(step, 12, table) * (0.25 if step in (9, 10) else 1), rel_tol=1e-12
        )
    saved = {step: read_position(Folder(str(path))) for step, path in _checkpoints(run)}
    assert saved[6].skipped_in_row == (5,) and saved[6].lowered == ()
    assert (saved[8].skipped_in_row, saved[8].lowered) == ((), (LoweredRate(9, 11, 0.25),))
    if killed_after is None:
        assert "the learning rate of steps 9 to 10 is 0.25 of what it would be" in said(run.scratch)


def _checkpoints(run: Run) -> list[tuple[int, Path]]:
    found = sorted((run.output / "checkpoints").glob("step-*"))
    return [(json.loads((path / "complete.json").read_text())["step"], path) for path in found]
