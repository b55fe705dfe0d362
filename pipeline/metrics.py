"""What a run tells Prometheus through Ray: counters of work done, named ray_sluice_data_*, with few labels.

Ray exports them on every node's metrics port; deploy/grafana/data.json shows them. They count what this call did (a
continued run begins at 0 again) and shape no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ray.util.metrics import Counter, Gauge

COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sluice_data_units": ("units of work done", ("run", "phase")),
    "sluice_data_documents": ("documents read", ("run",)),
    "sluice_data_bytes": ("bytes of the input files read", ("run",)),
    "sluice_data_rejections": ("documents that a filter rejected", ("run", "stage", "rule")),
}
"""Counter = what it counts and its labels. Prometheus sees `ray_<name>_total`."""
OPEN: Final = "sluice_data_units_open"
GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    OPEN: ("units of work that the phase has yet to do", ("run", "phase")),
}
"""Prometheus sees `ray_<name>`."""


class PhaseMetrics:
    """The metrics of one phase of a run."""

    def __init__(self, run: str, phase: str, num_open: int) -> None:
        self._run = {"run": run}
        self._phase = {"run": run, "phase": phase}
        self._counters = {
            name: Counter(name, description=what, tag_keys=labels) for name, (what, labels) in COUNTERS.items()
        }
        what, labels = GAUGES[OPEN]
        self._open = Gauge(OPEN, description=what, tag_keys=labels)
        self._num_open = num_open
        self._open.set(num_open, tags=self._phase)

    def done(self, told: Mapping[str, Any]) -> None:
        """A unit is done; `told` is its marker's content. A unit that read inputs tells documents and rejections."""
        self._num_open -= 1
        self._open.set(self._num_open, tags=self._phase)
        self._counters["sluice_data_units"].inc(tags=self._phase)
        if "num_documents" not in told or "bytes" not in told:
            return
        self._add("sluice_data_documents", told["num_documents"], self._run)
        self._add("sluice_data_bytes", told["bytes"], self._run)
        for stage, rule, num, _ in told["rejected"]:
            self._add("sluice_data_rejections", num, {**self._run, "stage": stage, "rule": rule})

    def _add(self, name: str, amount: float, tags: dict[str, str]) -> None:
        if amount > 0:  # a Counter refuses 0
            self._counters[name].inc(amount, tags=tags)
