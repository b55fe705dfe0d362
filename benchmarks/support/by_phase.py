"""What a `sluice` command with phases takes of the machine, phase by phase: the driver's memory and a worker's.

A phase ends with its line on stderr (`pipeline.phases.progress`), and what follows it belongs to the next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

import psutil

_POLL_SECONDS: Final = 0.1
_KILL_POLL_SECONDS: Final = 0.005
_ENDED: Final = re.compile(r"(\S[^:]*?) +(\d+\.\d) s(?:  .*)?")
"""The line that stays of a phase: its name, padded, its seconds and its note."""
LAST: Final = "publish"
"""What follows the last phase that has a line."""


@dataclass(slots=True, kw_only=True)
class PhaseCost:
    """Of one phase: seconds, and the largest memory in bytes that no other process shares, of the command's own
    process and of any one below it."""

    seconds: float = 0.0
    driver: int = 0
    worker: int = 0


@dataclass(slots=True, kw_only=True)
class CommandCost:
    """Of a whole command: `cpu_s` is user and system time of every process seen, `together` the largest sum of their
    memory in bytes."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    together: int = 0
    phases: dict[str, PhaseCost] = field(default_factory=dict)

    @property
    def driver(self) -> int:
        return max(phase.driver for phase in self.phases.values())

    @property
    def worker(self) -> int:
        return max(phase.worker for phase in self.phases.values())


def run_by_phase(
    arguments: Sequence[str],
    *,
    look: Callable[[float], None] = lambda seconds: None,
    kill: Callable[[Mapping[str, float]], bool] | None = None,
) -> CommandCost:
    """Carry `python -m pipeline ARGUMENTS` out to its end; `look` is called with the seconds so far, about ten times a
    second. Once `kill` says so of the seconds since each phase ended, the command and all its workers get SIGKILL.
    RuntimeError with its output if it fails otherwise, or ends before that moment."""
    cost, seen = CommandCost(), dict[tuple[int, float], float]()
    with tempfile.TemporaryFile("w+b") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        phases = _Phases(output, cost)
        while process.poll() is None:
            phases.see()
            if kill is None:
                cost.together = max(cost.together, _see(process.pid, seen, phases.now))
                cost.wall_s = time.perf_counter() - started
                look(cost.wall_s)
                time.sleep(_POLL_SECONDS)
            elif kill(phases.since_end()):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _end_session(process.pid)
                return cost
            else:
                time.sleep(_KILL_POLL_SECONDS)
        phases.see()
        phases.end(LAST)
        cost.wall_s, cost.cpu_s = time.perf_counter() - started, sum(seen.values())
        if process.returncode or kill is not None:
            raise RuntimeError(
                f"sluice {' '.join(arguments)} ended with {process.returncode}:\n{phases.text[-4000:]}"
            )
    return cost


class _Phases:
    """Follows the output of a command: `now` is the cost of the phase under way."""

    def __init__(self, output: IO[bytes], cost: CommandCost) -> None:
        self._output, self._cost = output, cost
        self._at, self._begun = 0, time.perf_counter()
        self.text, self.now = "", PhaseCost()
        self._ended = dict[str, float]()

    def see(self) -> None:
        """Take in the lines that came since the last call."""
        data = os.pread(self._output.fileno(), 1 << 20, self._at)
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        self.text += whole.decode(errors="replace")
        for line in whole.decode(errors="replace").splitlines():
            if found := _ENDED.fullmatch(line):
                self.end(found[1])

    def end(self, name: str) -> None:
        self.now.seconds = time.perf_counter() - self._begun
        self._cost.phases[name] = self.now
        self._ended[name] = time.perf_counter()
        self.now, self._begun = PhaseCost(), time.perf_counter()

    def since_end(self) -> dict[str, float]:
        """The seconds since each phase ended."""
        now = time.perf_counter()
        return {name: now - ended for name, ended in self._ended.items()}


def _see(driver: int, seen: dict[tuple[int, float], float], now: PhaseCost) -> int:
    """Look at a process and those below it; the sum of their memory."""
    together = 0
    try:
        root = psutil.Process(driver)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            with member.oneshot():
                times, memory = member.cpu_times(), member.memory_info()
                seen[member.pid, member.create_time()] = times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        own = memory.rss - memory.shared
        together += own
        if member.pid == driver:
            now.driver = max(now.driver, own)
        else:
            now.worker = max(now.worker, own)
    return together


def _end_session(session: int) -> None:
    """End what a killed command left behind in its session, process by process."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                process.kill()
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
