"""What killed processes leave of their recorders in a node's memory is bounded, whatever comes behind them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from trainer.recorder import files
from trainer.recorder.files import (
    RING,
    attempt_folder,
    drop_left_by_others,
    left_over,
    local_name,
    node_folder,
    publish_left_over,
)


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "_SHARED_MEMORY", str(tmp_path / "memory"))
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def node(output: Folder) -> Path:
    folder = Path(node_folder(output))
    folder.mkdir(exist_ok=True)
    return folder


def leave(output: Folder, attempt: int, pid: int) -> Path:
    path = node(output) / (local_name(attempt, 0, pid) + RING)
    path.write_bytes(b"%d" % attempt)
    return path


class Full(Folder):
    """Storage that takes nothing."""

    def publish(self, name: str, data: bytes) -> None:
        raise OSError("full")


@pytest.mark.usefixtures("memory")
def test_a_thousand_killed_starts_whose_storage_fails_leave_the_last_few_attempts(
    dead: int, tmp_path: Path
) -> None:
    output = Folder(str(tmp_path / "out"))
    for attempt in range(1, 1001):
        with pytest.raises(OSError, match="full"):
            leave(output, attempt, dead)
            publish_left_over(Full(output.url), str(node(output)))
        assert len(os.listdir(node(output))) <= 4
    publish_left_over(output, str(node(output)))
    assert os.listdir(node(output)) == []
    assert {output.read(name) for name in output.names("recorder")} == {b"997", b"998", b"999", b"1000"}


@pytest.mark.usefixtures("memory")
def test_what_a_process_died_over_while_it_published_is_published_by_the_next(
    dead: int, tmp_path: Path
) -> None:
    output = Folder(str(tmp_path / "out"))
    path = leave(output, 3, dead)
    path.rename(path.with_name(f"taken-{dead}-{path.name}"))
    taken_now = leave(output, 4, dead)
    taken_now = taken_now.rename(taken_now.with_name(f"taken-{os.getpid()}-{taken_now.name}"))
    publish_left_over(output, str(node(output)))
    assert output.names("recorder") == [f"{attempt_folder(3)}/rank-00000{RING}"]
    assert os.listdir(node(output)) == [taken_now.name], "a living process has it"


def test_of_a_thousand_outputs_that_are_never_started_again_the_newest_few_stay(
    dead: int, memory: Path, tmp_path: Path
) -> None:
    living = Folder(str(tmp_path / "living"))
    ring = leave(living, 1, os.getpid())
    os.utime(ring.parent, (0, 0))
    for number in range(1000):
        output = Folder(str(tmp_path / str(number)))
        drop_left_by_others(str(node(output)))
        leave(output, 1, dead)
        os.utime(node(output), (number + 1, number + 1))
    assert len(os.listdir(memory)) == 8 + 2, "the one that starts, and the one that lives"
    assert ring.exists()
    for number in range(991, 1000):
        assert left_over(Folder(str(tmp_path / str(number)))), "to be diagnosed"


def test_an_empty_folder_goes_when_it_is_old(memory: Path, tmp_path: Path) -> None:
    old, new, ours = (node(Folder(str(tmp_path / name))) for name in ("old", "new", "ours"))
    os.utime(old, (0, 0))
    drop_left_by_others(str(ours))
    assert sorted(memory.iterdir()) == sorted([new, ours])
