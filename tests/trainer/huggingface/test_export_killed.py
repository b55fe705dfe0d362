"""An export of a checkpoint that is killed leaves no file half, and the same call again ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.stores.faulty_disk import (
    KILLED,
    Commands,
    Fault,
    commands_on,
    compile_faulty_disk,
    num_calls,
)
from tests.support.training.training_runs import Run
from trainer.huggingface.export import export_run

EXPORTED: Final = "tests.support.training.exported"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    made = Run(data=data, output=folder / "run", changes={"steps": 2})
    made.start()
    return made


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands_on(compile_faulty_disk(tmp_path_factory.mktemp("library"))) as server:
        yield server


def export(commands: Commands, run: Run, target: Path, env: Mapping[str, str]) -> int:
    """Export in files of few tensors; the exit code."""
    return commands.call(str(run.output), str(target), module=EXPORTED, env=env).code


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_an_export_killed_at_every_call_leaves_whole_files_and_is_ended_by_the_same_call(
    run: Run, commands: Commands, tmp_path: Path
) -> None:
    counted = {"DISK_UNDER": str(tmp_path / "whole"), "DISK_COUNTER": str(tmp_path / "counter")}
    assert export(commands, run, tmp_path / "whole", counted) == 0
    num, whole = num_calls(tmp_path / "counter"), files_of(tmp_path / "whole")
    assert len(whole) > 5 and num > 20
    print(f"kills: {num}")
    for number in range(num):
        target = tmp_path / f"at-{number}"
        assert export(commands, run, target, Fault(under=str(target), number=number).env()) == KILLED
        left = files_of(target) if target.exists() else {}
        assert left.items() <= whole.items(), "a file that is there is whole"
        assert "config.json" not in left or left == whole
        assert export(commands, run, target, {}) == 0
        assert files_of(target) == whole
        assert not [path for path in target.iterdir() if path.is_dir()], "nothing temporary stays"


def test_an_export_over_an_older_one_is_incomplete_until_it_ends(
    run: Run, commands: Commands, tmp_path: Path
) -> None:
    export_run(Folder(str(run.output)), tmp_path / "hf")
    files = Fault(under=str(tmp_path / "hf" / ".tmp-model"), number=0)  # before the first file of weights
    assert export(commands, run, tmp_path / "hf", files.env()) == KILLED
    assert "config.json" not in files_of(tmp_path / "hf")
