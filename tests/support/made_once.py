"""Folders that all processes of a test session share: what takes seconds is made by the first that needs it."""

from __future__ import annotations

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Result = TypeVar("Result")


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Result]
) -> tuple[Path, Result]:
    """A new folder of this session, filled by `make(folder)`, and what that returned; no test may change the folder.
    The processes of pytest-xdist wait for the one that fills it."""
    session = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    made = session / f"{name}.pickle"
    with open(session / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():  # also if the process before failed: its folder is left alone
            # Not in a folder of this process: pytest removes that when the process ends, others still at work.
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=session))
            made.write_bytes(pickle.dumps((folder, make(folder))))
        found: tuple[Path, Result] = pickle.loads(made.read_bytes())
        return found
