"""Ray: starting it quietly, and running one task for each unit of work with few in flight.

A unit is tens of seconds of work that writes its own files and returns counts, so plain tasks carry it (a task
costs about a millisecond, a Ray Data block sixteen); Ray Data serves where rows must meet by key:
`pipeline.dedup.exchange`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar, cast

from lineage.recipe import RecipeError
from lineage.storage.folder import object_store_settings
from pipeline.cluster.capacity import Nodes, ResourceError, Wanted, check_capacity
from pipeline.recipe import RayStageTable, RayTable
from trainer.processes.address import start_or_join
from trainer.processes.placement import CUSTOM_RESOURCE_SHARE, Workers

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
            {self.resource: CUSTOM_RESOURCE_SHARE} if self.resource else {}
        )
        return {name: amount for name, amount in wanted.items() if amount}


@contextlib.contextmanager
def cluster(table: RayTable) -> Iterator[None]:
    """A Ray cluster for the time of the block: a local one of our own, or the one at `address`. One that this process
    is connected to already is used as it is and left running."""
    # Set before the import: Ray reads them then. Its notices belong in its log folder, not in a user's terminal; its
    # workers, which it would start at niceness 15, are what the user waits for; and with the jemalloc that it brings
    # for its servers, they spend a sixth less on parsing, whose trees are thousands of small pieces.
    for name, value in (("RAY_DEDUP_LOGS", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
                        ("RAY_DISABLE_IMPORT_WARNING", "1"), ("RAY_USAGE_STATS_ENABLED", "0"),
                        ("RAY_worker_niceness", "0"), ("RAY_LD_PRELOAD_ON_WORKERS", "1")):  # fmt: skip
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        with _without_rays_prints():
            yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if table.address == "local":
        options |= {"num_cpus": table.num_cpus, "include_dashboard": False, "object_store_memory": _store_bytes()}
    try:
        start_or_join(table.address, **options)
    except ConnectionError as error:
        raise ResourceError(f"ray.address = {table.address!r}: no Ray cluster answers there ({error})") from error
    except ValueError as error:
        raise RecipeError(
            f'ray.address = {table.address!r}: expected "local", "auto" or "host:port" ({error})'
        ) from error
    with _without_rays_prints():
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _without_rays_prints() -> Iterator[None]:
    """Keep what Ray's listener for errors prints off stdout, which belongs to our answers: it goes to the log. (What is
    wrong reaches the user as an exception of ours.)"""
    with contextlib.redirect_stdout(cast(TextIO, _WithoutListener(sys.stdout))):
        yield


class _WithoutListener:
    """A stream that logs what one thread of Ray's writes and passes on everything else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if threading.current_thread().name == "ray_listen_error_messages":
            logging.getLogger(__name__).debug("ray: %s", text)
            return len(text)
        return self._stream.write(text)


def _store_bytes() -> int:
    """Bytes for the object store of a local cluster: units return counts only, so a small one is enough."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(200_000_000, min(2_000_000_000, total // 10))


def num_cpus() -> int:
    """Processors that the connected cluster has."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def check_resources(work: TaskResources) -> None:
    """Raise ResourceError at once where no node can run a unit, instead of waiting for ever: unless the cluster grows,
    since Ray does not tell what nodes its autoscaler may add."""
    keys = "ray.unit_cpus, ray.unit_memory or ray.unit_resource (or the stage's own in [ray.stages])"
    if not work.grows:
        check_capacity(Wanted(what="unit", keys=keys, each=work.reserved), _nodes())


def check_workers(workers: Workers) -> None:
    """Raise ResourceError at once where the nodes that are there can never hold the workers of a training run."""
    wanted = Wanted(
        what="training worker", keys="train.workers or [train.resources]", each=workers.each, num=workers.num,
        together=workers.together, per_node=workers.per_node,
    )  # fmt: skip
    check_capacity(wanted, _nodes())


def _nodes() -> list[Nodes]:
    import ray

    return [Nodes(resources=node["Resources"]) for node in ray.nodes() if node["Alive"]]


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
    return options | ({"resources": {work.resource: CUSTOM_RESOURCE_SHARE}} if work.resource else {})


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
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError,
            ray.exceptions.ObjectLostError, ray.exceptions.LocalRayletDiedError) as error:  # fmt: skip
        raise _LostWorkerError(str(error)) from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


def _call(shared: tuple[Callable[[Any, Any], Any], Any, dict[str, str]], item: Any) -> Any:
    function, job, settings = shared
    os.environ.update(settings)
    return function(job, item)
