"""Metrics of a run for Prometheus, exported by Ray: counters of work done, named ray_sluice_data_*, with few labels.

Ray exports them on every node's metrics port; deploy/grafana/data.json shows them. They count what this call did (a
continued run begins at 0 again) and shape no result.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ray.util.metrics import Counter, Gauge

from pipeline.recipe import PipelineRecipe

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
    "sluice_data_units_retried": ("units of the phase tried again because their worker died", ("run", "phase")),
    "sluice_data_phase_seconds": ("seconds from the phase's begin to the last unit that it did", ("run", "phase")),
}
"""Prometheus sees `ray_<name>`."""


class PhaseMetrics:
    """The metrics of one phase of a run."""

    def __init__(self, recipe: PipelineRecipe, phase: str, num_open: int) -> None:
        self._run = {"run": recipe.run.name}
        self._phase = {**self._run, "phase": phase}
        self._steps = {source.name: source.steps for source in recipe.source}
        self._counters = {
            name: Counter(name, description=what, tag_keys=labels) for name, (what, labels) in COUNTERS.items()
        }
        self._gauges = {name: Gauge(name, description=what, tag_keys=labels) for name, (what, labels) in GAUGES.items()}
        self._num_open, self._num_retried, self._began = num_open, 0, time.monotonic()
        self._tell()

    def done(self, told: Mapping[str, Any]) -> None:
        """A unit is done; `told` is its marker's content. A unit that read inputs tells documents and rejections, one
        that ends them what the comparison of documents dropped."""
        self._num_open -= 1
        self._tell()
        self._add("sluice_data_units", 1, self._phase)
        if "num_documents" in told and "rejected" in told:
            self._add("sluice_data_documents", told["num_documents"], self._run)
            self._add("sluice_data_bytes", told["bytes"], self._run)
            self._add("sluice_data_page_bytes", told["html_bytes"], self._run)
            for stage, num, seconds in _flow(self._steps[told["source"]], told):
                self._add("sluice_data_stage_documents", num, {**self._run, "stage": stage})
                self._add("sluice_data_stage_seconds", seconds, {**self._run, "stage": stage})
        for stage, rule, num, _ in (*told.get("rejected", ()), *told.get("dropped", ())):
            self._add("sluice_data_rejections", num, {**self._run, "stage": stage, "rule": rule})

    def retried(self) -> None:
        """A unit is tried again."""
        self._num_retried += 1
        self._tell()

    def _tell(self) -> None:
        self._gauges["sluice_data_units_open"].set(self._num_open, tags=self._phase)
        self._gauges["sluice_data_units_retried"].set(self._num_retried, tags=self._phase)
        self._gauges["sluice_data_phase_seconds"].set(time.monotonic() - self._began, tags=self._phase)

    def _add(self, name: str, amount: float, tags: dict[str, str]) -> None:
        if amount > 0:  # a Counter refuses 0
            self._counters[name].inc(amount, tags=tags)


def _flow(steps: Sequence[str], told: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    """(stage, documents that came in, its seconds) of each stage that a unit passed its documents through, in order."""
    rejected = Tally[str]()
    for stage, _, num, _ in told["rejected"]:
        rejected[stage] += num
    num_left = told["num_documents"]
    for stage in steps:
        if stage in told["seconds"]:
            yield stage, num_left, told["seconds"][stage]
            num_left -= rejected[stage]
