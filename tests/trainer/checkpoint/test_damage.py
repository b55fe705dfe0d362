"""A damaged newest checkpoint costs the steps since the one before it, and not the run."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.training_runs import Run
from trainer.attempts import attempts
from trainer.checkpoint.store import (
    CheckpointError,
    _digest,
    check_files,
    newest_with_files,
    read_position,
)
from trainer.huggingface.export import export_run
from trainer.huggingface.model_card import checkpoints_of
from trainer.recovery.back import go_back_to
from trainer.run.preflight import check_recipe, finished

pytestmark = pytest.mark.hostile("trainer/checkpoint", "trainer/recovery")

NEWEST = "step-00000008.attempt-1"


@dataclass(frozen=True)
class World:
    """An undisturbed run, and one that was killed behind its checkpoint of step 8, as often as it is wanted."""

    whole: Run
    run: Run
    saved: Path

    def again(self) -> Path:
        """The killed run as it was; gives its newest checkpoint."""
        shutil.rmtree(self.run.output)
        shutil.copytree(self.saved, self.run.output)
        return self.run.output / "checkpoints" / NEWEST

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.run.scratch.glob("stderr-*")))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("damage")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    whole = Run(data=data, output=folder / "whole", changes={"workers": 2})
    whole.start()
    run = Run(data=data, output=folder / "run", changes={"workers": 2})
    run.start_and_kill(9)
    shutil.copytree(run.output, folder / "saved")
    return World(whole=whole, run=run, saved=folder / "saved")


def piece(checkpoint: Path, number: int = 0) -> Path:
    return sorted(checkpoint.glob("*.distcp"))[number]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def other_record(checkpoint: Path, **changes: Any) -> None:
    """complete.json with other values, as if it were whole."""
    row = json.loads((checkpoint / "complete.json").read_text()) | changes
    del row["digest"]
    row["digest"] = _digest(row)
    (checkpoint / "complete.json").write_text(json.dumps(row))


def in_place_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of a piece": (lambda at: flipped(piece(at)), "__0_0.distcp has other bytes than when"),
    "a bit of the other rank's piece": (
        lambda at: flipped(piece(at, 1)),
        "__1_0.distcp has other bytes than",
    ),
    "a piece missing": (lambda at: piece(at).unlink(), "__0_0.distcp is missing or has another size"),
    "a piece empty": (lambda at: piece(at).write_bytes(b""), "__0_0.distcp is missing or has another size"),
    "a folder in place of a piece": (lambda at: in_place_of(piece(at)), "__0_0.distcp is missing or"),
    "complete.json empty": (
        lambda at: (at / "complete.json").write_bytes(b""),
        "complete.json does not hold",
    ),
    "complete.json cut": (
        lambda at: (at / "complete.json").write_bytes((at / "complete.json").read_bytes()[:100]),
        "complete.json does not hold what was published",
    ),
    "complete.json of zeros": (
        lambda at: (at / "complete.json").write_bytes(bytes(64)),
        "complete.json does",
    ),
    "complete.json of others": (
        lambda at: (at / "complete.json").write_text("[1, 2]"),
        "complete.json does not",
    ),
    "a bit of complete.json": (
        lambda at: (at / "complete.json").write_text(
            (at / "complete.json").read_text().replace('"plan_fingerprint": "', '"plan_fingerprint": "0')
        ),
        "complete.json does not hold what was published (ValueError: its digest is another)",
    ),
    "metadata cut": (lambda at: (at / ".metadata").write_bytes(b"PK"), ".metadata is missing or has another"),
    "metadata missing": (lambda at: (at / ".metadata").unlink(), ".metadata is missing or has another size"),
    "metadata of others": (lambda at: flipped(at / ".metadata"), ".metadata has other bytes than when"),
    "another step inside": (lambda at: other_record(at, step=12), "complete.json is of step 12 of attempt 1"),
    "no files listed": (lambda at: other_record(at, files={}), "complete.json lists no file"),
}


@pytest.mark.parametrize(("damage", "why"), WAYS.values(), ids=WAYS)
def test_a_run_goes_back_before_a_damaged_checkpoint_and_ends_with_the_same_bits(
    damage: Callable[[Path], object], why: str, world: World
) -> None:
    checkpoint = world.again()
    damage(checkpoint)
    check_recipe(world.run.recipe())
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()
    assert world.run.metrics()[8]["attempt"] == 2
    assert (world.run.output / "checkpoints" / "damaged" / NEWEST / "complete.json").exists()
    told = [line for line in world.said().splitlines() if "is damaged" in line]
    assert len(told) == 1
    assert why in told[0]
    assert "the run goes back to step 4; the damaged checkpoint lies in" in told[0]
    attempt = attempts(Folder(str(world.run.output)))[-1]
    assert (attempt.first_step, attempt.parent) == (4, 1)
    assert [each.name for each in attempt.damaged] == [NEWEST]
    assert why in attempt.damaged[0].why


def test_files_of_others_beside_the_pieces_do_no_harm(world: World) -> None:
    checkpoint = world.again()
    (checkpoint / ".nfs0001").write_text("somebody's")
    (checkpoint / "__7_0.distcp").write_text("somebody's")
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()
    assert attempts(Folder(str(world.run.output)))[-1].first_step == 8


def test_where_the_one_before_is_damaged_too_the_run_goes_back_further(world: World) -> None:
    world.again()
    world.run.start()
    for name in world.run.checkpoints()[1:]:
        flipped(piece(world.run.output / "checkpoints" / name))
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()
    attempt = attempts(Folder(str(world.run.output)))[-1]
    assert attempt.first_step == 4
    assert [each.name for each in attempt.damaged] == ["step-00000012.attempt-2", NEWEST]


def test_a_run_stops_where_the_recipe_says_so_and_leaves_everything_where_it_is(world: World) -> None:
    checkpoint = world.again()
    flipped(piece(checkpoint, 1))
    stops = {"checkpoint": {"every": 4, "on_damage": "stop"}}
    with pytest.raises(
        ChildFailedError, match=r'is damaged: .*; train.checkpoint.on_damage = "go_back" goes on'
    ):
        world.run.start(**stops)
    assert checkpoint.exists()
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()


def test_without_a_whole_checkpoint_the_error_says_so_and_moves_none(world: World) -> None:
    checkpoint = world.again()
    (checkpoint / "complete.json").write_bytes(b"")
    flipped(piece(checkpoint.with_name("step-00000004.attempt-1")))
    match = (
        r"complete.json does not hold .*; so are the 1 before it: no checkpoint of the run under .* is whole"
    )
    with pytest.raises(ChildFailedError, match=match):
        world.run.start()
    assert checkpoint.exists()
    assert checkpoint.with_name("step-00000004.attempt-1").exists()
    go_back_to(world.run.recipe(), 0)
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()


def test_a_run_that_is_to_go_back_to_a_damaged_checkpoint_goes_back_further(world: World) -> None:
    world.again()
    assert world.run.start().finished
    go_back_to(world.run.recipe(), 8)
    flipped(piece(world.run.output / "checkpoints" / NEWEST))
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()
    assert attempts(Folder(str(world.run.output)))[-1].first_step == 4


def test_a_finished_run_whose_last_checkpoint_is_damaged_does_its_last_steps_again(world: World) -> None:
    world.again()
    world.run.start()
    last = world.run.output / "checkpoints" / world.run.checkpoints()[-1]
    assert finished(world.run.recipe()) is not None
    flipped(piece(last))
    assert finished(world.run.recipe()) is None
    assert world.run.start().finished
    assert world.run.losses() == world.whole.losses()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_what_the_disk_does_not_give_is_damage_and_what_a_network_does_not_is_none(
    code: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(str(world.again()))

    def failing(number: int) -> Callable[[Folder, str], Any]:
        def fail(self: Folder, name: str) -> Any:
            raise OSError(number, "not now")

        return fail

    monkeypatch.setattr(Folder, "open", failing(code))
    with pytest.raises(CheckpointError, match=r"is damaged: \S+ cannot be read \(not now\)"):
        check_files(folder)
    monkeypatch.setattr(Folder, "open", failing(errno.ETIMEDOUT))
    with pytest.raises(TimeoutError):
        check_files(folder)


def test_what_else_reads_a_damaged_checkpoint_says_so_in_one_line(world: World, tmp_path: Path) -> None:
    checkpoint = world.again()
    (checkpoint / "complete.json").write_bytes(b"")
    output = Folder(str(world.run.output))
    with pytest.raises(CheckpointError, match=r"complete\.json does not hold what was published"):
        export_run(output, tmp_path / "hf")
    with pytest.raises(CheckpointError, match=r"complete\.json does not hold what was published"):
        read_position(Folder(str(checkpoint)))
    newest = newest_with_files(output.folder("checkpoints"), checkpoints_of(output))
    assert newest is not None
    assert newest.step == 4
    begun = Run(data=world.run.data, output=tmp_path / "begun", changes={"init_from": str(checkpoint)})
    with pytest.raises(CheckpointError, match=r"complete\.json does not hold what was published"):
        check_recipe(begun.recipe())
