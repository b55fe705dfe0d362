"""The keyed exchange: rows made anywhere meet by partition number and are reduced there.

Two engines with the same result: one process, and Ray Data for corpora that no process can hold. A reducer publishes
its own files, under names that depend on the partition alone, and returns counts: so it may run twice without harm.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from lineage.storage.folder import object_store_settings
from lineage.store.shuffle import Shuffle
from pipeline.cluster.tasks import TaskResources, task_options

PARTITION: Final = "partition"
"""The column of int64 partition numbers that the rows of an exchange carry (Ray cannot hash uint64 keys)."""

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """`read` turns each task into rows with a PARTITION in [0, num_partitions), all of one schema; `reduce` gets all
    rows of a partition, in any order, and is not called for one without rows. All parts are picklable."""

    tasks: Sequence[Any]
    read: Callable[[Any], pa.Table]
    reduce: Callable[[int, pa.Table], Counts]
    num_partitions: int


class Engine(Protocol):
    """Carries an exchange out; the counts of each partition that had rows, by its number."""

    def run(self, exchange: Exchange) -> dict[int, Counts]: ...


class InProcess:
    """One partition after the other in this process; rows wait in memory, and past a bound in files of the local
    disk."""

    def run(self, exchange: Exchange) -> dict[int, Counts]:
        with Shuffle() as shuffle:
            for task in exchange.tasks:
                for number, rows in split(exchange.read(task)):
                    shuffle.add(PARTITION, rows, number)
            return {number: exchange.reduce(number, rows) for _, number, rows in shuffle.filled()}


# Apart from `split_by_bucket` of the shuffle, which cuts by ranges of a sort key: a partition is a number that the rows
# carry, because Ray Data's repartition takes a column, and the blocks that it gives are cut by it too.
def split(table: pa.Table) -> list[tuple[int, pa.Table]]:
    """`table` cut by its PARTITION column: (number, its rows), in order of number."""
    numbers = table[PARTITION].to_numpy()
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    return [(int(ordered[begin]), table.take(pa.array(order[begin:end]))) for begin, end in itertools.pairwise(bounds)]


class RayData:
    """A key repartition of Ray Data, then one call for each partition of a block. Needs a connected cluster.

    `work` says what readers and reducers reserve, and how often they are tried again; what the repartition itself
    reserves is Ray's."""

    def __init__(self, work: TaskResources) -> None:
        self._work = work

    def run(self, exchange: Exchange) -> dict[int, Counts]:
        counts: dict[int, Counts] = {}
        for row in self._reduced(exchange).take_all() if exchange.tasks else ():
            number = int(row[PARTITION])
            assert number not in counts, f"partition {number} came in two blocks"
            counts[number] = json.loads(row["counts"])
        return dict(sorted(counts.items()))

    def _reduced(self, exchange: Exchange) -> Any:
        import ray

        _quiet(ray.data.DataContext.get_current())
        items = [{"task": pickle.dumps(task)} for task in exchange.tasks]
        # Without named retries Ray tries a lost task without end; a reducer that runs twice publishes the same bytes.
        options = {"max_retries": self._work.retries, "batch_format": "pyarrow", **task_options(self._work)}
        settings = ray.put(object_store_settings())  # as units get them: see pipeline.cluster.tasks
        with warnings.catch_warnings():
            # 2.60 deprecates max_retries here without a named replacement.
            warnings.simplefilter("ignore", DeprecationWarning)
            dataset = ray.data.from_items(items, override_num_blocks=len(items))
            rows = dataset.map_batches(_reader(exchange.read, settings), batch_size=1, **options)
            # A keyed repartition emits each of its blocks whole (group-by relies on that too); numbers whose hashes
            # share a block are told apart by `split`.
            met = rows.repartition(exchange.num_partitions, keys=[PARTITION])
            return met.map_batches(_reducer(exchange.reduce, settings), batch_size=None, **options)


def _reader(read: Callable[[Any], pa.Table], settings: Any) -> Callable[[pa.Table], pa.Table]:
    def read_batch(batch: pa.Table) -> pa.Table:
        _take(settings)
        return pa.concat_tables([read(pickle.loads(task)) for task in batch["task"].to_pylist()])

    return read_batch


def _reducer(reduce: Callable[[int, pa.Table], Counts], settings: Any) -> Callable[[pa.Table], pa.Table]:
    def reduce_block(block: pa.Table) -> pa.Table:
        _take(settings)
        done = [(number, json.dumps(dict(reduce(number, rows)))) for number, rows in split(block)]
        return pa.table(
            {
                PARTITION: pa.array([number for number, _ in done], pa.int64()),
                "counts": pa.array([counts for _, counts in done], pa.string()),
            }
        )

    return reduce_block


def _take(settings: Any) -> None:
    """The object store's settings, out of Ray's object store into this worker's environment."""
    import ray

    os.environ.update(ray.get(settings))


def _quiet(context: Any) -> None:
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
