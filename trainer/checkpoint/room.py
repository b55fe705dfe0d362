"""Whether the disk of a run's checkpoints has room for one more. No torch here: it is asked before anything
starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lineage.storage.folder import Folder
from trainer.checkpoint.store import CheckpointError


class DiskFullError(CheckpointError):
    """The disk is too full for a checkpoint; the message has the bytes that are free and those that are
    needed."""


def free_bytes(folder: Folder) -> int | None:
    """Bytes that the disk of a folder has left, be the folder there or not; None in an object store."""
    if folder.is_remote:
        return None
    place = Path(os.path.abspath(folder.url))
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_room(checkpoints: Folder, num_bytes: int) -> None:
    """DiskFullError unless the disk can take a checkpoint of so many bytes."""
    free = free_bytes(checkpoints)
    if free is not None and free < num_bytes:
        raise no_room(checkpoints, num_bytes)


def no_room(checkpoints: Folder, num_bytes: int) -> DiskFullError:
    """The error of a disk that cannot take a checkpoint of so many bytes."""
    return DiskFullError(
        f"{checkpoints.url} lies on a disk with {free_bytes(checkpoints):,} bytes free, and a checkpoint of"
        f" this model needs {num_bytes:,}: free some room and make the same call again, or name another place"
        " in train.checkpoint.path (train.checkpoint.keep says how many are kept)"
    )
