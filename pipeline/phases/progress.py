"""Progress for people: a live line per phase on a terminal, plain lines now and then anywhere else. On stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lineage.secrets import redacted
from pipeline.terminal import visible_lines

_LINE_EVERY_SECONDS = 10.0


@dataclass(slots=True)
class PhaseProgress:
    """A phase under way: `step` moves it on."""

    name: str
    total: float
    unit: str
    _live: Progress | None = None
    _task: TaskID | None = None
    _done: float = 0.0
    _note: str = ""
    _started: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)

    def step(self, amount: float, note: str = "") -> None:
        """`amount` more of `total` is done; `note` is what else to show, such as documents and MB/s."""
        self._done += amount
        self._note = note
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=self._done, note=note)
        elif time.monotonic() - self._said > _LINE_EVERY_SECONDS:
            self._said = time.monotonic()
            self._print_line()

    def _print_line(self) -> None:
        seconds = time.monotonic() - self._started
        share = self._done / self.total if self.total else 1.0
        left = f", about {seconds * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        print(f"{self.name}: {100 * share:.0f}% after {seconds:.0f} s{left} {self._note}", file=sys.stderr, flush=True)

    def rate(self, amount: float) -> float:
        """`amount` per second since the phase began."""
        return amount / max(1e-9, time.monotonic() - self._started)

    def close(self) -> None:
        """The phase is over: one plain line stays."""
        seconds = time.monotonic() - self._started
        note = f"  {self._note}" if self._note else ""
        line = f"{self.name:<32} {seconds:6.1f} s{note}"
        if self._live is not None:
            self._live.stop()
        print(line, file=sys.stderr, flush=True)


class ProgressReporter:
    """Makes phases. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True)

    @contextmanager
    def phase(self, name: str, total: float, unit: str = "") -> Iterator[PhaseProgress]:
        """A phase of `total` units for the time of the block."""
        phase = PhaseProgress(name, total, unit)
        if self._quiet:
            phase._said = float("inf")
            yield phase
            return
        if self._console.is_terminal:
            phase._live = Progress(
                SpinnerColumn(),
                TextColumn(f"{name:<32}"),
                BarColumn(bar_width=28),
                TextColumn("{task.percentage:3.0f}%"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            phase._live.start()
            phase._task = phase._live.add_task(name, total=max(total, 1e-9), note="")
        try:
            yield phase
        except BaseException:
            if phase._live is not None:
                phase._live.stop()
            raise
        phase.close()

    def say(self, line: str) -> None:
        """One line for the user."""
        if not self._quiet:
            self._console.print(visible_lines(redacted(line)), highlight=False, markup=False, soft_wrap=True)
