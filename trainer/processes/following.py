"""Shows a run that trains elsewhere: its metrics as they are written, and why processes of it ended."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

from lineage.storage.folder import Folder
from lineage.storage.transient import TRANSIENT
from trainer.attempts import failures
from trainer.telemetry.metrics_file import metrics_size, read_new_reports
from trainer.telemetry.sinks import Terminal

_LOOK_EVERY_SECONDS: Final = {False: 1.0, True: 10.0}
"""By whether the output lies in an object store, where metrics come once a minute and with each
checkpoint."""


@contextlib.contextmanager
def following(output: Folder, steps: int) -> Iterator[None]:
    """Show on stderr the metrics of the run under `output` while the block runs, and none that were there
    before."""
    ended = threading.Event()
    follower = Follower(output, steps)
    thread = threading.Thread(
        target=_follow, args=(follower, ended, _LOOK_EVERY_SECONDS[output.is_remote]), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _follow(follower: Follower, ended: threading.Event, every: float) -> None:
    last = False
    while not last:
        last = ended.wait(every)
        with contextlib.suppress(*TRANSIENT):  # a store that does not answer is asked again
            follower.look()


class Follower:
    """What of a run has been shown."""

    def __init__(self, output: Folder, steps: int) -> None:
        self._output, self._terminal = output, Terminal(steps)
        self._seen = metrics_size(output)
        self._failures = set(failures(output))

    def look(self) -> None:
        """Show what is new."""
        for process, message in failures(self._output).items():
            if process not in self._failures:
                self._failures.add(process)
                sys.stderr.write("attempt {}, rank {} ended: {}\n".format(*process, message))
        reports, self._seen = read_new_reports(self._output, self._seen)
        for report in reports:
            # The run says this on its own stderr as soon as it finds it.
            sys.stderr.writelines(f"health: {symptom.text}\n" for symptom in report.health)
            self._terminal.write(report)
