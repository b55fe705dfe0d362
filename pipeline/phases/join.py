"""What every unit found out, joined with verdicts and placements: its final rows of the lineage store.

work/units/<key>/final.parquet, final.json     a unit's final rows of `documents`, and JoinResult
dedup/<source>/part-NNNNN.parquet              what later runs compare with
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import content_hash, id_digest, show_digest
from lineage.index.output_index import PartFile, part_name
from lineage.storage.folder import Folder
from lineage.store import tables
from pipeline.cluster.metrics import Rejections, WorkCounts
from pipeline.phases.document_rows import join_unit, kept_keys, shorten
from pipeline.phases.groups import Group, SourcePart, unit_verdicts
from pipeline.phases.phase import Phase, publish_result
from pipeline.phases.shard import GROUP_PLACEMENTS, read_cuts, unit_placements
from pipeline.plan import RunPlan, Unit
from pipeline.results.clusters import cluster_excerpts
from pipeline.results.excerpts import ExcerptKeeper, ExcerptRow, best_excerpts, deciding, shown_of_rule
from pipeline.results.rows import publish_table, read_rows, read_texts
from pipeline.results.unit_results import JoinResult, RuleCount
from pipeline.units.files import ROW
from stages.document import Finding
from stages.pii.regions import region_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob:
    """What all units of a run share. `first_shard` maps (source_index, group number) to the parts of the
    group with the first shard of each; None where nothing was tokenized. `are_cut`: repeats were cut out of texts."""

    out: str
    first_shard: Mapping[tuple[int, int], Mapping[SourcePart, int]] | None
    are_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitToJoin:
    """A unit and the group it belongs to (without the group's other units)."""

    unit: Unit
    group: Group

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/final.json"


def join_phase(
    plan: RunPlan, groups: Sequence[Group], parts: Sequence[Group]
) -> Phase[JoinJob, UnitToJoin, JoinResult]:
    """The joining of all units, once the `parts` of their groups are cut, or are not to be."""
    first_shard = None if plan.recipe.tokenize.off else _first_shards(plan.out, parts)
    return Phase(
        name="join lineage facts",
        operator="join_lineage_facts",
        kind="join",
        task=join_unit_task,
        result=JoinResult,
        job=JoinJob(out=plan.out.url, first_shard=first_shard, are_cut=plan.recipe.dedup.inside.is_on),
        units=[
            UnitToJoin(unit=unit, group=replace(group, units=())) for group in groups for unit in group.units
        ],
        counts=lambda result: WorkCounts(
            rejections=tuple(Rejections(count.stage, count.rule, count.num) for count in result.dropped)
        ),
    )


def _first_shards(out: Folder, parts: Sequence[Group]) -> dict[tuple[int, int], dict[SourcePart, int]]:
    # Groups are cut at the same time, each numbering its shards from 0. The final numbers continue those of the groups
    # before, in the order of the plan, so it does not matter which group was cut first.
    first_shard: dict[tuple[int, int], dict[SourcePart, int]] = defaultdict(dict)
    next_shard: dict[str, int] = defaultdict(int)
    for part in parts:
        first_shard[part.source_index, part.number][part.part] = next_shard[part.shard_source]
        next_shard[part.shard_source] += len(read_cuts(out, part)) - 1
    return dict(first_shard)


def join_unit_task(job: JoinJob, item: UnitToJoin) -> JoinResult:
    """Join a unit's rows and publish them."""
    out, unit, group = Folder(job.out), item.unit, item.group
    folder = unit.folder
    placements = _placements(job, out, item)
    verdicts = unit_verdicts(out, group.verdicts, unit.file_index)
    documents, keys = (read_rows(out, f"{folder}/{name}.parquet") for name in ("documents", "keys"))
    if job.are_cut:
        shortened = read_rows(out, f"{folder}/shortened.parquet")
        documents, keys = shorten(documents, shortened), shorten(keys, shortened)
    joined = join_unit(documents, verdicts, placements)
    publish_table(out, f"{folder}/final.parquet", joined)
    is_kept = pc.equal(joined["status"], "kept")
    kept = joined.filter(is_kept)
    # Of records of one id one is kept: the edits are its own.
    edits = read_rows(out, f"{folder}/edits.parquet")
    edits = edits.filter(pc.take(is_kept, edits[ROW])).drop_columns([ROW])
    if job.are_cut:
        cuts = read_rows(out, f"{folder}/cuts.parquet")
        cuts = cuts.filter(pc.is_in(cuts["doc_id"], kept["doc_id"].combine_chunks()))
        edits = pa.concat_tables([tables.conform(edits, tables.CUTS), cuts])
    publish_table(out, f"{folder}/final_edits.parquet", edits)
    dedup = _publish_dedup(out, unit, kept_keys(keys, joined, unit.source))
    # Filters rejected what has no row in a part; comparing dropped the rest that is not kept.
    dropped = joined.filter(pc.and_(pc.is_valid(joined["part_row"]), pc.not_equal(joined["status"], "kept")))
    _publish_dropped_excerpts(out, unit, dropped)
    result = JoinResult(
        dedup=dedup, dropped=_count_dropped(dropped), num_rows=joined.num_rows, num_kept=kept.num_rows
    )
    return publish_result(out, item.marker, result)


def _placements(job: JoinJob, out: Folder, item: UnitToJoin) -> pa.Table:
    """Where the unit's kept documents lie, by shard of their source; nowhere where nothing was tokenized."""
    if job.first_shard is None:
        return _empty_placements()
    group = item.group
    found = [_empty_placements()]
    for part, first in job.first_shard.get((group.source_index, group.number), {}).items():
        placements = unit_placements(out, replace(group, part=part), item.unit.file_index)
        at = placements.schema.get_field_index("shard")
        placements = placements.set_column(at, "shard", pc.add(placements["shard"], first))
        names = pa.array([part.bucket] * placements.num_rows, pa.string())
        found.append(placements.append_column("bucket", names))
    return pa.concat_tables(found)


def _empty_placements() -> pa.Table:
    return pa.schema([*GROUP_PLACEMENTS, ("bucket", pa.string())]).empty_table()


def _publish_dedup(out: Folder, unit: Unit, rows: pa.Table) -> PartFile:
    buffer = io.BytesIO()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        compression_level=3,
        row_group_size=16_384,
        use_dictionary=False,
        write_page_checksum=True,
    )
    name = part_name("dedup", unit.source, unit.file_index)
    out.write(name, buffer.getvalue())
    return PartFile(
        source=unit.source,
        part=unit.file_index,
        file=name,
        num_rows=rows.num_rows,
        hash=content_hash(buffer.getvalue()).hex(),
    )


def _publish_dropped_excerpts(out: Folder, unit: Unit, dropped: pa.Table) -> None:
    """Excerpts of documents that each stage of comparison dropped: those of which the report may show one."""
    wanted: dict[int, tuple[bytes, Finding, str | None]] = {}
    for row in shown_of_rule(
        dropped.select(
            ["doc_id", "stage", "rule", "value", "threshold", "part_row", "language", "host"]
        ).to_pylist()
    ):
        wanted[row["part_row"]] = (row["doc_id"], deciding(row), region_of(row["language"], row["host"]))
    keeper = ExcerptKeeper()
    for part_row, text in read_texts(
        out, part_name("documents", unit.source, unit.file_index), sorted(wanted)
    ).items():
        doc_id, finding, region = wanted[part_row]
        keeper.offer(doc_id, finding, text, region)
    rows = pa.Table.from_pylist(list(keeper.rows()), schema=tables.EXCERPTS)
    publish_table(out, f"{unit.folder}/final_excerpts.parquet", rows)


def _count_dropped(dropped: pa.Table) -> tuple[RuleCount, ...]:
    """What comparing documents dropped."""
    found = []
    for stage in sorted(set(dropped["stage"].to_pylist())):
        rows = dropped.filter(pc.equal(dropped["stage"], stage))
        for rule in sorted(set(rows["rule"].to_pylist())):
            ids = rows.filter(pc.equal(rows["rule"], rule))["doc_id"].to_pylist()
            found.append(RuleCount(stage, rule, len(ids), show_digest(id_digest(ids))))
    return tuple(found)


def merge_excerpts(out: Folder, units: Sequence[Unit]) -> bytes:
    """excerpts.parquet: of all units' excerpts those that the report shows of each rule, and the members of
    the largest clusters (a kept one has neither stage nor rule). The tables must be committed."""
    rows: list[ExcerptRow] = []
    for unit in units:
        for name in ("excerpts.parquet", "final_excerpts.parquet"):
            rows += read_rows(out, f"{unit.folder}/{name}").to_pylist()
        # Reduced after each unit, so that memory is that of the report and not of the corpus.
        rows = best_excerpts(rows)
    known = {row["doc_id"] for row in rows if row["stage"].startswith("dedup.")}
    members = [row for row in cluster_excerpts(out) if row["doc_id"] not in known]
    buffer = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([*rows, *members], schema=tables.EXCERPTS),
        buffer,
        compression="zstd",
        write_page_checksum=True,
    )
    return buffer.getvalue()
