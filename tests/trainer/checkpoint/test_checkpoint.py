"""Checkpoints as files: what counts as one, what is kept, what is refused, and that an object store will
do."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from lineage.recipe import parse_table
from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import killed, run_forked, start_forked, wait
from tests.support.training.training_runs import AfterStep, Run
from trainer.attempts import Attempt, FencedOutError, attempts, begin, check_fence, claim, counts
from trainer.checkpoint.state import held_tensors, load
from trainer.checkpoint.store import (
    COMPLETE,
    METADATA,
    Checkpoint,
    CheckpointError,
    Position,
    check_files,
    checkpoint_name,
    complete_checkpoints,
    delete_left_over,
    publish_complete,
    read_position,
    record_sums,
    superseded,
)
from trainer.model.config.sizes import model_config
from trainer.options import CheckpointTable, TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

MODEL = model_config("debug", 250)


def position(step: int, attempt: int = 1) -> Position:
    return Position(step=step, attempt=attempt, plan_fingerprint="f" * 32, order_version=1, model=MODEL)


def made(folder: Folder, step: int, attempt: int = 1) -> Folder:
    """A complete checkpoint without tensors."""
    entry = folder.folder(checkpoint_name(step, attempt))
    entry.publish("__0_0.distcp", b"weights")
    entry.publish(METADATA, b"where")
    record_sums(entry, 0, {})
    publish_complete(entry, position(step, attempt))
    return entry


def test_the_newest_complete_checkpoint_is_found_and_says_where_the_run_stands(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    made(folder, 10)
    made(folder, 20)
    folder.folder(checkpoint_name(30, 1)).publish(METADATA, b"not complete")
    found = complete_checkpoints(folder, ())
    assert [entry.step for entry in found] == [10, 20]
    assert read_position(folder.folder(found[-1].name)) == position(20)


def test_what_an_old_attempt_publishes_after_its_successor_began_does_not_count(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    begun = (
        Attempt(number=1, first_step=0, parent=None, began_at=0.0),
        Attempt(number=2, first_step=10, parent=1, began_at=0.0),
    )
    made(folder, 10, attempt=1)
    made(folder, 30, attempt=1)  # published by a process that outlived its attempt
    made(folder, 20, attempt=2)
    assert [(entry.step, entry.attempt) for entry in complete_checkpoints(folder, begun)] == [
        (10, 1),
        (20, 2),
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(0, 60))
def test_a_step_counts_if_no_later_attempt_began_before_it(first_steps: list[int], step: int) -> None:
    begun = tuple(
        Attempt(number=n + 1, first_step=first, parent=None, began_at=0.0)
        for n, first in enumerate(first_steps)
    )
    for attempt in begun:
        later = [other.first_step for other in begun if other.number > attempt.number]
        assert counts(step, attempt.number, begun) == all(step <= first for first in later)


def test_two_claimants_never_share_a_number(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    numbers = run_forked(tmp_path / "processes", 4, partial(claim_many, folder))
    assert sorted(number for some in numbers for number in some) == list(range(1, 41))


def claim_many(folder: Folder, process: Process) -> list[int]:
    return [claim(folder) for _ in range(10)]


def test_a_claim_fences_the_attempts_before_it(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    first = claim(folder)
    check_fence(folder, first)
    second = claim(folder)
    begin(folder, Attempt(number=second, first_step=4, parent=first, began_at=0.0))
    with pytest.raises(FencedOutError, match="attempt 1 of"):
        check_fence(folder, first)
    assert attempts(folder) == (Attempt(number=2, first_step=4, parent=1, began_at=0.0),)


@pytest.mark.parametrize(("name", "data"), [(METADATA, b"elsewhere"), (METADATA, b"there"), (COMPLETE, None)])
def test_a_checkpoint_whose_files_changed_is_refused(name: str, data: bytes | None, tmp_path: Path) -> None:
    entry = made(Folder(str(tmp_path)), 10)
    check_files(entry)
    if data is None:
        record_sums(entry, 0, {"__0_0.distcp": (7, "0" * 32)})
        publish_complete(entry, position(10))
    else:
        entry.publish(name, data)
    with pytest.raises(CheckpointError, match="is damaged: "):
        check_files(entry)


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(1, 5), st.integers(0, 9))
def test_what_may_go_is_neither_among_the_last_nor_a_multiple(
    steps: set[int], keep: int, keep_every: int
) -> None:
    entries = tuple(Checkpoint(name=str(step), step=step, attempt=1) for step in sorted(steps))
    gone = {entry.step for entry in superseded(entries, keep, keep_every)}
    stay = {entry.step for entry in entries} - gone
    assert set(sorted(steps)[-keep:]) <= stay
    assert all(step in stay for step in steps if keep_every and step % keep_every == 0)
    assert all(step not in sorted(steps)[-keep:] and (not keep_every or step % keep_every) for step in gone)


@given(st.integers(1, 9), st.integers(10, 400), st.integers(1, 20), st.data())
def test_evenly_spaced_checkpoints_stay_over_the_whole_run(
    num: int, steps: int, every: int, data: st.DataObject
) -> None:
    kept: list[Checkpoint] = []
    done = data.draw(st.integers(1, steps))
    for step in range(every, done + 1, every):  # as a run saves them, and lets them go
        kept.append(Checkpoint(name=str(step), step=step, attempt=1))
        gone = superseded(tuple(kept), 1, 0, keep_spaced=num, steps=steps)
        kept = [entry for entry in kept if entry not in gone]
    assert len(kept) <= num
    reached = [0, *(entry.step for entry in kept)]
    assert all(after - before < -(-steps // num) + every for before, after in itertools.pairwise(reached))
    assert not kept or kept[-1].step == done // every * every


def test_what_earlier_attempts_left_of_checkpoints_is_deleted(tmp_path: Path) -> None:
    folder, table = Folder(str(tmp_path)), CheckpointTable(keep=1)
    begun = (
        Attempt(number=1, first_step=0, parent=None, began_at=0.0),
        Attempt(number=2, first_step=4, parent=1, began_at=0.0),
    )
    for step in (2, 3, 4):
        made(folder, step)
    made(folder.folder("set-aside"), 6)
    (tmp_path / checkpoint_name(1, 1)).mkdir()  # of one that was deleted the folder alone
    folder.publish(f"{checkpoint_name(2, 1)}-mine/notes", b"somebody's own")
    for name in (checkpoint_name(5, 1), checkpoint_name(5, 2), f"set-aside/{checkpoint_name(5, 1)}"):
        folder.publish(f"{name}/__0_0.distcp", b"as far as the disk had room")
    (tmp_path / checkpoint_name(2, 1) / COMPLETE).unlink()
    delete_left_over(folder, begun, table, steps=8)
    left = ["set-aside", f"{checkpoint_name(2, 1)}-mine", checkpoint_name(4, 1), checkpoint_name(5, 2)]
    assert folder.folders() == left, "of attempt 2, which writes now, nothing goes"
    assert folder.folder("set-aside").folders() == [checkpoint_name(6, 1)]


class Harmful:
    """Its pickle would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo harm > harmed",)


class Member:
    """A member of an enumeration, as Python pickles it before 3.11.4."""

    def __init__(self, kind: type, name: str) -> None:
        self._kind, self._name = kind, name

    def __reduce__(self) -> tuple[object, tuple[type, str]]:
        return getattr, (self._kind, self._name)


def test_metadata_of_an_older_python_names_its_memory_formats_and_no_other_attribute(tmp_path: Path) -> None:
    properties = TensorProperties(dtype=torch.float32)
    dtype, layout, requires_grad, memory_format, pin_memory = properties.__getstate__()
    older = Member(_MEM_FORMAT_ENCODING, memory_format.name)
    entry = Folder(str(tmp_path)).folder("checkpoint")
    for member in (older, Member(Metadata, "__init__"), Member(_MEM_FORMAT_ENCODING, "mro")):
        state = (dtype, layout, requires_grad, member, pin_memory)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(TensorProperties, "__getstate__", lambda self, state=state: state)
            stored = TensorStorageMetadata(properties, torch.Size([2]), [])
            entry.publish(METADATA, pickle.dumps(Metadata(state_dict_metadata={"weights": stored})))
        if member is older:
            assert held_tensors(entry)["weights"].properties == properties
        else:
            with pytest.raises(CheckpointError, match="refused"):
                held_tensors(entry)


def test_metadata_that_names_a_function_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = Folder(str(tmp_path)).folder("checkpoint")
    entry.publish(METADATA, pickle.dumps(Harmful()))
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        held_tensors(entry)
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        load(entry, {"weights": torch.zeros(1)}, None)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.slow
def test_a_run_whose_output_is_an_object_store_is_resumed_from_there(
    s3: dict[str, str], tmp_path: Path
) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    plain = Run(data=data, output=tmp_path / "plain", changes={"steps": 8, "workers": 2})
    plain.start()
    output = Folder("s3://runs/one")
    recipe = parse_table(
        TrainRecipe,
        {
            "run": {"name": "one"},
            "train": {
                "data": data,
                "output": output.url,
                "model": "debug",
                "seq_len": 32,
                "global_batch": 7,
                "micro_batch": 2,
                "steps": 8,
                "dtype": "float64",
                "workers": 2,
                "optimizer": {"lr": 3e-3, "warmup_steps": 3},
                "checkpoint": {"every": 3, "keep": 1},
            },
        },
    )
    assert killed(wait(start_forked(tmp_path / "processes", 2, partial(train_there, s3, recipe, 5))))
    results: list[TrainingResult] = run_forked(
        tmp_path / "processes", 2, partial(train_there, s3, recipe, None)
    )
    assert (results[0].step, results[0].attempt, results[0].finished) == (8, 2, True)
    assert results[0].loss == plain.losses()[-1]
    assert [entry.step for entry in complete_checkpoints(output.folder("checkpoints"), attempts(output))] == [
        8
    ]
    assert (
        output.read("metrics.jsonl").count(b"\n") == 8
    )  # what was told up to the checkpoint, and what came after


def train_there(
    env: dict[str, str], recipe: TrainRecipe, kill_after: int | None, process: Process
) -> TrainingResult:
    os.environ.update(env)
    checkpoints = Folder(recipe.train.output).folder("checkpoints")

    def after_step(step: int) -> None:
        if step == kill_after:
            while not complete_checkpoints(checkpoints, ()):
                time.sleep(0.05)
            os.kill(os.getpid(), 9)

    return train(recipe, LaunchContext(process=process, hooks=AfterStep(after_step)))
