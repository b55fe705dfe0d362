"""The keyed exchange: rows made anywhere meet by partition number and are reduced there.

Two engines with the same result: one process, and two phases of units for corpora that no process can hold. A
reducer publishes its own files, under names that depend on the partition alone, and returns counts: so it may
run twice without harm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from lineage.allocator import give_back_freed_memory
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from lineage.store.shuffle import Shuffle, gather, publish_index
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.results.dedup_result import DedupCounts

PARTITION: Final = "partition"
"""The column of int64 partition numbers that the rows of an exchange carry."""

Rows: TypeAlias = pa.Table | Iterator[pa.Table]
"""Rows as a table, or as tables one after another."""

_ROWS: Final = "rows"
_REDUCED: Final = "reduced"

_SPLIT_BYTES: Final = 8 << 20

MAX_SHARES: Final = 512
"""Files that the rows of an exchange lie in at most: where there are more tasks, each file holds those of
several. A reducer reads one range of every file that has rows of its partition, so an exchange asks an object
store for at most this many times its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """`read` turns each task into rows with a PARTITION in [0, num_partitions), all of one schema; `reduce`
    gets all rows of a partition, in any order, and is not called for one without rows. All parts are
    picklable.

    `name` is what dashboards show; `folder` takes the files that an exchange between processes leaves."""

    name: str
    folder: Folder
    tasks: Sequence[Any]
    read: Callable[[Any], Rows]
    reduce: Callable[[int, pa.Table], DedupCounts]
    num_partitions: int


class Engine(Protocol):
    """Carries an exchange out; the counts of each partition that had rows, by its number. `clear` removes
    what it left for a second call, once the exchange need not run again."""

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]: ...

    def clear(self, exchange: Exchange) -> None: ...


class InProcess:
    """One partition after the other in this process; rows wait in memory, and past a bound in files of the
    local disk."""

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
        with Shuffle() as shuffle:
            for task in exchange.tasks:
                for number, rows in split(exchange.read(task)):
                    shuffle.add(PARTITION, rows, number)
            give_back_freed_memory()  # reducing asks for pieces of other sizes, and so does the next exchange
            counts = {number: exchange.reduce(number, rows) for _, number, rows in shuffle.filled()}
        give_back_freed_memory()
        return counts

    def clear(self, exchange: Exchange) -> None:
        return


# The shuffle splits rows by ranges of a sort key; here the rows carry the number of their partition.
def split(given: Rows) -> Iterator[tuple[int, pa.Table]]:
    """Rows cut by their PARTITION column: (number, its rows without that column), in order of number for each table. A
    large table is cut some rows at a time, and a number then comes several times: cutting copies rows."""
    for table in (given,) if isinstance(given, pa.Table) else given:
        yield from _split_in_pieces(table)


def _split_in_pieces(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    num_pieces = 1 + table.nbytes // _SPLIT_BYTES
    num_rows = max(1, -(-table.num_rows // num_pieces))
    for first in range(0, table.num_rows, num_rows):
        yield from _split_at_once(table.slice(first, num_rows))


def _split_at_once(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    numbers, rows = table[PARTITION].to_numpy(), table.drop_columns([PARTITION])
    low, high = int(numbers.min()), int(numbers.max())
    # numpy sorts integers of 16 bits by radix, in a tenth of the time.
    order = np.argsort((numbers - low).astype(np.uint16) if high - low < 1 << 16 else numbers, kind="stable")
    # Stable, so that equal inputs give equal files whatever numpy sorts by.
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    # One copy of the rows, then slices of it: to take each partition's would copy a column of several chunks each time,
    # and leave as many small pieces in the heap.
    rows = rows.combine_chunks().take(pa.array(order))
    for begin, end in itertools.pairwise(bounds):
        yield int(ordered[begin]), rows.slice(begin, end - begin)


class InPhases:
    """Two phases of the run over files: one publishes the rows of the tasks, cut by partition, the other
    reduces each partition.

        <folder>/rows/<share>.json         the rows of the share's tasks are published, beside it
        <folder>/reduced/<partition>.json  the partition is reduced: what it counted, if it had rows

    A share holds the rows of one task or, where there are more than `max_shares`, of several neighbouring
    ones. A killed exchange repeats only what has no such marker, and no process holds more than a task's rows
    or a partition's in memory."""

    def __init__(self, run: RunState, max_shares: int = MAX_SHARES) -> None:
        self._run, self._max_shares = run, max_shares

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
        if not exchange.tasks:
            return {}
        self._read(exchange)
        partitions = [Partition(number=number) for number in range(exchange.num_partitions)]
        phase = Phase(
            name=f"dedup.{exchange.name}",
            operator=f"dedup.{exchange.name}",
            kind="compare",
            task=reduce_partition,
            result=Reduction,
            job=index_shares(exchange),
            units=partitions,
            out=exchange.folder,
        )
        reductions = zip(partitions, run_phase(self._run, phase), strict=True)
        return {partition.number: found.counts for partition, found in reductions if found.has_rows}

    def clear(self, exchange: Exchange) -> None:
        exchange.folder.remove_tree(_ROWS)
        exchange.folder.remove_tree(_REDUCED)

    def _read(self, exchange: Exchange) -> None:
        """Publish the rows of every share."""
        phase = Phase(
            name=f"dedup.{exchange.name}.rows",
            operator=f"dedup.{exchange.name}.rows",
            kind="compare",
            task=publish_share,
            result=PublishedShare,
            job=RowsJob(
                folder=exchange.folder.url, read=exchange.read, num_partitions=exchange.num_partitions
            ),
            units=into_shares(exchange.tasks, self._max_shares),
            out=exchange.folder,
        )
        run_phase(self._run, phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsJob:
    """How rows are made and cut; `folder` is the exchange's."""

    folder: str
    read: Callable[[Any], Rows]
    num_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionJob:
    """How partitions are reduced: `keys` are those of the shares that have rows, in order."""

    folder: str
    keys: tuple[str, ...]
    reduce: Callable[[int, pa.Table], DedupCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTasks:
    """Neighbouring tasks whose rows lie in one file, called by its key."""

    key: str
    tasks: tuple[Any, ...]

    @property
    def marker(self) -> str:
        return f"{_ROWS}/{self.key}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedShare(JsonRecord):
    """The rows of a share: how many there are."""

    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition to reduce."""

    number: int

    @property
    def marker(self) -> str:
        return f"{_REDUCED}/{self.number:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(JsonRecord):
    """What a partition came to, if it has rows."""

    has_rows: bool
    counts: DedupCounts


def into_shares(tasks: Sequence[Any], most: int) -> list[ShareTasks]:
    """The tasks of each share: a function of these alone, for a broken-off exchange goes on from what is
    published."""
    # The number of processors must not count: a call on other nodes goes on with the same shares.
    each = math.ceil(len(tasks) / most)
    starts = range(0, len(tasks), max(each, 1))
    return [
        ShareTasks(key=f"{n:05d}", tasks=tuple(tasks[begin : begin + each])) for n, begin in enumerate(starts)
    ]


def publish_share(job: RowsJob, share: ShareTasks) -> PublishedShare:
    """Publish the rows of a share's tasks, cut by partition, and last its marker."""
    folder, num_rows = Folder(job.folder), 0
    with Shuffle(job.num_partitions) as shuffle:
        for task in share.tasks:
            for number, rows in split(job.read(task)):
                shuffle.add(PARTITION, rows, number)
                num_rows += len(rows)
        shuffle.publish(folder.folder(_ROWS), share.key)
    return publish_result(folder, share.marker, PublishedShare(num_rows=num_rows))


def index_shares(exchange: Exchange) -> PartitionJob:
    """How partitions are reduced, once all shares are published; the index that they are read by."""
    # Listed once: a share without rows has published no file of them.
    prefix, suffix = f"{PARTITION}-", ".rows"
    keys = tuple(name.removeprefix(prefix) for name in _published(exchange.folder, _ROWS, suffix))
    publish_index(exchange.folder.folder(_ROWS), PARTITION, keys, exchange.num_partitions)
    return PartitionJob(folder=exchange.folder.url, keys=keys, reduce=exchange.reduce)


def reduce_partition(job: PartitionJob, partition: Partition) -> Reduction:
    """Reduce a partition's rows of all shares, whose index stands."""
    folder = Folder(job.folder)
    # Shares without rows of this partition are not opened: the index says which have some.
    rows = gather(folder.folder(_ROWS), PARTITION, job.keys, partition.number, pa.schema([]))
    counts = job.reduce(partition.number, rows) if len(rows) else DedupCounts()
    return publish_result(folder, partition.marker, Reduction(has_rows=bool(len(rows)), counts=counts))


def _published(folder: Folder, kind: str, suffix: str) -> list[str]:
    """The names, without the suffix, of the files with it that stand in a subfolder."""
    names = (name.removeprefix(f"{kind}/") for name in folder.names(kind))
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
