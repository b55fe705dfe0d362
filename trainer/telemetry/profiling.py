"""A torch profiler trace of the steps that `train.profile` names."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from lineage.storage.folder import Folder


class Profiler:
    """Records steps first to last and publishes a Chrome trace of each rank under `<output>/profile`."""

    def __init__(self, steps: tuple[int, int] | None, output: Folder, rank: int, attempt: int) -> None:
        self._steps = steps
        self._output = output
        self._name = f"profile/rank-{rank:05d}.attempt-{attempt}.json.gz"
        self._running: profile | None = None

    def before(self, step: int) -> None:
        """Begin to record where `step` is one of the steps."""
        if self._steps is None or self._running is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities, record_shapes=True)
        self._running.start()

    def after(self, step: int) -> None:
        """Publish the trace where `step` was the last of the steps."""
        if self._steps is not None and step >= self._steps[1]:
            self.close()

    def close(self) -> None:
        """Publish what has been recorded."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.stop()
        with tempfile.TemporaryDirectory(prefix="sluice-profile-") as folder:
            path = Path(folder) / "trace.json.gz"
            running.export_chrome_trace(str(path))
            self._output.publish(self._name, path.read_bytes())
