"""The disk that a path lies on, as people know it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_MOUNTS: Final = "/proc/self/mountinfo"


def disk_of(path: str, mounts: str = _MOUNTS) -> str:
    """Device, kind of file system and mount point of the nearest folder of `path` that is there. A path of
    another system than Linux is named by its device's number."""
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    number = os.stat(there).st_dev
    try:
        text = Path(mounts).read_text()
    except OSError:
        return f"device {os.major(number)}:{os.minor(number)}"
    found: tuple[int, str] | None = None
    for line in text.splitlines():
        # "36 35 98:0 /root /mount options [tags] - kind device options": proc(5).
        head, _, tail = line.partition(" - ")
        mount = _unescaped(head.split()[4])
        kind, device = tail.split()[:2]
        is_above = there.is_relative_to(mount)
        # The last of equal length hides those before it.
        if is_above and (found is None or len(mount) >= found[0]):
            found = len(mount), f"{_unescaped(device)} ({kind}, mounted at {mount})"
    return found[1] if found else f"device {os.major(number)}:{os.minor(number)}"


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)
