"""Cut the runs of each group of units, or of a part of it, into shards, and write them.

work/groups/<source>-<n>[/<bucket>][/times=<k>]/         of a group, or a part of it
    cuts.npy, placements.parquet                         where each document lands
    cut.json, shard-NNNNN.json                           CutResult; Shard
shards/<source>/NNNNN.bin, .blocks, .idx.parquet
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.output_index import Shard
from lineage.storage.folder import Folder
from pipeline.phases.groups import Group
from pipeline.phases.phase import Phase, publish_result
from pipeline.plan import RunPlan, Unit
from pipeline.results.rows import read_rows
from pipeline.results.unit_results import CutResult
from stages.tokens.shards import (
    RangeReader,
    RunSlice,
    cut_group,
    place_group,
    publish_shard,
    shared_read_ahead,
    slice_bytes,
)

_READ_AHEAD_BYTES = 256 << 20

GROUP_PLACEMENTS = pa.schema([
    ("file_index", pa.int32()), ("part_row", pa.int64()), ("shard", pa.int64()), ("start", pa.int64()),
    ("num_tokens", pa.int64()), ("tokens_hash", pa.binary()),
])  # fmt: skip
"""A row for each kept document of a group, in order of (file_index, part_row); `shard` counts within the
group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """What all groups of a run share."""

    out: str
    shard_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOfGroup:
    """A shard to write: the `local`-th of its group, and its number within the source."""

    group: Group
    local: int
    shard: int

    @property
    def marker(self) -> str:
        return f"{self.group.folder}/shard-{self.local:05d}.json"


def cut_phase(plan: RunPlan, groups: Sequence[Group]) -> Phase[ShardJob, Group, CutResult]:
    """The cutting of all groups."""
    return Phase(
        name="cut into shards",
        operator="cut_into_shards",
        kind="cut",
        task=cut_group_task,
        result=CutResult,
        job=_shard_job(plan),
        units=groups,
    )


def write_phase(plan: RunPlan, shards: Sequence[ShardOfGroup]) -> Phase[ShardJob, ShardOfGroup, Shard]:
    """The writing of all shards."""
    return Phase(
        name="write shards",
        operator="write_shards",
        kind="write",
        task=write_shard_task,
        result=Shard,
        job=_shard_job(plan),
        units=shards,
    )


def _shard_job(plan: RunPlan) -> ShardJob:
    return ShardJob(out=plan.out.url, shard_tokens=plan.recipe.tokenize.shard_tokens)


def number_shards(groups: Sequence[Group], counts: Sequence[int]) -> list[ShardOfGroup]:
    """The shards of all groups, numbered within each source by (group, cut)."""
    next_of: dict[str, int] = {}
    shards = []
    for group, count in zip(groups, counts, strict=True):
        first = next_of.get(group.shard_source, 0)
        shards += [ShardOfGroup(group=group, local=i, shard=first + i) for i in range(count)]
        next_of[group.shard_source] = first + count
    return shards


def _run_file(group: Group, unit: Unit) -> str:
    return f"{group.part.under(unit.folder)}/run.parquet"


def cut_group_task(job: ShardJob, group: Group) -> CutResult:
    """Cut a group and publish its cuts and placements. Memory: some 100 bytes a document."""
    out = Folder(job.out)
    # Only what the cuts follow from is held of all units together: a group may have twenty million documents.
    runs = [read_rows(out, _run_file(group, unit), ["key", "num_tokens"]) for unit in group.units]
    cuts = cut_group(runs, job.shard_tokens)
    placed = place_group(runs, cuts)
    with (
        out.writing(f"{group.folder}/placements.parquet") as file,
        pq.ParquetWriter(
            file, GROUP_PLACEMENTS, compression="zstd", compression_level=3, write_page_checksum=True
        ) as writer,
    ):
        for unit, where in zip(group.units, placed, strict=True):
            run = read_rows(out, _run_file(group, unit), ["part_row", "num_tokens", "tokens_hash"])
            columns = {
                "file_index": pa.array(np.full(run.num_rows, unit.file_index, dtype=np.int32)),
                "part_row": run["part_row"],
                "shard": where["shard"],
                "start": where["start"],
                "num_tokens": run["num_tokens"],
                "tokens_hash": run["tokens_hash"],
            }
            writer.write_table(pa.table(columns, schema=GROUP_PLACEMENTS).sort_by("part_row"))
    buffer = io.BytesIO()
    np.save(buffer, cuts, allow_pickle=False)
    out.write(f"{group.folder}/cuts.npy", buffer.getvalue())
    return publish_result(out, group.marker, CutResult(num_shards=len(cuts) - 1))


def read_cuts(out: Folder, group: Group) -> npt.NDArray[np.int64]:
    """The cuts of a group: see stages.tokens.shards.cut_group."""
    cuts: npt.NDArray[np.int64] = np.load(
        io.BytesIO(out.read(f"{group.folder}/cuts.npy")), allow_pickle=False
    )
    return cuts


def unit_placements(out: Folder, group: Group, file_index: int) -> pa.Table:
    """The rows of GROUP_PLACEMENTS of one file of a group."""
    with out.open(f"{group.folder}/placements.parquet") as file:
        return pq.read_table(file, filters=pc.field("file_index") == file_index, schema=GROUP_PLACEMENTS)


def write_shard_task(job: ShardJob, item: ShardOfGroup) -> Shard:
    """Write one shard; its entry of the index."""
    out = Folder(job.out)
    cuts = read_cuts(out, item.group)
    firsts, lasts = cuts[item.local], cuts[item.local + 1]
    # A shard takes a slice of every unit's run, all open at once: together they may hold no more than this.
    read_ahead = shared_read_ahead(_READ_AHEAD_BYTES, len(item.group.units))
    slices = []
    for unit, first, last in zip(item.group.units, firsts.tolist(), lasts.tolist(), strict=True):
        if first == last:
            continue
        run = read_rows(out, _run_file(item.group, unit))
        start, size = slice_bytes(run, first, last)
        tokens = RangeReader(out, f"{item.group.part.under(unit.folder)}/tokens.bin", start, size, read_ahead)
        # A copy: a slice would hold the rows of the whole run, and so each task those of the whole group.
        slices.append(RunSlice(rows=run.take(pa.array(np.arange(first, last))), tokens=tokens))
    shard = publish_shard(out, item.group.shard_source, item.shard, slices)
    times = item.group.part.repeats
    return publish_result(out, item.marker, shard if times is None else replace(shard, repeats=times))
