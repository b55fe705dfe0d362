"""When a name is on the disk: the folders of this process whose entries are not synced yet.

A rename, link or removal is on the disk once its folder is synced (fsync(2): syncing a file does not sync its
entry). Syncing a folder for each file would cost as much as the files do. So a process notes the folders that
it changed, and syncs each once before it publishes what vouches for their files.

A folder that this process meets for the first time is synced with all above it, up to the entry of its root
in the root's parent: a process that made them may have died before it synced them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
"""What opening or syncing a folder gives where the file system cannot do it, or where it is another
user's."""


class _UnsyncedFolders:
    """The folders of this process with entries that may not be on the disk."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._met: set[tuple[str, str]] = set()
        self._adding, self._syncing = threading.Lock(), threading.Lock()

    def add(self, folder: str, root: str) -> None:
        with self._adding:
            self._folders.add(folder)
            while (folder, root) not in self._met:
                self._met.add((folder, root))
                self._folders.add(folder)
                if folder in (os.path.dirname(root), "/"):
                    break
                folder = os.path.dirname(folder)

    def forget(self, tree: str) -> None:
        """The folders of a tree that is removed: one made again under the same name is another."""
        with self._adding:
            self._met = {met for met in self._met if not f"{met[0]}/".startswith(f"{tree}/")}

    def sync(self) -> None:
        with self._syncing:  # who comes second returns only when what the first took is on the disk
            with self._adding:
                taken = sorted(self._folders)
                self._folders.clear()
            try:
                while taken:
                    _sync(taken[-1], os.O_RDONLY | os.O_DIRECTORY)
                    taken.pop()
            finally:
                with self._adding:
                    self._folders.update(taken)


_unsynced = _UnsyncedFolders()


def entry_changed(path: str, root: str) -> None:
    """Note that the entry of `path` in its folder is new, another or gone. `root` is the folder up to which
    the folders above may be new too."""
    _unsynced.add(os.path.dirname(path), root)


def tree_removed(path: str, root: str) -> None:
    """Note that a folder and all below it are gone."""
    _unsynced.forget(path)
    entry_changed(path, root)


def sync_folders() -> None:
    """Return when every entry that this process changed is on the disk; OSError names a folder whose disk
    fails. A folder that is gone by now has nothing to sync."""
    _unsynced.sync()


def sync_file(path: str) -> None:
    """Return when the content of a file that a library wrote is on the disk; OSError names it. One that is
    gone is passed over."""
    _sync(path, os.O_RDONLY)


def sync_tree(top: str, without: str) -> None:
    """Return when the entries of all folders at and below `top` are on the disk, and that of `top` itself: of
    those too that another process changed. `without` is a folder in `top` that is left out."""
    for folder, folders, _ in os.walk(top):
        if folder == top and without in folders:
            folders.remove(without)
        entry_changed(os.path.join(folder, ""), top)
    entry_changed(top, top)
    sync_folders()


def make_folder(path: str, root: str) -> None:
    """Make a folder, and those above it that are missing."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        Path(folder).mkdir(exist_ok=True)
        entry_changed(folder, root)


def _sync(path: str, flags: int) -> None:
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in _NO_SYNC and flags & os.O_DIRECTORY:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            error.filename = path
            raise
    finally:
        os.close(descriptor)
