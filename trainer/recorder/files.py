"""Where recorders lie: in the output, and until they are published in the memory of their node. No torch
here."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from typing import Final

from lineage.ids import content_hash
from lineage.storage.folder import Folder

FOLDER: Final = "recorder"
RING: Final = ".ring"
STACKS: Final = ".stacks"
FLIGHT: Final = "flight_rank_"
_KEPT_ATTEMPTS: Final = 4
_KEPT_OUTPUTS: Final = 8
_EMPTY_SECONDS: Final = 3600
"""How old an empty folder must be to be removed: the process that made a new one is about to use it."""
_TAKEN: Final = "taken-"
_SHARED_MEMORY: Final = "/dev/shm"


def attempt_folder(attempt: int) -> str:
    """Where the recorders of an attempt lie, in the output."""
    return f"{FOLDER}/{attempt:05d}"


def node_folder(output: Folder) -> str:
    """Where the processes of this node keep their recorders while they run: memory, so that neither a slow
    file system nor a failing one can stop a step."""
    base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
    return os.path.join(base, f"sluice-recorder-{os.getuid()}-{content_hash(output.url.encode()).hex()[:16]}")


def drop_old_recorders(output: Folder, attempt: int) -> None:
    """Remove the recorders of attempts before the last few. By one rank."""
    number = attempt - _KEPT_ATTEMPTS
    while number > 0 and output.names(attempt_folder(number)):
        output.remove_tree(attempt_folder(number))
        number -= 1


def left_over(output: Folder) -> dict[str, bytes]:
    """Recorders of this output in this node's memory whose processes have ended or still run, by the names
    that they have in the output."""
    folder = node_folder(output)
    found = {}
    with contextlib.suppress(FileNotFoundError):
        # A rank may have had two processes: what the living one knows comes last.
        for name in sorted(os.listdir(folder), key=lambda name: (_lives(_pid(name)), name)):
            published = _published_name(name)
            if published is not None:
                with contextlib.suppress(FileNotFoundError):  # one that closes meanwhile publishes it
                    with open(os.path.join(folder, name), "rb") as file:
                        data = file.read()
                    if data:
                        found[published] = data
    return found


def publish_left_over(output: Folder, folder: str) -> None:
    """Publish what killed processes have left, of the last few attempts; what is older is removed. Ranks of a
    node meet here: each file is one's, by its renaming. What could not be published stays for the next
    start."""
    _take_over(folder)
    names = os.listdir(folder)
    held = {_published_name(name) for name in names if _lives(_pid(name))}
    left = {
        name: published
        for name in names
        if (published := _published_name(name)) is not None and published not in held
    }
    newest = max(map(_attempt, left), default=0)
    for name in [name for name in left if _attempt(name) <= newest - _KEPT_ATTEMPTS]:
        del left[name]
        with contextlib.suppress(FileNotFoundError):  # another rank was first
            os.unlink(os.path.join(folder, name))
    for name, published in left.items():
        path, taken = os.path.join(folder, name), os.path.join(folder, f"{_TAKEN}{os.getpid()}-{name}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, taken)
            with open(taken, "rb") as file:
                data = file.read()
            if data:
                try:
                    output.publish(published, data)
                except OSError:
                    os.rename(taken, path)
                    raise
            os.unlink(taken)


def _take_over(folder: str) -> None:
    """Give back their names to the files that a process took and died over."""
    for name in os.listdir(folder):
        pid, _, local = name.removeprefix(_TAKEN).partition("-")
        if name.startswith(_TAKEN) and pid.isdigit() and not _lives(int(pid)):
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                os.rename(os.path.join(folder, name), os.path.join(folder, local))


def drop_left_by_others(folder: str) -> None:
    """Of what killed processes of this user left of other outputs than that of `folder`, which nobody may ever
    start again, keep the newest few outputs: it lies in memory."""
    left = []
    for path in glob.glob(f"{glob.escape(folder.rpartition('-')[0])}-*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found = os.lstat(path)
            names = os.listdir(path)
            if path == folder or found.st_uid != os.getuid() or any(_lives(_pid(name)) for name in names):
                continue
            if names:
                left.append((found.st_mtime, path))
            elif time.time() - found.st_mtime > _EMPTY_SECONDS:
                with contextlib.suppress(OSError):  # it is not empty any more
                    os.rmdir(path)
    for _, path in sorted(left)[:-_KEPT_OUTPUTS]:
        shutil.rmtree(path, ignore_errors=True)  # another start removes it too


def local_name(attempt: int, rank: int, pid: int) -> str:
    """A recorder's name in the node's folder, without its ending."""
    return f"{attempt:05d}.rank-{rank:05d}.{pid}"


def _published_name(local: str) -> str | None:
    parts = local.split(".")
    if (
        len(parts) != 4
        or not (parts[0].isdigit() and parts[2].isdigit())
        or f".{parts[3]}" not in (RING, STACKS)
    ):
        return None
    return f"{attempt_folder(int(parts[0]))}/{parts[1]}.{parts[3]}"


def _attempt(local: str) -> int:
    return int(local.partition(".")[0])


def _pid(local: str) -> int:
    """The process of a local name, or that has taken a file; 0 of another name."""
    if local.startswith(_TAKEN):
        pid = local.split("-")[1]
        return int(pid) if pid.isdigit() else 0
    parts = local.split(".")
    return int(parts[2]) if _published_name(local) is not None else 0


def _lives(pid: int) -> bool:
    return pid > 0 and os.path.exists(f"/proc/{pid}")
