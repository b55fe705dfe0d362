"""`sluice run` in a process of its own, and what kills it or its workers when files that it writes have
come."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.phases import buckets
from pipeline.phases.buckets import part_unit

DEADLINE = 800.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment when at least `num` files stand that match `pattern`."""

    pattern: str
    num: int

    def __str__(self) -> str:
        return f"{self.num} of {self.pattern}"

    def has_come(self, out: Path) -> bool:
        found = (path for path in out.glob(self.pattern) if not path.name.startswith("."))
        return sum(1 for _ in found) >= self.num


@contextlib.contextmanager
def command(path: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sluice run`, with more options, in a session of its own, dead at the end of the block."""
    with open(path.parent / "log.txt", "ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", str(path), *more],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


def wait_for(moment: Moment, out: Path, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not moment.has_come(out):
        assert driver.poll() is None, f"the run ended before {moment}"
        assert time.monotonic() < deadline, f"{moment} did not come"
        time.sleep(0.001)


def kill_on_the_way(
    moments: list[tuple[str, Moment]],
    out: Path,
    driver: subprocess.Popen[bytes],
    rng: random.Random,
    workers: Counter[str],
) -> str | None:
    """Follow a call from moment to moment, killing workers at some, until the driver is to be killed (in
    which phase), or has ended. Where no worker is at work it is the driver that dies. The moments that have
    come leave the list."""
    while driver.poll() is None:
        moments[:] = [(phase, moment) for phase, moment in moments if not moment.has_come(out)]
        if not (phase := follow(moments, out, driver)):
            break
        time.sleep(rng.uniform(0, 0.05))
        at_work = busy_workers()
        if rng.random() < 0.6 or not at_work:
            return phase if driver.poll() is None else None
        for pid in at_work:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                workers[phase] += 1
    driver.wait(DEADLINE)
    return None


def follow(moments: list[tuple[str, Moment]], out: Path, driver: subprocess.Popen[bytes]) -> str | None:
    """Wait for the next of the moments: its phase, or None where the call ended before."""
    deadline = time.monotonic() + DEADLINE
    while driver.poll() is None:
        for phase, moment in moments:
            if moment.has_come(out):
                return phase
        assert time.monotonic() < deadline, "no other file came"
        time.sleep(0.002)
    return None


def next_files(out: Path, pattern: str, seen: set[Path], driver: subprocess.Popen[bytes]) -> set[Path]:
    """The files matching `pattern` that come next, besides those that were `seen`; none where the call ended
    before."""
    deadline = time.monotonic() + DEADLINE
    while driver.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # a folder that is removed while it is listed
            if fresh := {path for path in out.glob(pattern) if not path.name.startswith(".")} - seen:
                return fresh
        assert time.monotonic() < deadline, "no other file came"
        time.sleep(0.002)
    return set()


def busy_workers() -> list[int]:
    """The processes below this one that carry a unit of work out."""
    known = processes()

    def is_ours(pid: int) -> bool:
        while pid in known and pid != os.getpid():
            pid = known[pid][0]
        return pid == os.getpid()

    return [
        pid for pid, (_, _, line) in known.items() if line.startswith("ray::MapBatches(") and is_ours(pid)
    ]


def processes() -> dict[int, tuple[int, int, str]]:
    """(parent, session, command line) of every process, by its id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = (int(stat[1]), int(stat[3]), line)
    return found


def end_sessions(*sessions: int) -> None:
    """End what Ray left behind in these sessions, process by process."""
    for pid, (_, session, _) in processes().items():
        if session in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def interrupted_parting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run in this process that Ctrl-C ends when the third unit is to be parted."""
    calls = []

    def interrupted(job: buckets.PartJob, item: buckets.UnitToPart) -> buckets.PartResult:
        calls.append(item)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return part_unit(job, item)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(buckets, "part_unit", interrupted)
        yield
