"""A job's log on a terminal: what a phase has come to as a live line, as a run here shows it; all else as it
comes."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, TaskID

from pipeline.phases.progress import live_columns, parse_line
from pipeline.terminal import visible


class LiveLog:
    """Takes a log in pieces, cut anywhere. Leave its block and the live line is gone."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._name = ""

    def __enter__(self) -> LiveLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._rest:
            self._line(self._rest)
        self._stop()

    def write(self, text: str) -> None:
        """The next piece."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        found = parse_line(line)
        if found is None:
            if line.startswith(f"{self._name} "):  # the phase is over: its own line says what it came to
                self._stop()
            self._console.print(visible(line, "\t"), highlight=False, markup=False, soft_wrap=True)
            return
        if self._live is None or found.name != self._name:
            self._stop()
            self._name = found.name
            self._live = Progress(*live_columns(found.name), console=self._console, transient=True)
            self._live.start()
            self._task = self._live.add_task(found.name, total=1.0, note="")
            # The phase began before its first line came.
            self._live.tasks[0].start_time = self._live.get_time() - found.seconds
        self._live.update(self._task, completed=found.share, note=visible(found.note), refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._name = None, ""
