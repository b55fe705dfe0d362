"""metrics.jsonl: a line for each step report of a run, attempt after attempt. Its name, its writer and its reader.

A process that is killed while it writes leaves half a line at the end. The reader passes over it, and the writer of the
next attempt removes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lineage.storage.folder import Folder, StorageError
from trainer.telemetry.step_report import StepReport

METRICS_FILE: Final = "metrics.jsonl"


def read_reports(output: Folder) -> list[StepReport]:
    """Every report of the run, in the order of the file; none where there is no file."""
    return read_new_reports(output, 0)[0]


def read_new_reports(output: Folder, start: int) -> tuple[list[StepReport], int]:
    """The reports in the whole lines from byte `start` on, and the byte where the next read starts."""
    size = metrics_size(output)
    if size <= start:
        return [], start
    whole, end, _ = output.read_range(METRICS_FILE, start, size - start).rpartition(b"\n")
    return [StepReport.from_json(line) for line in whole.splitlines()], start + len(whole) + len(end)


def metrics_size(output: Folder) -> int:
    """Bytes of the file; 0 where there is none."""
    return output.size(METRICS_FILE) if output.exists(METRICS_FILE) else 0


@contextmanager
def naming_path(path: str) -> Iterator[None]:
    """An error of the disk as one that names `path`: the system's error on an open file names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise StorageError(error.errno, os.strerror(error.errno), path) from error


class JsonLines:
    """`metrics.jsonl`: one flushed line a step. In an object store, which cannot append, it is put whole at each
    `flush` (a checkpoint) and at the end."""

    def __init__(self, output: Folder) -> None:
        self._output = output
        if output.is_remote:
            self._spool = tempfile.TemporaryDirectory(prefix="sluice-metrics-")
            self._path = Path(self._spool.name) / METRICS_FILE
            self._path.write_bytes(output.read(METRICS_FILE) if output.exists(METRICS_FILE) else b"")
        else:
            self._path = Path(output.at(METRICS_FILE))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, report: StepReport) -> None:
        with naming_path(str(self._path)):
            self._file.write(report.as_json() + "\n")
            self._file.flush()

    def flush(self) -> None:
        os.fsync(self._file.fileno())
        if self._output.is_remote:
            self._output.publish(METRICS_FILE, self._path.read_bytes())

    def close(self) -> None:
        self.flush()
        self._file.close()
        if self._output.is_remote:
            self._spool.cleanup()


def _end_last_line(path: Path) -> None:
    """An attempt that was killed while writing left half a line: drop it, so that every line is JSON."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read()
        if whole and not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)
