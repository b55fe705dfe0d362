"""Metrics of a run for Prometheus, exported by Ray: counters of work done, named ray_sluice_data_*, with few
labels.

Ray exports them on every node's metrics port; deploy/grafana/data.json shows them. They count what this call
did (a continued run begins at 0 again) and shape no result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ray.util.metrics import Counter, Gauge

COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sluice_data_units": ("units of work done", ("run", "phase")),
    "sluice_data_documents": ("documents read", ("run",)),
    "sluice_data_bytes": ("bytes of the input files read", ("run",)),
    "sluice_data_page_bytes": ("bytes of the documents read, unpacked and before parsing", ("run",)),
    "sluice_data_stage_documents": ("documents that came into a stage", ("run", "stage")),
    "sluice_data_stage_seconds": ("processor seconds spent in a stage", ("run", "stage")),
    "sluice_data_rejections": ("documents that a stage rejected", ("run", "stage", "rule")),
}
"""Counter = what it counts and its labels. Prometheus sees `ray_<name>_total`."""
GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sluice_data_units_open": ("units of work that the phase has yet to do", ("run", "phase")),
    "sluice_data_units_retried": (
        "units of the phase tried again because their worker died",
        ("run", "phase"),
    ),
    "sluice_data_phase_seconds": (
        "seconds from the phase's begin to the last unit that it did",
        ("run", "phase"),
    ),
}
"""Prometheus sees `ray_<name>`."""


class StageFlow(NamedTuple):
    """The documents that came into a stage, and the processor seconds spent on them."""

    stage: str
    num_documents: int
    seconds: float


class Rejections(NamedTuple):
    """The documents that a rule of a stage rejected."""

    stage: str
    rule: str
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """What a unit of work counted: input read (files, and payloads unpacked), the flow through its stages,
    rejections. A unit of a phase that reads no input counts none."""

    num_documents: int = 0
    num_bytes: int = 0
    page_bytes: int = 0
    stages: tuple[StageFlow, ...] = ()
    rejections: tuple[Rejections, ...] = ()


class PhaseMetrics:
    """The metrics of one phase of a run; without Ray, which exports them, nothing is counted."""

    def __init__(self, run: str, phase: str, num_open: int, *, on_ray: bool = True) -> None:
        self._run = {"run": run}
        self._phase = {**self._run, "phase": phase}
        self._counters, self._gauges = _made() if on_ray else ({}, {})
        self._num_open, self._num_retried, self._began = num_open, 0, time.monotonic()
        self._set_gauges()

    def done(self, counts: WorkCounts) -> None:
        """A unit is done, and counted this."""
        self._num_open -= 1
        self._set_gauges()
        self._add("sluice_data_units", 1, self._phase)
        self._add("sluice_data_documents", counts.num_documents, self._run)
        self._add("sluice_data_bytes", counts.num_bytes, self._run)
        self._add("sluice_data_page_bytes", counts.page_bytes, self._run)
        for flow in counts.stages:
            self._add("sluice_data_stage_documents", flow.num_documents, {**self._run, "stage": flow.stage})
            self._add("sluice_data_stage_seconds", flow.seconds, {**self._run, "stage": flow.stage})
        for stage, rule, num in counts.rejections:
            self._add("sluice_data_rejections", num, {**self._run, "stage": stage, "rule": rule})

    def retried(self) -> None:
        """A unit is tried again."""
        self._num_retried += 1
        self._set_gauges()

    def _set_gauges(self) -> None:
        values = {
            "sluice_data_units_open": self._num_open,
            "sluice_data_units_retried": self._num_retried,
            "sluice_data_phase_seconds": time.monotonic() - self._began,
        }
        for name, gauge in self._gauges.items():
            gauge.set(values[name], tags=self._phase)

    def _add(self, name: str, amount: float, tags: dict[str, str]) -> None:
        if amount > 0 and self._counters:  # a Counter refuses 0
            self._counters[name].inc(amount, tags=tags)


def _made() -> tuple[dict[str, Counter], dict[str, Gauge]]:
    """Ray's counters and gauges, by name."""
    from ray.util.metrics import Counter, Gauge

    counters = {
        name: Counter(name, description=what, tag_keys=labels) for name, (what, labels) in COUNTERS.items()
    }
    return counters, {
        name: Gauge(name, description=what, tag_keys=labels) for name, (what, labels) in GAUGES.items()
    }
