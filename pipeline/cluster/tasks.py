"""Units of work as Ray tasks: one task a unit, few in flight, a unit whose worker died tried again.

A unit is tens of seconds of work that writes its own files and returns counts, so plain tasks carry it (a task
costs about a millisecond, a Ray Data block sixteen); Ray Data serves where rows must meet by key:
`pipeline.dedup.exchange`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lineage.storage.folder import object_store_settings
from pipeline.cluster.capacity import Wanted
from pipeline.cluster.session import check_cluster
from pipeline.recipe import RayStageTable, RayTable

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")

_CUSTOM_RESOURCE_SHARE: Final = 0.001
"""Of a custom resource that only says where a unit may run: a node that has one of it holds a thousand units."""


class WorkerDiedError(RuntimeError):
    """A unit's worker process died on every try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResources:
    """How a unit is scheduled: from the recipe's [ray]."""

    cpus: float = 1.0
    memory: int = 0
    resource: str = ""
    retries: int = 2
    max_in_flight: int = 0
    grows: bool = False

    @classmethod
    def of(cls, table: RayTable, stage: str = "") -> TaskResources:
        """For the units of a stage (RAY_STAGES), or of no stage in particular."""
        own = table.stages.get(stage, RayStageTable())
        return cls(
            cpus=table.unit_cpus if own.cpus is None else own.cpus,
            memory=table.unit_memory if own.memory is None else own.memory,
            resource=table.unit_resource if own.resource is None else own.resource,
            retries=table.retries,
            max_in_flight=table.max_in_flight if own.max_in_flight is None else own.max_in_flight,
            grows=table.grows,
        )

    @property
    def reserved(self) -> dict[str, float]:
        """What a unit takes of its node, by Ray's names; memory in bytes."""
        wanted = {"CPU": self.cpus, "memory": float(self.memory)} | (
            {self.resource: _CUSTOM_RESOURCE_SHARE} if self.resource else {}
        )
        return {name: amount for name, amount in wanted.items() if amount}


def num_cpus() -> int:
    """Processors that the connected cluster has."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def check_resources(work: TaskResources) -> None:
    """Raise ResourceError at once where no node can run a unit, instead of waiting for ever: unless the cluster grows,
    since Ray does not say which nodes its autoscaler may add."""
    keys = "ray.unit_cpus, ray.unit_memory or ray.unit_resource (or the stage's own in [ray.stages])"
    if not work.grows:
        check_cluster(Wanted(what="unit", keys=keys, each=work.reserved))


def run_units(
    function: Callable[[Job, Item], Result],
    job: Job,
    items: Iterable[Item],
    work: TaskResources,
    *,
    retried: Callable[[], None] = lambda: None,
    isolate: Callable[[Job], Job] | None = None,
) -> Iterator[tuple[Item, Result]]:
    """`function(job, item)` for every item, as Ray tasks; results as they come, in any order.

    `job` is shipped once. A task whose worker died (out of memory, a crash in native code, a lost node) is tried
    again, with `isolate(job)` where that is given, and `retried` is called, at most `work.retries` times:
    WorkerDiedError after that. An exception of the function itself is raised here at once. Leaving the iterator early
    cancels what is under way."""
    import ray

    check_resources(work)
    start = _starter(function, job, work)
    retry = start if isolate is None else None  # the isolated job is shipped when it is first needed
    limit = work.max_in_flight or 2 * num_cpus()
    pending: dict[Any, tuple[Item, int]] = {}
    waiting = iter(items)
    try:
        while True:
            for item in itertools.islice(waiting, limit - len(pending)):
                pending[start(item)] = (item, 0)
            if not pending:
                return
            ray.wait(list(pending), num_returns=1)
            # All that are ready at once: asking for one at a time would be slow where tens of thousands are pending.
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
            for reference in ready:
                item, tries = pending.pop(reference)
                try:
                    result = _result(reference)
                except _LostWorkerError as error:
                    if tries >= work.retries:
                        raise WorkerDiedError(f"{item}: its worker died {tries + 1} times; last: {error}") from error
                    if retry is None:
                        assert isolate is not None
                        retry = _starter(function, isolate(job), work)
                    pending[retry(item)] = (item, tries + 1)
                    retried()
                    continue
                yield item, result
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


class _LostWorkerError(Exception):
    """A task's worker died; the message says how."""


def task_options(work: TaskResources) -> dict[str, Any]:
    """What a task of this work reserves, as Ray's options."""
    options: dict[str, Any] = {"num_cpus": work.cpus, "memory": work.memory or None}
    return options | ({"resources": {work.resource: _CUSTOM_RESOURCE_SHARE}} if work.resource else {})


def _starter(function: Callable[[Any, Any], Any], job: Any, work: TaskResources) -> Callable[[Any], Any]:
    """What starts a task for an item and returns its reference."""
    import ray

    remote = ray.remote(max_retries=0, **task_options(work))(_call)
    # How the tasks reach the object store on nodes that were started without these variables. They travel in Ray's
    # object store and not in a runtime environment, which dashboards and logs show.
    shared = ray.put((function, job, object_store_settings()))
    return lambda item: remote.remote(shared, item)


def _result(reference: Any) -> Any:
    """A task's result; _LostWorkerError if its worker died, the function's own exception if it raised one."""
    import ray

    try:
        return ray.get(reference)
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.LocalRayletDiedError,
    ) as error:
        raise _LostWorkerError(str(error)) from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


def _call(shared: tuple[Callable[[Any, Any], Any], Any, dict[str, str]], item: Any) -> Any:
    function, job, settings = shared
    os.environ.update(settings)
    return function(job, item)
