"""metrics.jsonl: a line for each step report of a run, attempt after attempt. Its name, its writer and its
reader.

A process that is killed while it writes leaves half a line at the end. The reader passes over it, and the
writer of the next attempt removes it."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from lineage.storage import objects
from lineage.storage.durable import entry_changed, make_folder
from lineage.storage.errors import naming_path
from lineage.storage.folder import Folder
from trainer.telemetry.step_report import StepReport

METRICS_FILE: Final = "metrics.jsonl"

_END_BYTES: Final = 64 << 10
_STRETCH_BYTES: Final = 8 << 20
_PUT_EVERY_SECONDS: Final = 60.0
_TIMES_OF_A_PUT: Final = 20
"""The file grows with the run: a put of hundreds of megabytes must not take a minute out of each."""

_log = logging.getLogger(__name__)


def read_reports(output: Folder) -> list[StepReport]:
    """Every report of the run, in the order of the file; none where there is no file."""
    return read_new_reports(output, 0)[0]


def each_line(output: Folder, up_to: int | None = None) -> Iterator[bytes]:
    """Every whole line of the file in turn, or of its first `up_to` bytes: no more than a stretch of it is
    held."""
    size, start, rest = metrics_size(output) if up_to is None else up_to, 0, b""
    while start < size:
        data = output.read_range(METRICS_FILE, start, min(_STRETCH_BYTES, size - start))
        if not data:  # half a line was taken off its end meanwhile
            return
        whole, end, rest = (rest + data).rpartition(b"\n")
        yield from whole.splitlines() if end else ()
        start += len(data)


def read_new_reports(output: Folder, start: int) -> tuple[list[StepReport], int]:
    """The reports in the whole lines from byte `start` on, and the byte where the next read starts."""
    size = metrics_size(output)
    if size <= start:
        return [], start
    whole, end, _ = output.read_range(METRICS_FILE, start, size - start).rpartition(b"\n")
    return [StepReport.from_json(line) for line in whole.splitlines()], start + len(whole) + len(end)


def recent_reports(output: Folder) -> list[StepReport]:
    """The reports in the last 64 KiB of the file: what the steps cost of late."""
    size = metrics_size(output)
    start = max(size - _END_BYTES, 0)
    lines = output.read_range(METRICS_FILE, start, size - start).split(b"\n") if size else []
    return [StepReport.from_json(line) for line in lines[1 if start else 0 : -1]]


def last_reports(output: Folder, wanted: Callable[[StepReport], bool]) -> list[StepReport]:
    """The reports at the end of the file that are `wanted`, as many as stand there without another one
    between them."""
    size, length = metrics_size(output), _END_BYTES
    while True:
        start = max(size - length, 0)
        lines = output.read_range(METRICS_FILE, start, size - start).split(b"\n") if size else []
        # The last is empty or half a line; the first is a whole one only where the file begins.
        reports = [StepReport.from_json(line) for line in lines[1 if start else 0 : -1]]
        if not start or (reports and not wanted(reports[0])):
            break
        length *= 4
    return list(takewhile(wanted, reversed(reports)))[::-1]


def metrics_size(output: Folder) -> int:
    """Bytes of the file; 0 where there is none."""
    return output.size(METRICS_FILE) if output.exists(METRICS_FILE) else 0


class JsonLines:
    """`metrics.jsonl`: one flushed line a step.

    An object store cannot append: there the file is put whole at each `flush` (a checkpoint), at the end, and
    in between once a minute, so that a killed attempt loses the reports of a minute. Where putting takes long
    it is done less often, at most a twentieth of the time. Lines that another attempt has put meanwhile stay,
    before ours."""

    def __init__(self, output: Folder) -> None:
        self._output = output
        self._etag: str | None = None
        self._num_put = 0
        if output.is_remote:
            self._spool = tempfile.TemporaryDirectory(prefix="sluice-metrics-")
            self._path = Path(self._spool.name) / METRICS_FILE
            self._take(objects.get(output.at(METRICS_FILE)))
            self._put_again_at = time.monotonic() + _PUT_EVERY_SECONDS
        else:
            self._path = Path(output.at(METRICS_FILE))
            make_folder(str(self._path.parent), output.url)
            _end_last_line(self._path)
            entry_changed(
                str(self._path), output.url
            )  # the next file that is published brings its name to the disk
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, report: StepReport) -> None:
        with naming_path(str(self._path)):
            self._file.write(report.as_json() + "\n")
            self._file.flush()
        if self._output.is_remote and time.monotonic() >= self._put_again_at:
            try:
                self._put()
            except (
                OSError
            ) as error:  # no reason to end a training: the next checkpoint puts them, or does not stand
                _log.warning("metrics were not put into the store, which is tried again: %s", error)
                self._put_again_at = time.monotonic() + _PUT_EVERY_SECONDS

    def flush(self) -> None:
        with naming_path(str(self._path)):
            os.fsync(self._file.fileno())
        if self._output.is_remote:
            self._put()

    def close(self) -> None:
        self.flush()
        with naming_path(str(self._path)):
            self._file.close()
        if self._output.is_remote:
            self._spool.cleanup()

    def _put(self) -> None:
        """Put the lines so far, behind whatever the object holds by now."""
        began = time.monotonic()
        url = self._output.at(METRICS_FILE)
        while (whole := self._path.read_bytes()) and len(whole) > self._num_put:
            etag = objects.put_over(url, whole, self._etag) if self._etag else objects.put_new(url, whole)
            if etag is not None:
                self._etag, self._num_put = etag, len(whole)
            else:
                stored = objects.get(url)
                self._file.close()
                self._take(stored, whole[self._num_put :])
                self._file = self._path.open("a", encoding="utf-8")
        now = time.monotonic()
        self._put_again_at = now + max(_PUT_EVERY_SECONDS, _TIMES_OF_A_PUT * (now - began))

    def _take(self, stored: objects.StoredObject | None, more: bytes = b"") -> None:
        """Make the local file that of the store, and `more` lines that the store lacks."""
        data = stored.data if stored else b""
        self._path.write_bytes(data + more)
        self._etag, self._num_put = stored.etag if stored else None, len(data)


def _end_last_line(path: Path) -> None:
    """An attempt that was killed while writing left half a line: drop it, so that every line is JSON."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read()
        if whole and not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)
