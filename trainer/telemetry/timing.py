"""Measuring a step without stopping the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from trainer.telemetry.phases import PHASES, Phase


class StepTiming:
    """The phase times of one step, to be read when the device has got there."""

    def __init__(
        self,
        marks: list[tuple[Phase, Any]],
        data_arrived: Any,
        end: Any,
        passes: Sequence[tuple[Any, Any]] = (),
        waits: Sequence[tuple[Phase, Any, Any]] = (),
    ) -> None:
        self._marks = marks
        self._data_arrived = data_arrived
        self._end = end
        self._passes = passes
        self._waits = waits
        self._evaluation: tuple[Any, Any] | None = None
        self.ended_at = time.time()
        """When the processor came to the step's end, seconds since the epoch."""

    def evaluated(self, begin: Any, end: Any) -> None:
        """The step was followed by an evaluation between these marks of the clock."""
        self._evaluation = (begin, end)

    def evaluation_seconds(self) -> float:
        """Seconds of the evaluation after the step; 0 without one. On a GPU this waits for its end."""
        if self._evaluation is None:
            return 0.0
        if isinstance(self._evaluation[1], torch.cuda.Event):
            self._evaluation[1].synchronize()
        return _between(*self._evaluation)

    def seconds(self) -> dict[Phase, float]:
        """Seconds of each phase. On a GPU this waits for the step's last event."""
        self._wait()
        totals: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        ends = [mark for _, mark in self._marks[1:]] + [self._end]
        for (phase, begin), end in zip(self._marks, ends, strict=True):
            totals[phase] += _between(begin, end)
        return totals

    def waiting_seconds(self) -> dict[Phase, float]:
        """Of each phase what this rank spent in collectives and messages, from asking for one until it was
        done: the wait for slower ranks, and the exchange itself. The rest of the phase is its own work. On a
        GPU: how long the stream that computes stood still for them."""
        self._wait()
        totals: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        for phase, begin, end in self._waits:
            totals[phase] += _between(begin, end)
        return totals

    def data_wait_seconds(self) -> float:
        """From the step's begin until its batch was there; on a GPU, what the device waited for it."""
        self._wait()
        return _between(self._marks[0][1], self._data_arrived)

    def pipeline_idle_share(self) -> float | None:
        """From the begin of this rank's first pass through a stage to the end of its last: the share in which
        none ran. None without a pipeline. Rank 0 begins first and ends last, so its share is that of the
        bubble, and of what its messages and slower stages make it wait besides."""
        if not self._passes:
            return None
        self._wait()
        span = _between(self._passes[0][0], self._passes[-1][1])
        return 1 - sum(_between(begin, end) for begin, end in self._passes) / span if span else 0.0

    def _wait(self) -> None:
        if isinstance(self._end, torch.cuda.Event):
            self._end.synchronize()


def _event(*, timed: bool, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
    event = cast(Any, torch.cuda.Event)(enable_timing=timed)
    event.record(stream)
    return cast(torch.cuda.Event, event)


def _between(begin: Any, end: Any) -> float:
    return float(begin.elapsed_time(end) / 1e3 if isinstance(begin, torch.cuda.Event) else end - begin)


class PhaseClock:
    """Notes when each phase begins: by events in the device's stream on a GPU (so a phase is what the device
    spent, waiting included), by the processor's clock elsewhere."""

    def __init__(self, device: torch.device, watcher: Callable[[str], None] | None = None) -> None:
        self._device, self.on_gpu = device, device.type == "cuda"
        self.now: Callable[[], Any] = self._now_on_gpu if self.on_gpu else time.perf_counter
        """A mark of this instant: an event in the stream that computes on a GPU, else the processor's
        clock."""
        self.phase: Phase | None = None
        self.has_data = False
        self._computing = torch.cuda.current_stream(device) if self.on_gpu else None
        self._watcher = watcher
        self._marks: list[tuple[Phase, Any]] = []
        self._data_arrived: Any = None
        self._passes: list[tuple[Any, Any]] = []
        self._waits: list[tuple[Phase, Any, Any]] = []

    def enter(self, phase: Phase) -> None:
        """The phase that runs from now until the next `enter` or `end_step`."""
        if self._watcher is not None:
            self._watcher(phase)
        if self.phase is None:
            self._waits = []  # those of an evaluation, which is no step's
            self.has_data = False
        self.phase = phase
        self._marks.append((phase, self.now()))

    def data_arrived(self) -> None:
        """The step's batch is there: what is left of its first phase is the ranks' waiting for each other."""
        self.has_data = True
        self._data_arrived = self.now()

    def end_wait(self, begin: Any) -> None:
        """The step goes on, which began to wait for other ranks at the mark `begin`."""
        self.add_wait(begin, self.now())

    def add_wait(self, begin: Any, end: Any) -> None:
        """The step waited for other ranks between these marks."""
        if self.phase is not None:
            self._waits.append((self.phase, begin, end))

    def computes_on(self, stream: torch.cuda.Stream | None = None) -> bool:
        """Whether this stream of a GPU, or the one that this thread works on, is the one that computes: what
        waits on another, as fully_shard's own, keeps no step from going on."""
        return (stream or torch.cuda.current_stream(self._device)) == self._computing

    @contextmanager
    def stage_pass(self) -> Iterator[None]:
        """A pipeline stage of this rank computes: forward, backward, or the gradients of its weights."""
        begin = self.now()
        yield
        self._passes.append((begin, self.now()))

    def waiting(self, collective: str) -> None:
        """Name the collective that comes next, for the watchdog."""
        if self._watcher is not None:
            self._watcher(collective)

    def end_step(self) -> StepTiming:
        """End the step."""
        marks, self._marks = self._marks, []
        passes, self._passes = self._passes, []
        waits, self._waits = self._waits, []
        self.phase = None
        return StepTiming(marks, self._data_arrived, self.now(), passes, waits)

    def _now_on_gpu(self) -> Any:
        return _event(timed=True, stream=self._computing)


class Figures:
    """Numbers on their way from the device to the host; reading them waits only if they have not arrived."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = _event(timed=False)
        else:
            self._host = values.clone()

    def read(self) -> list[float]:
        """The values."""
        if self._event is not None:
            self._event.synchronize()
        return [float(value) for value in self._host.tolist()]
