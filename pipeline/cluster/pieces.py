"""Units that give pieces while they are worked on, and operators behind them that take each piece at once.

    1. rows       a unit each, as in `dataset.py`
    2. operator   names each piece of its unit as soon as the piece's file is published; last, the unit's result
    3. operators  each does its part of a piece and publishes that, on actors of a pool or as tasks
    4. outcomes   a row for each piece that all operators are done with, and one for each unit

A row holds the name of a piece and never its text, so the object store stays empty even where reading is
faster than what follows. All operators run at the same time."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from lineage.storage.folder import object_store_settings
from pipeline.cluster.dataset import (
    OUTCOMES,
    DatasetStats,
    RaisedError,
    Succeeded,
    WorkerDeath,
    attempt_number,
    died_too_often,
    operator_name,
    our_context,
    outcome_row,
    picklable,
)
from pipeline.cluster.tasks import ActorResources, TaskResources

Job = TypeVar("Job")
Item = TypeVar("Item")
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class UnitEnd(NamedTuple):
    """A unit has given all its pieces; its result."""

    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReader(Generic[Job, Item, Piece, Result]):
    """The first operator: `pieces(job, item)` publishes pieces of a unit and yields each, and last that it
    ended. `num_pieces` is how many it yielded at most on earlier tries, of which nobody else knows."""

    name: str
    pieces: Callable[[Job, Item], Iterator[Piece | UnitEnd]]
    num_pieces: Callable[[Job, Item], int]
    isolate: Callable[[Job], Job]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOperator(Generic[Job, Piece]):
    """An operator behind it: `work(job, piece)` publishes its part and gives the piece, perhaps with more
    known of it. Without `actors` it runs as tasks that reserve what a unit does.

    `num_deaths(job, piece)` counts its own calls for the piece, before this one. It is called before the work
    where a worker has died: Ray counts no attempts of what an actor does, and tries all that waited for a
    dead actor again, innocent or not. So each piece counts the tries that began. (The first death of a new
    actor leaves no trace.)"""

    name: str
    work: Callable[[Job, Piece], Piece]
    num_deaths: Callable[[Job, Piece], int]
    actors: ActorResources | None = None


def run_pieces(
    reader: PieceReader[Job, Item, Piece, Result],
    operators: Sequence[PieceOperator[Job, Piece]],
    job: Job,
    items: Sequence[Item],
    work: TaskResources,
    *,
    retried: Callable[[], None] = lambda: None,
    ended: Callable[[DatasetStats], None] = lambda stats: None,
) -> Iterator[tuple[Item, Piece | UnitEnd]]:
    """Each unit's pieces when all operators are done with them, and its end, in any order, from one Dataset.

    A unit, or a piece, whose worker dies is tried again at most `work.retries` times: WorkerDiedError after
    that. What an operator raises is raised here at once. Leaving the iterator early cancels what is under
    way."""
    import ray

    if not items:
        return
    shared = ray.put((job, object_store_settings()))
    names = "->".join([reader.name, *(operator.name for operator in operators)])
    # Each piece travels by itself, and at once. Units are held back, unless a queue must make nodes come: an
    # actor that takes another one's place would wait behind all that read.
    with our_context(target_max_block_size=1, op_resource_reservation_enabled=not work.grows):
        rows = [{"number": number, "item": ray.cloudpickle.dumps(item)} for number, item in enumerate(items)]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _reading(reader, shared, work.retries),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.TaskPoolStrategy(size=work.max_in_flight or None),
            **work.options,
        )
        for operator in operators:
            dataset = _behind(dataset, operator, shared, work)
        batches = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    with contextlib.closing(batches):
        for batch in batches:
            for number, attempt, pickled in zip(
                *(batch[name].to_pylist() for name in OUTCOMES.names), strict=True
            ):
                item, outcome = items[number], pickle.loads(pickled)
                if isinstance(outcome, RaisedError):
                    raise outcome.error from None
                if isinstance(outcome, _DiedOf):
                    raise died_too_often(outcome.what or item, WorkerDeath(outcome.num))
                for _ in range(attempt):
                    retried()
                yield item, outcome.result
    ended(DatasetStats(operator=names, num_units=len(items), lines=tuple(dataset.stats().splitlines())))


class _DiedOf(NamedTuple):
    """That workers died so often of `what`, the unit itself where it is empty."""

    num: int
    what: str


def _reading(
    reader: PieceReader[Any, Any, Any, Any], shared: Any, retries: int
) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """The first operator's function: the pieces of the one unit of a batch. It runs in a worker."""

    def carry_out(batch: pa.Table) -> Iterator[pa.Table]:
        import ray

        (number,), (item,) = batch["number"].to_pylist(), batch["item"].to_pylist()
        attempt = attempt_number()
        job, settings = ray.get(shared)
        os.environ.update(settings)
        unit = pickle.loads(item)
        if attempt > retries:
            # A row that an earlier try gave already is known to Ray by its number, and not passed on again.
            for _ in range(reader.num_pieces(job, unit) + 1):
                yield outcome_row(number, 0, _DiedOf(attempt, ""))
            return
        try:
            for piece in reader.pieces(reader.isolate(job) if attempt else job, unit):
                yield outcome_row(number, attempt if isinstance(piece, UnitEnd) else 0, Succeeded(piece))
        except Exception as error:  # noqa: BLE001 - raised again by the driver; Ray Data would wrap it and log it
            yield outcome_row(number, attempt, RaisedError(picklable(error)))

    carry_out.__name__ = carry_out.__qualname__ = operator_name(reader.name)
    return carry_out


def _behind(dataset: Any, operator: PieceOperator[Any, Any], shared: Any, work: TaskResources) -> Any:
    """The dataset with one more operator."""
    import ray

    carry_out = _working(operator, shared, work.retries)
    options: dict[str, object] = {"batch_size": 1, "batch_format": "pyarrow"}
    if operator.actors is None:
        size = work.max_in_flight or None
        return dataset.map_batches(
            carry_out, compute=ray.data.TaskPoolStrategy(size=size), **options, **work.options
        )

    class Actor:
        """Ray Data makes an actor of a class only, and calls it by the class's name."""

        def __call__(self, batch: pa.Table) -> pa.Table:
            return carry_out(batch)

    Actor.__name__ = Actor.__qualname__ = operator_name(operator.name)
    pool = ray.data.ActorPoolStrategy(min_size=operator.actors.fewest, max_size=operator.actors.most)
    return dataset.map_batches(Actor, compute=pool, **options, **operator.actors.options)


def _working(operator: PieceOperator[Any, Any], shared: Any, retries: int) -> Callable[[pa.Table], pa.Table]:
    """An operator's function: its part of the one piece of a batch. Everything else passes it by."""

    def carry_out(batch: pa.Table) -> pa.Table:
        import ray

        (number,), (before,), (pickled,) = (batch[name].to_pylist() for name in OUTCOMES.names)
        outcome = pickle.loads(pickled)
        if not isinstance(outcome, Succeeded) or isinstance(outcome.result, UnitEnd):
            return batch
        job, settings = ray.get(shared)
        os.environ.update(settings)
        try:
            deaths = operator.num_deaths(job, outcome.result) if _has_died() else 0
            if deaths > retries:
                return outcome_row(number, 0, _DiedOf(deaths, f"{operator.name} of {outcome.result}"))
            return outcome_row(number, before + deaths, Succeeded(operator.work(job, outcome.result)))
        except Exception as error:  # noqa: BLE001 - raised again by the driver; Ray Data would wrap it and log it
            return outcome_row(number, before, RaisedError(picklable(error)))

    carry_out.__name__ = carry_out.__qualname__ = operator_name(operator.name)
    return carry_out


def _has_died() -> bool:
    """Whether a worker died before this one: of the task under way, or as the actor that this one
    replaces."""
    import ray

    context = ray.get_runtime_context()
    return attempt_number() > 0 or (
        context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)
    )
