"""What goes wrong with a store: every error says which file, what is wrong and what to do."""

from __future__ import annotations


class StorageError(OSError):
    """A file or folder cannot be read or written; the message names it and says what to do."""


class UnreachableError(StorageError):
    """The store does not answer, or fails whatever is asked of it."""


class ForbiddenError(StorageError, PermissionError):
    """The store refuses: keys are missing, wrong, or may not do this."""


class NoBucketError(StorageError, FileNotFoundError):
    """There is no such bucket."""
