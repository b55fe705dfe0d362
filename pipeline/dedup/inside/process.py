"""From compared documents to texts without the repeats inside them: what `sluice run` does behind comparing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from lineage.store.column_names import INSIDE
from pipeline.cluster.session import num_nodes
from pipeline.dedup.compare import dedup_unit
from pipeline.dedup.exchange import Engine, InPhases, InProcess
from pipeline.dedup.inside.apply import cut_units
from pipeline.dedup.inside.flow import InsideJob, look_inside
from pipeline.phases.phase import RunState
from pipeline.plan import RunPlan
from pipeline.recipe.tables import effective_dedup
from pipeline.results.dedup_result import DedupResult
from pipeline.results.run_summary import InsideSummary
from pipeline.results.unit_results import ReadResult
from pipeline.terminal import counted

IN_PROCESS_CHARS: Final = 64 << 20
"""Characters up to which one process is faster than tasks: about 20 s of one processor."""
_NUM_STEPS: Final = {"substring": 9, "line": 6, "paragraph": 9}
"""About how many phases each method has: only the progress bar asks."""


class CutCorpus(NamedTuple):
    """The results of reading with the parts as they are published, the verdicts with the documents that keep too
    little, and what was cut."""

    read_results: list[ReadResult]
    compared: DedupResult
    summary: InsideSummary


def cut_inside(state: RunState, read_results: Sequence[ReadResult], compared: DedupResult) -> CutCorpus:
    """Cut the repeats inside documents that the recipe's [dedup.inside] names, and publish the clean texts."""
    started = time.perf_counter()
    job = inside_job(state.plan, read_results, compared)
    with state.reporter.phase("look inside", _NUM_STEPS[job.table.method]) as progress:
        found = look_inside(job, _engine_of(state, job), notify=lambda name: progress.step(1, name))
        num_rejected = found.counts.dropped.get(INSIDE, 0)
        note = f"{counted(found.counts.num_cuts, 'cut')}, {counted(found.counts.cut_chars, 'character')}"
        progress.step(0, note)
    state.took("look inside", started, note)
    results = cut_units(state, read_results, found)
    parts = [replace(read, part=cut.part) for read, cut in zip(read_results, results, strict=True)]
    summary = InsideSummary(
        method=job.table.method,
        num_documents=sum(result.num_documents for result in results),
        num_cuts=sum(result.num_cuts for result in results),
        num_chars=sum(result.num_chars for result in results),
        num_rejected=num_rejected,
    )
    return CutCorpus(parts, replace(compared, verdicts=found.verdicts), summary)


def inside_job(plan: RunPlan, read_results: Sequence[ReadResult], compared: DedupResult) -> InsideJob:
    """What survived reading, with what comparing said of it."""
    table = effective_dedup(plan.recipe)
    verdicts = {(each.source_index, each.group): f"work/{each.name}" for each in compared.verdicts}
    units = (
        (dedup_unit(unit, result), verdicts[plan.group_of(unit)], result.num_survivors, result.num_chars)
        for unit, result in zip(plan.units, read_results, strict=True)
    )
    return InsideJob(
        table=table.inside,
        keep=table.keep,
        work=plan.out.folder("work"),
        out=plan.out,
        units=tuple(units),
        compared=compared,
        group_files=plan.recipe.tokenize.group_files,
    )


def _engine_of(state: RunState, job: InsideJob) -> Engine:
    """What `dedup.engine` asks for; its choice changes no byte."""
    wanted, nodes = effective_dedup(state.recipe).engine, 1 if state.recipe.ray.in_process else num_nodes()
    num_chars = sum(chars for *_, chars in job.units)
    if wanted == "local" or (wanted == "auto" and num_chars <= IN_PROCESS_CHARS and nodes == 1):
        return InProcess()
    return InPhases(state)
