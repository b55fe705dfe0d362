"""A phase: many units of one kind, each with a marker file that says that it is done, and what it came to."""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from lineage.allocator import give_back_freed_memory
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from lineage.storage.lock import Hold
from pipeline.cluster.dataset import DatasetStats, run_units
from pipeline.cluster.metrics import PhaseMetrics, WorkCounts
from pipeline.cluster.tasks import TaskResources
from pipeline.cluster.underway import reported_shares
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.estimates import Prediction
from pipeline.results.run_summary import PhaseTime


class UnitOfWork(Protocol):
    """What one task carries out; `marker` names the file, relative to OUT, that it publishes last."""

    @property
    def marker(self) -> str: ...


BEGUN: Final = "work/begun"
"""The marker of the unit under way, where units are carried out in the process of the run."""

Job = TypeVar("Job")
AnyUnit = TypeVar("AnyUnit", bound=UnitOfWork)
Result = TypeVar("Result", bound=JsonRecord)


@dataclass(slots=True)
class RunState:
    """A run under way: its plan, the right to write its output, the time that its phases took, what Ray Data
    counted of each Dataset that ended, the kind of device of each model, what was predicted of it."""

    plan: RunPlan
    reporter: ProgressReporter
    held: Hold = field(default_factory=Hold)
    phases: list[PhaseTime] = field(default_factory=list)
    datasets: list[DatasetStats] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    prediction: Prediction | None = None
    _processor: float = field(default_factory=time.process_time)

    @property
    def out(self) -> Folder:
        return self.plan.out

    @property
    def recipe(self) -> PipelineRecipe:
        return self.plan.recipe

    def took(self, name: str, started: float, note: str, on_workers: float = 0.0) -> None:
        """Record a phase that began at `started` (time.perf_counter) and took so many processor seconds in other
        processes."""
        before, self._processor = self._processor, time.process_time()
        self.phases.append(
            PhaseTime(
                name=name,
                seconds=round(time.perf_counter() - started, 3),
                note=note,
                processor_seconds=round(on_workers + self._processor - before, 3),
            )
        )
        give_back_freed_memory()  # the next phase asks for pieces of other sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Generic[Job, AnyUnit, Result]):
    """`task(job, unit)` publishes the unit's files, then its marker, and returns its result, whose type is
    `result`.

    `kind` is one of UNIT_KINDS: what its units reserve. `size` weighs a unit, for the order and the progress
    bar; `note` turns the results so far and the seconds into a line; `counts` is what the metrics count of a
    result. `watch` sees each result, one of an earlier call too, and may end the phase by an exception.
    `isolate` gives the job for a unit whose worker died, where it is another one. `operator` is what its
    Datasets' operator is called: by the stages in it. Markers lie in `out`, the run's OUT unless it is
    given."""

    name: str
    operator: str
    kind: str
    task: Callable[[Job, AnyUnit], Result]
    result: type[Result]
    job: Job
    units: Sequence[AnyUnit]
    size: Callable[[AnyUnit], float] = field(default=lambda unit: 1.0)
    note: Callable[[Sequence[Result], float], str] = field(default=lambda results, seconds: "")
    counts: Callable[[Result], WorkCounts] = field(default=lambda result: WorkCounts())
    watch: Callable[[Result], None] = field(default=lambda result: None)
    isolate: Callable[[Job], Job] | None = None
    out: Folder | None = None


def run_phase(run: RunState, phase: Phase[Job, AnyUnit, Result]) -> list[Result]:
    """Do what is left of a phase, large units first; the results in the order of the units.

    What is begun last is then small, and few workers wait for it at the end (Graham 1969, "Bounds on
    multiprocessing timing anomalies")."""
    started = time.perf_counter()
    results = published_results(phase.out or run.out, phase.units, phase.result)
    # Results of an earlier call count too: a limit on bad records holds for the whole run, not for one call.
    for result in results.values():
        phase.watch(result)
    fresh: list[Result] = []
    note, on_workers = "", 0.0
    with run.reporter.phase(phase.name, sum(map(phase.size, phase.units))) as progress:
        left = sorted(
            (unit for unit in phase.units if unit.marker not in results), key=phase.size, reverse=True
        )
        progress.step(sum(phase.size(unit) for unit in phase.units if unit.marker in results))
        work = TaskResources.of(run.recipe.ray, phase.kind)
        progress.under_way = partial(size_under_way, left, phase.size, results, on_ray=not work.in_process)
        metrics = PhaseMetrics(run.recipe.run.name, phase.name, len(left), on_ray=not work.in_process)
        task = _noted(run, phase) if work.in_process and phase.isolate is not None else phase.task
        for unit, (result, seconds) in run_units(
            partial(_timed, task),
            phase.job,
            left,
            work,
            operator=phase.operator,
            retried=metrics.retried,
            isolate=phase.isolate,
            ended=run.datasets.append,
        ):
            phase.watch(result)
            results[unit.marker] = result
            on_workers += 0.0 if work.in_process else seconds
            fresh.append(result)
            metrics.done(phase.counts(result))
            note = phase.note(fresh, time.perf_counter() - started)
            progress.step(phase.size(unit), note)
    run.took(phase.name, started, note, on_workers)
    # Workers finish in any order; what follows must not depend on it.
    return [results[unit.marker] for unit in phase.units]


def _timed(task: Callable[[Job, AnyUnit], Result], job: Job, unit: AnyUnit) -> tuple[Result, float]:
    """A unit's result, and the processor seconds that it took."""
    begun = time.process_time()
    return task(job, unit), time.process_time() - begun


def size_under_way(
    units: Sequence[AnyUnit], size: Callable[[AnyUnit], float], ended: Container[str], *, on_ray: bool
) -> float:
    """What is done of the units whose marker is not in `ended`, in the measure of `size`."""
    shares = reported_shares(on_ray=on_ray)
    return sum(shares.get(unit.marker, 0.0) * size(unit) for unit in units if unit.marker not in ended)


def _noted(run: RunState, phase: Phase[Job, AnyUnit, Result]) -> Callable[[Job, AnyUnit], Result]:
    """The phase's task, which notes the unit that it begins; the one that an earlier call had begun and did
    not finish gets the job for units whose worker died. For this process, which dies with its unit: the call
    after that is the second try, and the page that took it down would take down every call."""
    out = run.out
    fatal = out.read(BEGUN).decode() if out.exists(BEGUN) else ""
    if any(unit.marker == fatal for unit in phase.units) and not out.exists(fatal):
        run.reporter.say(
            f"{phase.name}: an earlier call ended in the midst of a unit, killed or taken down by a page;"
            " that unit's pages are parsed in a child process now"
        )

    def task(job: Job, unit: AnyUnit) -> Result:
        # Published before the unit begins: a page that kills this process leaves no other trace of itself.
        out.publish(BEGUN, unit.marker.encode())
        isolated = phase.isolate is not None and unit.marker == fatal
        result = phase.task(phase.isolate(job) if isolated and phase.isolate else job, unit)
        out.remove(BEGUN)
        return result

    return task


def publish_result(out: Folder, marker: str, result: Result) -> Result:
    """Publish a unit's marker, when all its files are on the disk; the result itself."""
    out.mark(marker, json.dumps(result.to_json(), indent=1).encode())
    return result


def published_results(out: Folder, units: Sequence[AnyUnit], shape: type[Result]) -> dict[str, Result]:
    """The results of finished units, by marker."""
    if not units:
        return {}
    # One listing, since each name asked of an object store on its own would be a request.
    names = set(out.names(posixpath.commonpath([posixpath.dirname(unit.marker) for unit in units])))
    return {
        unit.marker: shape.from_json(json.loads(out.read(unit.marker)))
        for unit in units
        if unit.marker in names
    }
