"""The process that writes checkpoints: the same bytes as a thread writes, whatever ends it is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.attempts import Attempt, begin, claim
from trainer.checkpoint.state import Saver
from trainer.checkpoint.store import CheckpointError, Position, check_files
from trainer.checkpoint.writer import StagingMemory, WriterProcess, _sendable, _view, local_folder
from trainer.model.config.sizes import model_config
from trainer.options import CheckpointTable

MODEL = model_config("debug", 250)


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.new_group(backend="gloo")
    finally:
        dist.destroy_process_group()


def save(folder: Folder, output: Folder, group: dist.ProcessGroup, **table: Any) -> None:
    """Two checkpoints, the second of other values."""
    state = {"weights.a": torch.arange(60_000.0).view(200, 300), "optimizer.num_updates": torch.tensor(0.0)}
    saver = Saver(folder, output, CheckpointTable(**table), group, steps=2)
    for step in (1, 2):
        state["weights.a"].mul_(3)
        state["optimizer.num_updates"].add_(1)
        saver.save(state, Position(step=step, attempt=1, plan_fingerprint="", order_version=1, model=MODEL))
        saver.release()
    saver.wait()
    saver.close()


def published(folder: Folder, step: int) -> dict[str, Any]:
    """Files of a checkpoint, with their sizes and hashes."""
    checkpoint = folder.folder(f"step-{step:08d}.attempt-1")
    check_files(checkpoint)
    files: dict[str, Any] = json.loads(checkpoint.read("complete.json"))["files"]
    return {file: sums for file, sums in files.items() if file.endswith(".distcp")}


def test_a_process_writes_what_a_thread_writes(
    tmp_path: Path, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, thread, process = (Folder(str(tmp_path / name)) for name in ("out", "thread", "process"))
    begin(output, Attempt(number=claim(output), first_step=0, parent=None, began_at=0.0))
    save(thread, output, alone)
    monkeypatch.setattr("trainer.checkpoint.state.PROCESS_FROM_BYTES", 0)
    save(process, output, alone)
    assert published(process, 1) == published(thread, 1) != published(thread, 2) == published(process, 2)


@pytest.mark.parametrize("from_bytes", [0, 1 << 40])
def test_a_checkpoint_that_was_released_is_written_to_its_end_when_the_run_fails(
    tmp_path: Path, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, from_bytes: int
) -> None:
    monkeypatch.setattr("trainer.checkpoint.state.PROCESS_FROM_BYTES", from_bytes)
    output, folder = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "checkpoints"))
    begin(output, Attempt(number=claim(output), first_step=0, parent=None, began_at=0.0))
    saver = Saver(folder, output, CheckpointTable(), alone, steps=1)
    state = {"weights.a": torch.arange(60_000.0)}
    saver.save(state, Position(step=1, attempt=1, plan_fingerprint="", order_version=1, model=MODEL))
    saver.release()
    saver.close()
    saver.wait()
    assert len(published(folder, 1)) == 1
    assert saver._writer is None or saver._writer._process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("released", [True, False])
def test_a_checkpoint_that_is_abandoned_ends_with_its_writer(
    tmp_path: Path, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    monkeypatch.setattr("trainer.checkpoint.state.PROCESS_FROM_BYTES", 0)
    output, folder = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "checkpoints"))
    begin(output, Attempt(number=claim(output), first_step=0, parent=None, began_at=0.0))
    saver = Saver(folder, output, CheckpointTable(), alone, steps=1)
    state = {"weights.a": torch.arange(60_000.0)}
    saver.save(state, Position(step=1, attempt=1, plan_fingerprint="", order_version=1, model=MODEL))
    assert saver._writer is not None
    os.kill(saver._writer.pid, signal.SIGSTOP)  # it would write for ever
    if released:
        saver.release()
    saver.abandon(30)
    assert not saver.is_writing and not folder.exists("step-00000001.attempt-1/complete.json")
    assert saver._writer._process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_sharded_pieces_that_the_process_wrote_are_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(str(tmp_path / "corpus"), {"web": [1700, 530]}).url
    by_thread = Run(data=corpus, output=tmp_path / "thread", changes={"workers": 2, "steps": 6})
    by_process = Run(data=corpus, output=tmp_path / "process", changes={"workers": 2, "steps": 6})
    assert by_thread.start().finished
    monkeypatch.setattr("trainer.checkpoint.state.PROCESS_FROM_BYTES", 0)
    by_process.start_and_kill(5)
    assert by_process.start().finished
    assert by_process.losses() == by_thread.losses()


def test_tensors_are_found_again_in_the_shared_memory() -> None:
    memory = StagingMemory()
    state = {
        "matrix": torch.arange(12.0).view(3, 4),
        "scalar": torch.tensor(7.0),
        "none": torch.empty(0, 5),
        "half": torch.arange(5, dtype=torch.bfloat16),
    }
    staged = memory.copy(state)
    state["matrix"].add_(1)
    again = memory.copy(state)
    assert again is staged
    shared = memory._bytes.numpy().data
    for name, tensor in state.items():
        assert torch.equal(staged[name], tensor)
        assert torch.equal(_view(shared, memory.span(staged[name])), tensor)  # type: ignore[arg-type]
    column = staged["matrix"][:, 1:3]
    found = _view(shared, memory.span(column))  # type: ignore[arg-type]
    assert torch.equal(found, state["matrix"][:, 1:3])
    with pytest.raises(AssertionError, match="no view of the shared memory"):
        memory.span(torch.ones(3).clone()[1:])
    memory.close()


def test_a_writer_that_was_killed_is_named(tmp_path: Path) -> None:
    memory = StagingMemory()
    memory.copy({"weights": torch.ones(8)})
    writer = WriterProcess(memory)
    os.kill(writer.pid, signal.SIGKILL)
    with pytest.raises(CheckpointError, match="ended with signal 9"):
        writer.write(Folder(str(tmp_path)), 0, SavePlan([]), [], None)
    writer.close()
    memory.close()


def test_pieces_go_over_the_disk_only_to_an_object_store_and_only_where_there_is_room(tmp_path: Path) -> None:
    remote = Folder("s3://runs/one")
    assert local_folder(str(tmp_path), Folder(str(tmp_path / "here")), 1) is None
    assert local_folder(str(tmp_path), remote, 1) == str(tmp_path)
    assert local_folder(str(tmp_path), remote, 1 << 62) is None


def test_an_error_that_cannot_be_passed_on_keeps_its_number_and_words() -> None:
    class RefusedError(OSError):
        def __init__(self, number: int, *, why: str) -> None:
            super().__init__(number, why)

    assert _sendable(ValueError("odd")).args == ("odd",)
    passed = _sendable(RefusedError(28, why="no room"))
    assert type(passed) is OSError and passed.errno == 28 and "no room" in str(passed)


@pytest.mark.slow
def test_pieces_go_to_an_object_store_over_the_disk(
    s3: dict[str, str], alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.checkpoint.state.PROCESS_FROM_BYTES", 0)
    scratch = tmp_path / "scratch"
    output, folder = Folder(str(tmp_path / "out")), Folder("s3://runs/checkpoints")
    begin(output, Attempt(number=claim(output), first_step=0, parent=None, began_at=0.0))
    save(folder, output, alone, local=str(scratch))
    assert published(folder, 1) != published(folder, 2)
    assert scratch.is_dir() and not list(scratch.iterdir())
