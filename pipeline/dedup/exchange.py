"""The keyed exchange: rows made anywhere meet by partition number and are reduced there.

Two engines with the same result: one process, and two Ray Data Datasets for corpora that no process can hold. A reducer
publishes its own files, under names that depend on the partition alone, and returns counts: so it may run twice without
harm.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from lineage.storage.folder import Folder
from lineage.store.shuffle import Shuffle, gather, publish_index
from pipeline.cluster.dataset import DatasetStats, run_units
from pipeline.cluster.tasks import TaskResources

PARTITION: Final = "partition"
"""The column of int64 partition numbers that the rows of an exchange carry."""

_ROWS: Final = "rows"
_REDUCED: Final = "reduced"

MAX_SHARES: Final = 512
"""Files that the rows of an exchange lie in at most: where there are more tasks, each file holds those of several. A
reducer reads one range of every file that has rows of its partition, so an exchange asks an object store for at most
this many times its partitions."""

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


# Apart from how the shuffle splits rows, by ranges of a sort key: a partition is a number that the rows carry.
def split(table: pa.Table) -> list[tuple[int, pa.Table]]:
    """`table` cut by its PARTITION column: (number, its rows without that column), in order of number."""
    numbers, rows = table[PARTITION].to_numpy(), table.drop_columns([PARTITION])
    if not len(numbers):
        return []
    low, high = int(numbers.min()), int(numbers.max())
    # numpy sorts integers of 16 bits by radix, in a tenth of the time.
    order = np.argsort((numbers - low).astype(np.uint16) if high - low < 1 << 16 else numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    return [(int(ordered[begin]), rows.take(pa.array(order[begin:end]))) for begin, end in itertools.pairwise(bounds)]


class RayData:
    """Two Datasets over files: one publishes the rows of the tasks, cut by partition, the other reduces each partition.

        <folder>/rows/<share>.json         the rows of the share's tasks are published, beside it
        <folder>/reduced/<partition>.json  the partition is reduced: its counts, or null where it had no rows

    A share holds the rows of one task or, where there are more than `max_shares`, of several neighbouring ones. A
    killed exchange repeats only what has no such marker, and no process holds more than a task's rows or a partition's
    in memory. `work` says what readers and reducers reserve, and how often they are tried again; `ended` gets what Ray
    Data counted of each Dataset. Needs a connected cluster."""

    def __init__(
        self,
        work: TaskResources,
        ended: Callable[[DatasetStats], None] = lambda stats: None,
        max_shares: int = MAX_SHARES,
    ) -> None:
        self._work, self._ended, self._max_shares = work, ended, max_shares

    def run(self, exchange: Exchange) -> dict[int, Counts]:
        if not exchange.tasks:
            return {}
        counts = {
            int(key): json.loads(exchange.folder.read(f"{_REDUCED}/{key}.json"))
            for key in _published(exchange.folder, _REDUCED, ".json")
        }
        if left := [number for number in range(exchange.num_partitions) if number not in counts]:
            self._read(exchange)
            job = index_shares(exchange)
            operator = f"dedup.{exchange.name}"
            counts |= dict(run_units(reduce_partition, job, left, self._work, operator=operator, ended=self._ended))
        return {number: found for number, found in sorted(counts.items()) if found is not None}

    def clear(self, exchange: Exchange) -> None:
        exchange.folder.remove_tree(_ROWS)
        exchange.folder.remove_tree(_REDUCED)

    def _read(self, exchange: Exchange) -> None:
        """Publish the rows of every share that has not been published before."""
        done = set(_published(exchange.folder, _ROWS, ".json"))
        left = [share for share in into_shares(exchange.tasks, self._max_shares) if share.key not in done]
        job = RowsJob(folder=exchange.folder.url, read=exchange.read, num_partitions=exchange.num_partitions)
        operator = f"dedup.{exchange.name}.rows"
        for _ in run_units(publish_share, job, left, self._work, operator=operator, ended=self._ended):
            pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsJob:
    """How rows are made and cut; `folder` is the exchange's."""

    folder: str
    read: Callable[[Any], pa.Table]
    num_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """How partitions are reduced: `keys` are those of the shares that have rows, in order."""

    folder: str
    keys: tuple[str, ...]
    reduce: Callable[[int, pa.Table], Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTasks:
    """Neighbouring tasks whose rows lie in one file, called by its key."""

    key: str
    tasks: tuple[Any, ...]


def into_shares(tasks: Sequence[Any], most: int) -> list[ShareTasks]:
    """The tasks of each share: a function of these alone, for a broken-off exchange goes on from what is published."""
    each = math.ceil(len(tasks) / most)
    starts = range(0, len(tasks), max(each, 1))
    return [ShareTasks(key=f"{n:05d}", tasks=tuple(tasks[begin : begin + each])) for n, begin in enumerate(starts)]


def publish_share(job: RowsJob, share: ShareTasks) -> None:
    """Publish the rows of a share's tasks, cut by partition, and last its marker."""
    folder = Folder(job.folder)
    with Shuffle(job.num_partitions) as shuffle:
        for task in share.tasks:
            for number, rows in split(job.read(task)):
                shuffle.add(PARTITION, rows, number)
        shuffle.publish(folder.folder(_ROWS), share.key)
    folder.mark(f"{_ROWS}/{share.key}.json", b"{}")


def index_shares(exchange: Exchange) -> PartitionJob:
    """How partitions are reduced, once all shares are published; the index that they are read by."""
    # Listed once: a share without rows has published no file of them.
    prefix, suffix = f"{PARTITION}-", ".rows"
    keys = tuple(name.removeprefix(prefix) for name in _published(exchange.folder, _ROWS, suffix))
    publish_index(exchange.folder.folder(_ROWS), PARTITION, keys, exchange.num_partitions)
    return PartitionJob(folder=exchange.folder.url, keys=keys, reduce=exchange.reduce)


def reduce_partition(job: PartitionJob, number: int) -> Counts | None:
    """Reduce a partition's rows of all shares, whose index stands; its counts, None where it has no rows."""
    folder = Folder(job.folder)
    rows = gather(folder.folder(_ROWS), PARTITION, job.keys, number, pa.schema([]))
    counts = dict(job.reduce(number, rows)) if len(rows) else None
    folder.mark(f"{_REDUCED}/{number:05d}.json", json.dumps(counts).encode())
    return counts


def _published(folder: Folder, kind: str, suffix: str) -> list[str]:
    """The names, without the suffix, of the files with it that stand in a subfolder."""
    names = (name.removeprefix(f"{kind}/") for name in folder.names(kind))
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
