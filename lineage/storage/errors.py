"""What goes wrong with a store: every error says which file, what is wrong and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The system's numbers for a disk that is full and a quota that is used up."""
_BROKEN: Final = (errno.EIO, errno.EROFS)


class StorageError(OSError):
    """A file or folder cannot be read or written; the message names it and says what to do."""


class UnreachableError(StorageError):
    """The store does not answer, or fails whatever is asked of it."""


class ForbiddenError(StorageError, PermissionError):
    """The store refuses: keys are missing, wrong, or may not do this."""


class NoBucketError(StorageError, FileNotFoundError):
    """There is no such bucket."""


@contextmanager
def naming_path(path: str) -> Iterator[None]:
    """An error of the disk as a StorageError that names `path`: the system's error on an open file names
    none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error.filename, str):
            raise
        named = path if error.filename is None else os.fsdecode(error.filename)
        raise StorageError(error.errno, os.strerror(error.errno), named) from error


def what_to_do(message: str) -> str | None:
    """What to do about the failing disk that the message of an error tells of, in a sentence; None if it
    tells of none. (The error itself may have passed through libraries that keep no more of it than its
    text.)"""
    if any(os.strerror(number) in message for number in FULL):
        return "Free some room and make the same call again: it continues where this one stopped."
    if any(os.strerror(number) in message for number in _BROKEN):
        return "When the disk works again, make the same call again: it continues where this one stopped."
    return None
