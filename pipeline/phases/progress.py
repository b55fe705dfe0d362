"""Progress for people: a live line per phase on a terminal, plain lines now and then anywhere else. On
stderr."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lineage.secrets import redacted
from pipeline.terminal import visible_lines

_LINE_EVERY_SECONDS: Final = 5.0
_SHORTEST_TIMED: Final = 1.0
"""Seconds: what took less says nothing of how fast the phase is."""
_LINE: Final = re.compile(r"([^:]{1,80}): (\d{1,3})% after (\d{1,9}) s(?:, about \d+ s left)?(?:, (.*))?")


def a_second(amount: float, seconds: float, shown: Callable[[int], str]) -> str:
    """How fast a phase is, as a note goes on with it; empty where it has not run for long enough to say."""
    return f", {shown(int(amount / seconds))}" if seconds >= _SHORTEST_TIMED else ""


@dataclass(slots=True)
class PhaseProgress:
    """A phase under way: `step` moves it on. `under_way`: what is done of units that are not finished."""

    name: str
    total: float
    unit: str
    under_way: Callable[[], float] = lambda: 0.0
    _live: Progress | None = None
    _task: TaskID | None = None
    _done: float = 0.0
    _unfinished: float = 0.0
    _note: str = ""
    _started: float = field(default_factory=time.monotonic)

    def step(self, amount: float, note: str = "") -> None:
        """`amount` more of `total` is done; `note` is what else to show, such as documents and MB/s."""
        self._done += amount
        self._unfinished = max(0.0, self._unfinished - amount)  # most of it was told of what ends now
        self._note = note
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=self._shown(), note=note)

    def tell(self, ended: threading.Event) -> None:
        """Print a line now and then until the phase has `ended`, whether or not it moves; on a terminal move
        the line that stands there."""
        while not ended.wait(_LINE_EVERY_SECONDS):
            self._unfinished = self.under_way()
            if self._live is not None and self._task is not None:
                self._live.update(self._task, completed=self._shown())
            else:
                self._print_line()

    def _shown(self) -> float:
        return min(self.total, self._done + self._unfinished)

    def _print_line(self) -> None:
        seconds = time.monotonic() - self._started
        share = self._shown() / self.total if self.total else 1.0
        left = f", about {seconds * (1 - share) / share:.0f} s left" if 0 < share < 1 else ""
        note = f", {self._note}" if self._note else ""
        print(
            f"{self.name}: {100 * share:.0f}% after {seconds:.0f} s{left}{note}", file=sys.stderr, flush=True
        )

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


def live_columns(name: str) -> tuple[ProgressColumn, ...]:
    """Of a phase's line on a terminal; its task has the field `note`."""
    return (
        SpinnerColumn(),
        TextColumn(f"{name:<32}", markup=False),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """What a plain line says: the phase, the share of it that is done, seconds since it began, and what it
    came to."""

    name: str
    share: float
    seconds: float
    note: str


def parse_line(line: str) -> ProgressLine | None:
    """What `PhaseProgress` printed, read back; None for another line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    name, percent, seconds, note = found.groups()
    return ProgressLine(name=name, share=int(percent) / 100, seconds=float(seconds), note=note or "")


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
            yield phase
            return
        if self._console.is_terminal:
            phase._live = Progress(*live_columns(name), console=self._console, transient=True)
            phase._live.start()
            phase._task = phase._live.add_task(name, total=max(total, 1e-9), note="")
        ended = threading.Event()
        teller = threading.Thread(target=phase.tell, args=(ended,), name="sluice-progress", daemon=True)
        teller.start()
        try:
            yield phase
        except BaseException:
            if phase._live is not None:
                phase._live.stop()
            raise
        finally:
            ended.set()
            teller.join()
        phase.close()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say `what` is waited for, and every few seconds that it still is, for the time of the block."""
        ended, begun = threading.Event(), time.monotonic()

        def tell() -> None:
            while not ended.wait(_LINE_EVERY_SECONDS):
                self.say(f"{what}: {time.monotonic() - begun:.0f} s")

        teller = threading.Thread(target=tell, name="sluice-progress", daemon=True)
        self.say(what)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()

    def say(self, line: str) -> None:
        """One line for the user."""
        if not self._quiet:
            self._console.print(visible_lines(redacted(line)), highlight=False, markup=False, soft_wrap=True)
