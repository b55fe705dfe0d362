"""The keyed exchange: rows made anywhere meet by partition number and are reduced there.

Two engines with the same result: one process, and two Ray Data Datasets for corpora that no process can hold. A reducer
publishes its own files, under names that depend on the partition alone, and returns counts: so it may run twice without
harm.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from lineage.storage.folder import Folder
from lineage.store.shuffle import Shuffle, gather
from pipeline.cluster.dataset import DatasetStats, run_units
from pipeline.cluster.tasks import TaskResources

PARTITION: Final = "partition"
"""The column of int64 partition numbers that the rows of an exchange carry."""

_ROWS: Final = "rows"
_REDUCED: Final = "reduced"

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """`read` turns each task into rows with a PARTITION in [0, num_partitions), all of one schema; `reduce` gets all
    rows of a partition, in any order, and is not called for one without rows. All parts are picklable.

    `name` is what dashboards show; `folder` takes the files that an exchange between processes leaves."""

    name: str
    folder: Folder
    tasks: Sequence[Any]
    read: Callable[[Any], pa.Table]
    reduce: Callable[[int, pa.Table], Counts]
    num_partitions: int


class Engine(Protocol):
    """Carries an exchange out; the counts of each partition that had rows, by its number. `clear` removes what it left
    for a second call, once the exchange need not run again."""

    def run(self, exchange: Exchange) -> dict[int, Counts]: ...

    def clear(self, exchange: Exchange) -> None: ...


class InProcess:
    """One partition after the other in this process; rows wait in memory, and past a bound in files of the local
    disk."""

    def run(self, exchange: Exchange) -> dict[int, Counts]:
        with Shuffle() as shuffle:
            for task in exchange.tasks:
                for number, rows in split(exchange.read(task)):
                    shuffle.add(PARTITION, rows, number)
            return {number: exchange.reduce(number, rows) for _, number, rows in shuffle.filled()}

    def clear(self, exchange: Exchange) -> None:
        return


# Apart from `split_by_bucket` of the shuffle, which cuts by ranges of a sort key: a partition is a number that the rows
# carry.
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
    """Two Datasets over files: one publishes the rows of each task, cut by partition, the other reduces each partition.

        <folder>/rows/<task>.json          the task's rows are published, beside it
        <folder>/reduced/<partition>.json  the partition is reduced: its counts, or null where it had no rows

    A killed exchange repeats only what has no such marker, and no process holds more than a task's rows or a
    partition's. `work` says what readers and reducers reserve, and how often they are tried again; `ended` gets what
    Ray Data counted of each Dataset. Needs a connected cluster."""

    def __init__(self, work: TaskResources, ended: Callable[[DatasetStats], None] = lambda stats: None) -> None:
        self._work, self._ended = work, ended

    def run(self, exchange: Exchange) -> dict[int, Counts]:
        if not exchange.tasks:
            return {}
        counts = {
            int(key): json.loads(exchange.folder.read(f"{_REDUCED}/{key}.json"))
            for key in _published(exchange.folder, _REDUCED, ".json")
        }
        if left := [number for number in range(exchange.num_partitions) if number not in counts]:
            self._read(exchange)
            # Listed once: a task without rows has published no file of them.
            prefix, suffix = f"{PARTITION}-", ".rows"
            keys = tuple(name.removeprefix(prefix) for name in _published(exchange.folder, _ROWS, suffix))
            job = _ReduceJob(folder=exchange.folder.url, keys=keys, reduce=exchange.reduce)
            operator = f"dedup.{exchange.name}"
            counts |= dict(run_units(_reduce, job, left, self._work, operator=operator, ended=self._ended))
        return {number: found for number, found in sorted(counts.items()) if found is not None}

    def clear(self, exchange: Exchange) -> None:
        exchange.folder.remove_tree(_ROWS)
        exchange.folder.remove_tree(_REDUCED)

    def _read(self, exchange: Exchange) -> None:
        """Publish the rows of every task that has not published them before."""
        done = set(_published(exchange.folder, _ROWS, ".json"))
        tasks = [_NumberedTask(number=number, task=task) for number, task in enumerate(exchange.tasks)]
        left = [task for task in tasks if task.key not in done]
        job = _ReadJob(folder=exchange.folder.url, read=exchange.read, num_partitions=exchange.num_partitions)
        operator = f"dedup.{exchange.name}.rows"
        for _ in run_units(_read, job, left, self._work, operator=operator, ended=self._ended):
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadJob:
    folder: str
    read: Callable[[Any], pa.Table]
    num_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReduceJob:
    """`keys` are those of the tasks that have rows, in order."""

    folder: str
    keys: tuple[str, ...]
    reduce: Callable[[int, pa.Table], Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberedTask:
    number: int
    task: Any

    @property
    def key(self) -> str:
        return f"{self.number:05d}"


def _read(job: _ReadJob, item: _NumberedTask) -> None:
    folder = Folder(job.folder)
    with Shuffle(job.num_partitions) as shuffle:
        for number, rows in split(job.read(item.task)):
            shuffle.add(PARTITION, rows, number)
        shuffle.publish(folder.folder(_ROWS), item.key)
    folder.publish(f"{_ROWS}/{item.key}.json", b"{}")


def _reduce(job: _ReduceJob, number: int) -> Counts | None:
    folder = Folder(job.folder)
    rows = gather(folder.folder(_ROWS), PARTITION, job.keys, number, pa.schema([]))
    counts = dict(job.reduce(number, rows)) if len(rows) else None
    folder.publish(f"{_REDUCED}/{number:05d}.json", json.dumps(counts).encode())
    return counts


def _published(folder: Folder, kind: str, suffix: str) -> list[str]:
    """The names, without the suffix, of the files with it that stand in a subfolder."""
    names = (name.removeprefix(f"{kind}/") for name in folder.names(kind))
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
