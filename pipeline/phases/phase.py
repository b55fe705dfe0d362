"""A phase: many units of work of one kind, each with a marker file that says that it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lineage.storage.folder import Folder
from pipeline.cluster.metrics import PhaseMetrics
from pipeline.cluster.tasks import TaskResources, run_units
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe import PipelineRecipe

Done = dict[str, Any]
"""The content of a unit's marker: what it counted."""


class Marked(Protocol):
    """A unit of work; `marker` names the file, relative to OUT, that its task publishes last."""

    @property
    def marker(self) -> str: ...


Item = TypeVar("Item", bound=Marked)


@dataclass(slots=True)
class Run:
    """A run under way: its plan, and the time that its phases took."""

    plan: RunPlan
    reporter: ProgressReporter
    phases: list[dict[str, Any]] = field(default_factory=list)

    @property
    def out(self) -> Folder:
        return self.plan.out

    @property
    def recipe(self) -> PipelineRecipe:
        return self.plan.recipe

    def took(self, name: str, started: float, note: str) -> None:
        """Record a phase that began at `started` (time.perf_counter)."""
        self.phases.append({"name": name, "seconds": round(time.perf_counter() - started, 3), "note": note})


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Generic[Item]):
    """`task(job, item, careful)` publishes the item's files, then its marker, and returns the marker's content.

    `stage` is one of RAY_STAGES: what its units reserve. `size` weighs an item, for the order and the progress bar;
    `note` turns what is done so far and the seconds into a line. `watch` sees what each item counted, one that was done
    by an earlier call too, and may end the phase by an exception."""

    name: str
    stage: str
    task: Callable[[Any, Item, bool], Done]
    job: Any
    items: Sequence[Item]
    size: Callable[[Item], float] = field(default=lambda item: 1.0)
    note: Callable[[Sequence[Done], float], str] = field(default=lambda done, seconds: "")
    watch: Callable[[Done], None] = field(default=lambda done: None)


def carry_out(run: Run, phase: Phase[Item]) -> list[Done]:
    """Do what is left of a phase, large items first; the markers' contents, in the order of the items.

    What is begun last is then small, and few workers wait for it at the end (Graham 1969, "Bounds on multiprocessing
    timing anomalies")."""
    started = time.perf_counter()
    standing = _standing(run.out, phase)
    for done in standing.values():
        phase.watch(done)
    fresh: list[Done] = []
    note = ""
    with run.reporter.phase(phase.name, sum(map(phase.size, phase.items))) as progress:
        left = sorted((item for item in phase.items if item.marker not in standing), key=phase.size, reverse=True)
        progress.step(sum(phase.size(item) for item in phase.items if item.marker in standing))
        metrics = PhaseMetrics(run.recipe, phase.name, len(left))
        work = TaskResources.of(run.recipe.ray, phase.stage)
        for item, done in run_units(phase.task, phase.job, left, work, metrics.retried):
            phase.watch(done)
            standing[item.marker] = done
            fresh.append(done)
            metrics.done(done)
            note = phase.note(fresh, time.perf_counter() - started)
            progress.step(phase.size(item), note)
    run.took(phase.name, started, note)
    return [standing[item.marker] for item in phase.items]


def _standing(out: Folder, phase: Phase[Item]) -> dict[str, Done]:
    folders = {item.marker.split("/", 2)[1] for item in phase.items}
    names = {name for folder in folders for name in out.names(f"work/{folder}")}
    return {item.marker: json.loads(out.read(item.marker)) for item in phase.items if item.marker in names}
