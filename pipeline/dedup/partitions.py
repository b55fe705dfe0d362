"""Phases over partitions: an exchange whose partitions publish a file each, and whose marker, published last, says
that it need not run again."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from pipeline.dedup.exchange import Engine, Exchange, Rows
from pipeline.dedup.rows import PartitionResult
from pipeline.results.dedup_result import DedupCounts

_MARKER: Final = "done.json"
_GROUP_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPartitions(JsonRecord):
    """done.json of a phase: the partitions of which it published a file, and what they counted together."""

    phase: str
    partitions: tuple[int, ...]
    counts: DedupCounts

    @property
    def names(self) -> list[str]:
        return [partition_name(self.phase, number) for number in self.partitions]


class PartitionPhases:
    """The phases of a flow, in `folder`; `counts` are those of each phase that has ended. `notify` gets the name of
    each phase that begins."""

    def __init__(self, folder: Folder, engine: Engine, notify: Callable[[str], None]) -> None:
        self._folder, self._engine, self._notify = folder, engine, notify
        self.counts: list[DedupCounts] = []

    def run(
        self,
        name: str,
        tasks: Iterable[Any],
        read: Callable[[Any], Rows],
        reduce: Callable[[int, pa.Table], PartitionResult],
        num_partitions: int,
    ) -> PublishedPartitions:
        """Run a phase, unless its marker stands, and publish what each partition comes to."""
        marker = f"{name}/{_MARKER}"
        if self._folder.exists(marker):
            done = PublishedPartitions.from_json(json.loads(self._folder.read(marker)))
            self.counts.append(done.counts)
            return done
        self._notify(name)
        exchange = Exchange(
            name=name,
            folder=self._folder.folder(name),
            tasks=list(tasks),
            read=read,
            reduce=functools.partial(_publish, self._folder, name, reduce),
            num_partitions=num_partitions,
        )
        counts = self._engine.run(exchange)
        done = PublishedPartitions(
            phase=name, partitions=tuple(counts), counts=DedupCounts.total(counts.values())
        )
        # What the exchange left goes after the marker: a call that dies between the two repeats nothing.
        self._folder.mark(marker, json.dumps(done.to_json()).encode())
        self._engine.clear(exchange)
        self.counts.append(done.counts)
        return done


def partition_name(phase: str, number: int) -> str:
    """The file of a partition, in the flow's folder."""
    return f"{phase}/{number:05d}.parquet"


def write_partition(folder: Folder, name: str, rows: Rows) -> None:
    """Publish the rows of a partition, in row groups small enough that a unit finds its verdicts without reading those
    of its whole group."""
    tables = iter((rows,)) if isinstance(rows, pa.Table) else rows
    first = next(tables)
    with folder.writing(name) as file, pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in itertools.chain((first,), tables):
            writer.write_table(table, row_group_size=_GROUP_ROWS)


def _publish(
    folder: Folder,
    phase: str,
    reduce: Callable[[int, pa.Table], PartitionResult],
    number: int,
    rows: pa.Table,
) -> DedupCounts:
    reduced = reduce(number, rows)
    write_partition(folder, partition_name(phase, number), reduced.rows)
    return reduced.counts
