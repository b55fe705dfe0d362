"""A disk that is full while a checkpoint is written: the bytes free and needed, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lineage.storage.folder import Folder, StorageError
from tests.support.stores.small_disk import resize, small_disk
from trainer.attempts import claim
from trainer.checkpoint.files import _Files
from trainer.checkpoint.room import DiskFullError, check_room
from trainer.checkpoint.state import Saver
from trainer.checkpoint.store import Position
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


def test_a_disk_that_is_full_is_told_in_bytes_and_the_next_try_finds_it_clean(
    tmp_path: Path, alone: dist.ProcessGroup
) -> None:
    state = {"weights.a": torch.ones(100_000), "weights.b": torch.ones(100_000)}
    with small_disk(tmp_path / "disk", 500) as disk:
        output, folder = Folder(str(tmp_path / "out")), Folder(str(disk / "checkpoints"))
        position = Position(step=3, attempt=claim(output), plan_fingerprint="", order_version=1, model=MODEL)
        saver = Saver(folder, output, CheckpointTable(), alone, steps=3)
        saver.save(state, position)
        saver.release()
        with pytest.raises(
            DiskFullError, match=r"\d bytes free, and a checkpoint of this model needs 800,000: free"
        ):
            saver.wait()
        assert folder.names() == []
        resize(disk, 2000)
        check_room(folder, 800_000)
        saver.save(state, position)
        saver.release()
        saver.wait()
        assert any(name.endswith("complete.json") for name in folder.names())


def test_the_room_is_that_of_the_disk_where_the_folder_will_lie(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        check_room(Folder(str(disk / "not/yet/there")), 100 << 10)
        with pytest.raises(
            DiskFullError, match=r"102,400 bytes free, and a checkpoint of this model needs 102,401"
        ):
            check_room(Folder(str(disk / "not/yet/there")), (100 << 10) + 1)
    check_room(Folder("s3://bucket/run"), 1 << 60)


def test_a_tensor_that_a_full_disk_does_not_take_is_told_with_the_file_and_the_reason() -> None:
    """torch says of it only where in its own code it was."""
    full = pytest.raises(StorageError, match="No space left on device: '/dev/full'")
    with full, _Files().create_stream("/dev/full", "wb") as stream:
        try:
            stream.write(b"x" * 1_000_000)
        except OSError:
            raise RuntimeError("enforce fail at inline_container.cc:672") from None
