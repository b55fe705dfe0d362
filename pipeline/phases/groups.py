"""Groups of units, whose documents share shards."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.rows import shard_source
from pipeline.plan import RunPlan, Unit
from pipeline.results.dedup_result import DedupResult


class SourcePart(NamedTuple):
    """A part of a source, whose shards are its own: the bucket that names it, None where the source is not
    parted, and how often an epoch reads its documents, None where [repeat] says nothing of them."""

    bucket: str | None = None
    repeats: int | None = None

    def under(self, folder: str) -> str:
        """Where a part of what lies in `folder` lies."""
        # No bucket's name has an equals sign.
        times = "" if self.repeats is None else f"/times={self.repeats}"
        return folder + ("" if self.bucket is None else f"/{self.bucket}") + times


WHOLE: Final = SourcePart()
"""All of a source that is not parted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The units whose documents share shards: files [n·group_files, (n+1)·group_files) of a source.
    `verdicts` names the file (tables.VERDICTS) of what comparing said of them. Where the source is parted it
    is a `part` of them."""

    source: str
    source_index: int
    number: int
    units: tuple[Unit, ...]
    verdicts: str
    part: SourcePart = WHOLE

    @property
    def shard_source(self) -> str:
        """The source of its shards."""
        return shard_source(self.source, self.part.bucket)

    @property
    def folder(self) -> str:
        """Where the group's files lie, relative to OUT."""
        return self.part.under(f"work/groups/{self.source_index}-{self.number}")

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
