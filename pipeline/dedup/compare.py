"""Which documents are compared: from the results of reading to a job of `pipeline.dedup`."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cluster.session import node_memory, num_nodes
from pipeline.dedup.corpus import DedupJob, runs_in_one_process
from pipeline.dedup.exchange import Engine, InPhases, InProcess
from pipeline.dedup.inputs import DedupUnit, earlier_files
from pipeline.phases.phase import RunState
from pipeline.plan import RunPlan, Unit
from pipeline.recipe.tables import effective_dedup
from pipeline.results.dedup_result import DedupResult
from pipeline.results.unit_results import ReadResult
from pipeline.terminal import counted
from stages.steps.catalogue import CORPUS_STAGES

NUM_STEPS = 15
"""About how many steps comparing has: only the progress bar asks."""


def dedup_unit(unit: Unit, result: ReadResult) -> DedupUnit:
    """Where the keys and the clean texts of a unit lie."""
    return DedupUnit(
        source_index=unit.source_index,
        file_index=unit.file_index,
        keys=f"units/{unit.key}/keys.parquet",
        part=result.part.file,
    )


def dedup_job(plan: RunPlan, read_results: Sequence[ReadResult]) -> DedupJob:
    """The survivors of all units and the documents of earlier outputs."""
    table = effective_dedup(plan.recipe)
    earlier, num_earlier = earlier_files(table)
    units = (dedup_unit(unit, result) for unit, result in zip(plan.units, read_results, strict=True))
    return DedupJob(
        table=table,
        work=plan.out.folder("work"),
        out=plan.out,
        num_rows=sum(result.num_survivors for result in read_results) + num_earlier,
        units=tuple(units),
        group_files=plan.recipe.tokenize.group_files,
        earlier=earlier,
    )


def engine_of(run: RunState, job: DedupJob) -> Engine:
    """What `dedup.engine` asks for; its choice changes no byte. Without Ray the units of "ray_data" run one
    after the other in this process, with the same bound on memory."""
    wanted, nodes = job.table.engine, 1 if run.recipe.ray.in_process else num_nodes()
    if wanted == "local" or (wanted == "auto" and runs_in_one_process(job, nodes, node_memory())):
        return InProcess()
    return InPhases(run)


def note_of(read_results: Sequence[ReadResult], compared: DedupResult) -> str:
    """In a line: how many documents were compared, and how many each stage dropped."""
    survivors = sum(result.num_survivors for result in read_results)
    dropped = {stage: compared.counts.dropped.get(stage, 0) for stage in CORPUS_STAGES}
    return f"{counted(survivors, 'document')}, dropped: " + ", ".join(
        f"{num:,} {stage}" for stage, num in dropped.items()
    )
