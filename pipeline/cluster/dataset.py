"""Units of work as Ray Data Datasets: a row names a unit, the operator carries it out and publishes its
files.

    1. rows       (number, item pickled), one to a block, so that a unit is a task; never a document's text
    2. operator   named after the stages in it; runs the unit, catches what it raises, counts its worker's deaths
    3. outcomes   (number, attempt, result pickled), as they come

A unit publishes its files whole under names of its own, so it may run twice without harm; what is published
the caller leaves out of `items`. A long plan goes as several Datasets one after another, since Ray Data sets
up every row before it begins."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from lineage.storage.folder import object_store_settings
from pipeline.cluster.tasks import TaskResources, check_resources, num_cpus

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")

_FEWEST_ROWS: Final = 500
_ROWS_PER_CPU: Final = 20
"""How many units a Dataset takes: setting a row up costs the driver about a millisecond, and the end of each
Dataset leaves workers idle for about half a unit of twenty."""

OUTCOMES: Final = pa.schema([("number", pa.int64()), ("attempt", pa.int64()), ("outcome", pa.binary())])


class WorkerDiedError(RuntimeError):
    """A unit's worker process died on every try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """What Ray Data counted of one Dataset that ended: its operator, its units, its own report by lines."""

    operator: str
    num_units: int
    lines: tuple[str, ...]


def died_too_often(item: object, outcome: WorkerDeath) -> WorkerDiedError:
    """The error that ends a run."""
    return WorkerDiedError(
        f"{item}: its worker died {outcome.num} times; out of memory, a crash in native code or lost"
        " nodes: Ray's logs on the nodes say which"
    )


class Succeeded(NamedTuple):
    """What a unit's function gave."""

    result: Any


class RaisedError(NamedTuple):
    """What it raised."""

    error: Exception


class WorkerDeath(NamedTuple):
    """That its worker died so often, and that it is given up."""

    num: int


def run_units(
    function: Callable[[Job, Item], Result],
    job: Job,
    items: Iterable[Item],
    work: TaskResources,
    *,
    operator: str,
    retried: Callable[[], None] = lambda: None,
    isolate: Callable[[Job], Job] | None = None,
    ended: Callable[[DatasetStats], None] = lambda stats: None,
) -> Iterator[tuple[Item, Result]]:
    """`function(job, item)` for every item, in Datasets whose operator is called `operator`; results as they
    come, in any order. `ended` gets what Ray Data counted of each Dataset.

    `job` is shipped once. A unit whose worker died (out of memory, a crash in native code, a lost node) is
    tried again, with `isolate(job)` where that is given, at most `work.retries` times: WorkerDiedError after
    that. `retried` is called for each such try, when the unit is done. An exception of the function itself is
    raised here at once. Leaving the iterator early cancels what is under way. With `work.in_process` one unit
    after the other runs here, in order, without Ray, and one that dies takes this process with it."""
    left = list(items)
    if work.in_process:
        for item in left:
            with contextlib.redirect_stdout(
                sys.stderr
            ):  # stdout belongs to our answers, and a step may print
                result = function(job, item)
            yield item, result
        return
    import ray

    check_resources(work)
    if not left:
        return
    # How the workers reach the object store on nodes that were started without these variables. They travel
    # in Ray's object store and not in a runtime environment, which dashboards and logs show.
    shared = ray.put((function, job, isolate, object_store_settings()))
    carry_out = _operator(operator, shared, work.retries)
    while left:
        now, left = left[: most_rows()], left[most_rows() :]
        with contextlib.closing(_outcomes(carry_out, now, work, operator, ended)) as rows:
            # In the order in which units end. Errors and deaths come as values too: an exception that
            # left the operator would end all units under way.
            for number, attempt, outcome in rows:
                item = now[number]
                if isinstance(outcome, RaisedError):
                    raise outcome.error from None
                if isinstance(outcome, WorkerDeath):
                    raise died_too_often(item, outcome)
                for _ in range(attempt):
                    retried()
                yield item, outcome.result


def most_rows() -> int:
    """Units that one Dataset takes."""
    return max(_FEWEST_ROWS, _ROWS_PER_CPU * num_cpus())


def _outcomes(
    carry_out: Callable[[pa.Table], pa.Table],
    items: list[Any],
    work: TaskResources,
    operator: str,
    ended: Callable[[DatasetStats], None],
) -> Generator[tuple[int, int, Succeeded | RaisedError | WorkerDeath], None, None]:
    """(index in `items`, attempt, outcome) of one Dataset's units, as they come."""
    import ray

    with our_context():
        rows = [{"number": number, "item": ray.cloudpickle.dumps(item)} for number, item in enumerate(items)]
        size = min(work.max_in_flight, len(items)) or None
        # batch_size=1 behind blocks of one row: more would bundle units into one task, and they would wait
        # for another.
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            carry_out,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.TaskPoolStrategy(size=size),
            **work.options,
        )
        batches = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    for batch in batches:
        for number, attempt, outcome in zip(
            *(batch[name].to_pylist() for name in OUTCOMES.names), strict=True
        ):
            yield number, attempt, pickle.loads(outcome)
    ended(DatasetStats(operator=operator, num_units=len(items), lines=tuple(dataset.stats().splitlines())))


def _operator(name: str, shared: Any, retries: int) -> Callable[[pa.Table], pa.Table]:
    """The operator's function: the outcome of the one unit of a batch. It runs in a worker.

    Ray Data retries a task whose worker died without end, and its own bound (`max_retries`) is deprecated and
    names no unit. So the attempt counts the deaths, those by the memory killer too, and the unit itself gives
    up, untouched."""

    def carry_out(batch: pa.Table) -> pa.Table:
        import ray

        (number,), (item,) = batch["number"].to_pylist(), batch["item"].to_pylist()
        attempt = attempt_number()
        if attempt > retries:
            return outcome_row(number, attempt, WorkerDeath(attempt))
        try:
            function, job, isolate, settings = ray.get(
                shared
            )  # raises what importing the function's module raises
            os.environ.update(settings)
            isolated = job if isolate is None or attempt == 0 else isolate(job)
            return outcome_row(number, attempt, Succeeded(function(isolated, pickle.loads(item))))
        except Exception as error:  # raised again by the driver; Ray Data would wrap it and log it
            if isinstance(error, ray.exceptions.RayError) and not isinstance(
                error, ray.exceptions.RaySystemError
            ):
                raise  # an object that went with its node: the try after this one may have it
            return outcome_row(number, attempt, RaisedError(picklable(error)))

    carry_out.__name__ = carry_out.__qualname__ = operator_name(name)
    return carry_out


def operator_name(name: str) -> str:
    """The name as Ray can carry it: it encodes those of its tasks as ASCII, and a step of the user's own may
    have another."""
    return name.encode("ascii", "backslashreplace").decode()


def picklable(error: Exception) -> Exception:
    """The exception itself, or its text where it cannot be carried to another process."""
    import ray

    try:
        pickle.loads(ray.cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception's own code decides what pickling it raises
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def outcome_row(number: int, attempt: int, outcome: Any) -> pa.Table:
    """The one row of OUTCOMES that an operator gives."""
    import ray

    columns = {"number": [number], "attempt": [attempt], "outcome": [ray.cloudpickle.dumps(outcome)]}
    return pa.table(columns, schema=OUTCOMES)


def attempt_number() -> int:
    """How often Ray began the running task before: 0 at first. It has no public name in Ray 2.60."""
    from ray._private.worker import global_worker

    return int(global_worker.core_worker.get_current_task_attempt_number())


@contextlib.contextmanager
def our_context(**more: Any) -> Iterator[None]:
    """A Dataset that is made in the block shows nothing on the terminal, and no limit of Ray Data's own ends
    it: a unit may take hours. (Each Dataset keeps a copy of the context.) `more` are further settings of Ray
    Data's.

    Nor does Ray Data hold units back until their resources are free: it looks only ten times a second, so
    each unit would leave its processor idle for a tenth of a second. What a unit reserves is Ray's own to
    grant; units wait in Ray's queue, where an autoscaler sees them too. Their results are a few hundred
    bytes, so none need be held back."""
    import ray

    context = ray.data.DataContext.get_current()
    ours = {
        "enable_progress_bars": False,
        "execution_no_progress_timeout_s": -1,
        "op_resource_reservation_enabled": False,
        **more,
    }
    before = {name: getattr(context, name) for name in ours}
    # Its log file keeps all, the execution plans with the operators' names among it.
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            handler.setLevel(logging.CRITICAL + 1)
    try:
        for name, value in ours.items():
            setattr(context, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
