"""Temporary files, each locked by its writer for as long as that lives, and what dead writers left of them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lineage.storage.errors import FULL, StorageError

PREFIX = ".tmp-"


def remove_empty(folder: Path) -> None:
    """Remove a folder of temporary files, unless other writers are at work in it or died there."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


@contextmanager
def naming_full_disks(path: str) -> Iterator[None]:
    """A full disk, or a quota that is used up, as a StorageError that names the file: the system's error does
    not."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, StorageError):
            raise
        raise StorageError(error.errno, os.strerror(error.errno), path) from error


@contextmanager
def temporary_file(target: Path) -> Iterator[tuple[_NewFile, Path]]:
    """A locked, empty file to write in, and its path; gone at the end unless it was renamed. What dead
    writers of `target` left is removed."""
    folder = target.with_name(PREFIX + target.name)
    file = None
    while file is None:
        path = folder / uuid.uuid4().hex
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        with contextlib.suppress(FileNotFoundError):  # another writer has just removed the empty folder
            _remove_dead(folder)
            file = _locked_file(path, target)
    try:
        with file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)
        remove_empty(folder)


def _locked_file(path: Path, target: Path) -> _NewFile | None:
    """A new file at `path` that others can see to have a live writer; None if one of them took it for dead
    before, and removes it."""
    file = _NewFile(path, target)
    if _lock(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink:
        return file
    file.close()
    return None


class _RawFile(io.FileIO):
    """A file whose errors name `target`, which it is written for: the system's error on an open file names
    none."""

    def __init__(self, path: Path, target: Path) -> None:
        super().__init__(os.fspath(path), "xb")  # as an error is to name it
        self._target = target

    def write(self, data: Any) -> int:
        with _naming(self._target):
            return super().write(data)

    def sync(self) -> None:
        with _naming(self._target):
            os.fsync(self.fileno())


class _NewFile(io.BufferedWriter):
    """The same, buffered."""

    def __init__(self, path: Path, target: Path) -> None:
        self._raw_file = _RawFile(path, target)
        super().__init__(self._raw_file)

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        self.flush()
        self._raw_file.sync()


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(error.errno, os.strerror(error.errno or 0), str(target)) from error


def drop_dead(folder: Path) -> None:
    """Remove the files of `folder` whose writers are dead, and the folder where that were all."""
    with contextlib.suppress(FileNotFoundError):  # another writer has just removed it
        _remove_dead(folder)
        remove_empty(folder)


def _remove_dead(folder: Path) -> None:
    """Remove the files of `folder` whose writers are dead: those without a lock."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError), open(folder / name, "rb") as file:
            if _lock(file.fileno()):
                # Under the lock: a writer that has made the file and not yet locked it will see that it is
                # gone.
                (folder / name).unlink(missing_ok=True)


def _lock(descriptor: int) -> bool | None:
    """Whether this descriptor has the file's lock now; None where the file system has no locks: then a dead
    writer looks like a live one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_temporary(path: str) -> bool:
    """Whether a path names a temporary file of a writer, or a folder of them."""
    return any(part.startswith(PREFIX) for part in path.split("/"))
