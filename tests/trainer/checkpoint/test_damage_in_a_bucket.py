"""A damaged newest checkpoint in an object store costs what it costs on a disk."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lineage.storage import clients as storage
from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import killed, run_forked, start_forked, wait
from tests.support.stores.s3_process import s3_process
from tests.support.training.training_runs import AfterStep, Run
from tests.trainer.checkpoint.test_damage import NEWEST, WAYS
from trainer.attempts import attempts
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

pytestmark = pytest.mark.slow

URL = "s3://runs/one"


@dataclass(frozen=True)
class World:
    """An undisturbed run on a disk, and the same in a bucket, killed behind its checkpoint of step 8."""

    losses: list[float]
    recipe: TrainRecipe
    environment: dict[str, str]
    saved: dict[str, bytes]
    scratch: Path

    def again(self) -> None:
        """The killed run as it was."""
        output = Folder(URL)
        for name in output.names():
            output.remove(name)
        for name, data in self.saved.items():
            output.publish(name, data)

    def finish(self) -> None:
        run_forked(self.scratch, 2, partial(train_there, self.environment, self.recipe))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bucket")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    whole = Run(data=data, output=folder / "whole", changes={"workers": 2})
    whole.start()
    with s3_process() as there, pytest.MonkeyPatch.context() as patched:
        for name, value in there.items():
            patched.setenv(name, value)
        storage._filesystem.cache_clear()
        storage.filesystem("s3://runs").mkdir("runs")
        recipe = Run(data=data, output=folder / "one", changes={"workers": 2, "output": URL}).recipe()
        scratch = folder / "processes"
        assert killed(wait(start_forked(scratch, 2, partial(train_there, there, recipe, dies=True))))
        output = Folder(URL)
        saved = {name: output.read(name) for name in output.names()}
        yield World(whole.losses(), recipe, there, saved, scratch)
        storage._filesystem.cache_clear()


def train_there(
    environment: dict[str, str], recipe: TrainRecipe, process: Process, *, dies: bool = False
) -> TrainingResult:
    os.environ.update(environment)

    def after_step(step: int) -> None:
        if dies and step == 9:
            while not Folder(URL).exists(f"checkpoints/{NEWEST}/complete.json"):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    return train(recipe, LaunchContext(process=process, hooks=AfterStep(after_step)))


def damage_in(checkpoint: Folder, damage: Callable[[Path], object], scratch: Path) -> None:
    """The objects of a checkpoint as the damage leaves files."""
    for name in checkpoint.names():
        (scratch / name).write_bytes(checkpoint.read(name))
    damage(scratch)
    for name in checkpoint.names():
        path = scratch / name
        if not path.is_file():
            checkpoint.remove(name)
        elif path.read_bytes() != checkpoint.read(name):
            checkpoint.publish(name, path.read_bytes())


@pytest.mark.parametrize(("damage", "why"), WAYS.values(), ids=WAYS)
def test_a_run_in_a_bucket_goes_back_before_a_damaged_checkpoint_and_ends_with_the_same_bits(
    damage: Callable[[Path], object], why: str, world: World, tmp_path: Path
) -> None:
    world.again()
    output = Folder(URL)
    damage_in(output.folder("checkpoints").folder(NEWEST), damage, tmp_path)
    world.finish()
    rows = {row["step"]: row for row in map(json.loads, output.read("metrics.jsonl").splitlines())}
    assert [rows[step]["loss"] for step in sorted(rows)] == world.losses
    assert rows[8]["attempt"] == 2
    attempt = attempts(output)[-1]
    assert (attempt.first_step, attempt.parent) == (4, 1)
    assert [each.name for each in attempt.damaged] == [NEWEST]
    assert why in attempt.damaged[0].why
    assert output.exists(f"checkpoints/damaged/{NEWEST}/complete.json")
