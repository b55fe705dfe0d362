"""A run that forgets what purges took ends with the bits of a run that never read it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.inspect.trace.tracing import training_account
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import (
    HARD,
    LAYOUTS,
    NUM_DOCUMENTS,
    Trained,
    applied,
    assert_equal,
    copy_out,
    never_read,
)
from trainer.attempts import attempts
from trainer.checkpoint.store import CheckpointError
from trainer.options import load_train_recipe
from trainer.recovery.back import go_back_to
from trainer.recovery.forget import Forgetting, forget
from trainer.recovery.rollbacks import rollbacks


@pytest.fixture
def trained(small: SmallOut, tmp_path: Path) -> Trained:
    """The run, done; nothing is purged."""
    mine = Trained(small=small, folder=tmp_path)
    copy_out(small, tmp_path)
    assert mine.run.start().finished
    return mine


def ask(trained: Trained, *purges: str, restart: bool = False) -> Forgetting:
    return forget(trained.run.recipe(), purges or ("all",), restart=restart)


@pytest.mark.parametrize("killed_after", [None, 7])
def test_it_ends_with_the_bits_of_a_run_that_never_read_it(
    killed_after: int | None, trained: Trained
) -> None:
    purge_id = trained.purge(trained.record_first_read_in(range(5, 6)))
    assert True in applied(trained)
    asked = ask(trained, purge_id)
    assert (asked.trains, asked.purges) == (True, (purge_id,))
    assert "first in step 5" in asked.lines[0]
    assert "goes back to checkpoint step-00000004.attempt-1" in asked.lines[1]
    assert "asked for before" in ask(trained).lines[0]
    if killed_after is not None:
        trained.run.start_and_kill(killed_after)
        assert "already" in ask(trained).lines[0]
        assert ask(trained).trains
    assert trained.run.start().finished
    assert len(rollbacks(Folder(str(trained.run.output)))) == 1
    assert applied(trained) and True not in applied(trained)
    again = ask(trained)
    assert (again.trains, "readings of it are undone" in again.lines[0]) == (False, True)
    assert_equal(trained, never_read(trained))


def test_going_back_by_a_step_after_a_purge_trains_on_the_cleaned_bytes(trained: Trained) -> None:
    trained.purge(trained.record_first_read_in(range(5, 6)))
    assert "step-00000004.attempt-1" in "".join(go_back_to(trained.run.recipe(), 4))
    assert True in applied(trained)
    assert trained.run.start().finished
    assert applied(trained) and True not in applied(trained)
    assert_equal(trained, never_read(trained))


def test_a_first_step_takes_a_new_run(trained: Trained) -> None:
    trained.purge(trained.record_first_read_in(range(1)))
    with pytest.raises(
        RecipeError, match="first read in step 0: a new run is the only way; this call starts it with"
    ):
        ask(trained)
    assert "first weights" in ask(trained, restart=True).lines[1]
    assert trained.run.start().finished
    assert True not in applied(trained)
    assert_equal(trained, never_read(trained))


def test_a_purge_in_the_middle_of_a_run_is_met_too(small: SmallOut, tmp_path: Path) -> None:
    mine = Trained(small=small, folder=tmp_path)
    copy_out(small, tmp_path)
    mine.run.start_and_kill(7)
    record = mine.record_first_read_in(range(3, 5))
    before = mine.first_steps()[record.doc_id] // 2 * 2
    mine.purge(record)
    assert mine.run.start().finished  # goes on from step 6, on the purged shards
    assert True in applied(mine)
    assert f"step-{before:08d}" in ask(mine).lines[1]
    assert mine.run.start().finished
    assert True not in applied(mine)
    assert_equal(mine, never_read(mine))


def test_two_purges_are_one_replay(trained: Trained) -> None:
    one, other = trained.record_first_read_in(range(8, 10)), trained.record_first_read_in(range(4, 6))
    (exposure,) = training_account(trained.out.url, [one.doc_id]).exposures
    price = exposure.replay
    assert price is not None
    assert (exposure.last_checkpoint_before, price.from_step, price.num_steps) == (8, 8, 2)
    assert (price.waiting, price.num_steps_together, price.num_steps_apart) == ((), 2, 2)
    assert (price.device, price.num_processes, (price.seconds or 0) > 0) == ("cpu", 1, True)
    assert price.seconds is not None and price.device_hours == price.seconds / 3600
    first = trained.purge(one)
    (again,) = training_account(trained.out.url, [one.doc_id], first).exposures
    assert again.replay is not None and again.replay.waiting == ()
    (exposure,) = training_account(trained.out.url, [other.doc_id]).exposures
    price = exposure.replay
    assert price is not None
    assert (price.from_step, price.waiting) == (4, (first,))
    assert (price.num_steps_together, price.num_steps_apart) == (6, 8)
    second = trained.purge(other)
    # By the call that the account names, with the recipe that the run recorded.
    place = Folder(str(trained.run.output)).at("attempts/00001.toml")
    assert exposure.replay_call == f"sluice train {place} --forget all"
    asked = forget(load_train_recipe(place), ["all"], restart=False)
    assert asked.purges == tuple(sorted((first, second)))
    assert "step-00000004" in asked.lines[1]
    assert trained.run.start().finished
    assert len(attempts(Folder(str(trained.run.output)))) == 2
    assert_equal(trained, never_read(trained))


def test_steps_that_were_undone_are_in_no_price(trained: Trained) -> None:
    go_back_to(trained.run.recipe({"steps": 8}), 4)
    assert trained.run.start(steps=8).finished
    record = trained.record_first_read_in(range(6, 8))
    (exposure,) = training_account(trained.out.url, [record.doc_id]).exposures
    assert exposure.replay is not None
    assert (exposure.replay.from_step, exposure.replay.num_steps) == (6, 2)


def test_what_a_run_never_read_is_no_reason_to_go_back(trained: Trained) -> None:
    first = trained.first_steps()
    unread = next(r for r in trained.small.records if r.status == "kept" and r.doc_id not in first)
    trained.purge(unread)
    asked = ask(trained)
    assert (asked.trains, "never read" in asked.lines[0]) == (False, True)
    assert rollbacks(Folder(str(trained.run.output))) == ()


def test_a_wrong_call_is_refused_in_a_sentence(trained: Trained) -> None:
    assert ask(trained).lines == ("no purge is recorded: there is nothing to forget",)
    with pytest.raises(RecipeError, match="no purge 'x' in"):
        ask(trained, "x")
    shards = trained.folder / "backup"
    shutil.copytree(trained.out.url, shards)
    purge_id = trained.purge(trained.record_first_read_in(range(5, 6)))
    for step in (2, 4):
        shutil.rmtree(trained.run.output / f"checkpoints/step-{step:08d}.attempt-1")
    with pytest.raises(
        RecipeError, match=r"first read in step 5, and no whole checkpoint before it is kept \(the old"
    ):
        ask(trained)
    for name in ("index.json", "shards"):
        source, target = shards / name, Path(trained.out.at(name))
        shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(
            source, target
        )
    with pytest.raises(CheckpointError, match=f"holds again what purge {purge_id} took"):
        ask(trained, restart=True)


@pytest.mark.slow
@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_each_layout_ends_with_the_bits_of_a_run_that_never_read_any_of_five_documents(
    changes: Mapping[str, Any], small: SmallOut, tmp_path: Path
) -> None:
    mine = Trained(small=small, folder=tmp_path, changes={**HARD, **changes})
    copy_out(small, tmp_path)
    assert mine.run.start().finished
    for number, record in enumerate(mine.records_first_read_in(range(2, 10))):
        mine.purge(record)
        if ask(mine).trains:  # a step that was skipped has left nothing
            back_to = rollbacks(Folder(str(mine.run.output)))[-1].step
            mine.run.start_and_kill(min(back_to + 3, 9))
            assert ask(mine).trains
            assert mine.run.start().finished
        assert True not in applied(mine)
        assert_equal(mine, never_read(mine, f"fresh-{number}"))
    assert len(rollbacks(Folder(str(mine.run.output)))) >= NUM_DOCUMENTS - 1
