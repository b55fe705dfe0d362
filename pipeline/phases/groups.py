"""Groups of units, whose documents share shards."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.rows import shard_source
from pipeline.plan import RunPlan, Unit
from pipeline.results.dedup_result import DedupResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The units whose documents share shards: files [n·group_files, (n+1)·group_files) of a source.
    `verdicts` names the file (tables.VERDICTS) of what comparing said of them. With a `bucket` it is that
    part of them, whose shards are its own."""

    source: str
    source_index: int
    number: int
    units: tuple[Unit, ...]
    verdicts: str
    bucket: str | None = None

    @property
    def shard_source(self) -> str:
        """The source of its shards."""
        return shard_source(self.source, self.bucket)

    @property
    def folder(self) -> str:
        """Where the group's files lie, relative to OUT."""
        return f"work/groups/{self.source_index}-{self.number}" + (f"-{self.bucket}" if self.bucket else "")

    @property
    def marker(self) -> str:
        return f"{self.folder}/cut.json"


def make_groups(plan: RunPlan, compared: DedupResult) -> list[Group]:
    """The groups of all sources, in (source, number) order, with their verdicts."""
    verdicts = {(found.source_index, found.group): f"work/{found.name}" for found in compared.verdicts}
    members: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for unit in plan.units:
        members[plan.group_of(unit)].append(unit)
    return [
        Group(
            source=units[0].source,
            source_index=source_index,
            number=number,
            units=tuple(units),
            verdicts=verdicts[source_index, number],
        )
        for (source_index, number), units in sorted(members.items())
    ]


def unit_verdicts(out: Folder, verdicts: str, file_index: int) -> pa.Table:
    """The rows of tables.VERDICTS that concern one file of a group."""
    with out.open(verdicts) as file:
        return pq.read_table(file, filters=pc.field("file_index") == file_index, schema=tables.VERDICTS)
