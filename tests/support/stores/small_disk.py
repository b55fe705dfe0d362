"""A small disk of its own for a test: a tmpfs, whose size can be changed while it is in use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of so many kB at `folder`; skips the test where nobody may mount one."""
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0 or not _mount(folder, f"size={kilobytes}k"):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(folder: Path, kilobytes: int) -> None:
    """Give the disk at `folder` another size."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(folder)], check=True)


def _mount(folder: Path, options: str) -> bool:
    return (
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode
        == 0
    )
