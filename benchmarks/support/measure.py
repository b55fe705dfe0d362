"""Wall time, processor time and peak memory of a command with all its descendants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_POLL_SECONDS = 0.1
_DISK_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`cpu_s` is user and system time of every process seen; `peak_mb` the largest sum of their unique
    memory; `peak_disk_mb` the most that the files of a folder took."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    peak_disk_mb: float = 0.0


def measure(command: Sequence[str], folder: Path | None = None) -> Cost:
    """Run a command to its end; RuntimeError with its output if it fails. `folder`: whose files are
    watched."""
    with tempfile.TemporaryFile(
        "w+"
    ) as output:  # a pipe that nobody reads would stop the command when it is full
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        cpu, peak, disk = _watch(process, folder)
        wall = time.perf_counter() - started
        if process.returncode:
            output.seek(0)
            raise RuntimeError(
                f"{' '.join(command)} failed with {process.returncode}:\n{output.read()[-4000:]}"
            )
    return Cost(wall_s=wall, cpu_s=cpu, peak_mb=peak / 1e6, peak_disk_mb=disk / 1e6)


def _watch(process: subprocess.Popen[str], folder: Path | None) -> tuple[float, float, float]:
    """Processor seconds and largest memory in bytes of a process and its descendants, and the largest size in
    bytes of a folder, until it ends."""
    root = psutil.Process(process.pid)
    seen: dict[tuple[int, float], float] = {}
    peak = disk = last_look = 0.0
    while process.poll() is None:
        memory = 0.0
        for member in _tree(root):
            try:
                times = member.cpu_times()
                seen[member.pid, member.create_time()] = times.user + times.system
                memory += member.memory_info().rss - member.memory_info().shared
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        peak = max(peak, memory)
        if folder is not None and time.monotonic() - last_look > _DISK_POLL_SECONDS:
            disk, last_look = max(disk, _size(folder)), time.monotonic()
        time.sleep(_POLL_SECONDS)
    return sum(seen.values()), peak, disk


def _size(folder: Path) -> float:
    """Bytes of the files below a folder; one may go while they are counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return float(total)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
