"""A torch profiler trace of the steps that `train.profile` names; `sluice train profile` reads them."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from lineage.storage.folder import Folder
from trainer.telemetry.phases import PHASES
from trainer.telemetry.trace_file import STEPS_KEY, trace_name


class Profiler:
    """Records steps first to last and publishes a Chrome trace of each rank under `<output>/profile`."""

    def __init__(self, steps: tuple[int, int] | None, output: Folder, rank: int, attempt: int) -> None:
        self._steps = steps
        self._output = output
        self._name = trace_name(rank, attempt)
        self._running: profile | None = None
        self._first = self._last = 0
        self._phase: ExitStack | None = None

    def before(self, step: int) -> None:
        """Begin to record where `step` is one of the steps."""
        if self._steps is None or self._running is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities, record_shapes=True)
        self._running.start()
        self._first = step

    def at(self, where: str) -> None:
        """The step has come to `where`: a phase is a stretch of the trace, until the next one begins."""
        if self._running is not None and where in PHASES:
            self._end_phase()
            self._phase = ExitStack()
            self._phase.enter_context(record_function(where))

    def after(self, step: int) -> None:
        """Publish the trace where `step` was the last of the steps."""
        self._end_phase()
        self._last = step
        if self._steps is not None and step >= self._steps[1]:
            self.close()

    def close(self) -> None:
        """Publish what has been recorded."""
        if self._running is None:
            return
        self._end_phase()
        running, self._running = self._running, None
        # It is written only to a trace that still runs.
        running.add_metadata_json(STEPS_KEY, json.dumps({"first_step": self._first, "last_step": self._last}))
        running.stop()
        with tempfile.TemporaryDirectory(prefix="sluice-profile-") as folder:
            path = Path(folder) / "trace.json.gz"
            running.export_chrome_trace(str(path))
            self._output.publish(self._name, path.read_bytes())

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._phase.close()
            self._phase = None
