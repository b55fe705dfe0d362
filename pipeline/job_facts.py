"""What OpenLineage is told of a run: its inputs by source, and its output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lineage.openlineage import EventDataset, JobFacts, common_folder
from pipeline.plan import RunPlan, Unit
from pipeline.results.run_summary import RunSummary


def run_facts(plan: RunPlan) -> JobFacts:
    """A run of this plan: one input a source, since an event cannot name 90,000 files; or the earlier output whose
    texts it reads."""
    if plan.from_output is not None:
        inputs = [EventDataset(url=plan.from_output)]
    else:
        by_source = itertools.groupby(plan.units, lambda unit: unit.source_index)
        inputs = [_read_by(list(units)) for _, units in by_source]
    return JobFacts(kind="run", name=plan.recipe.run.name, inputs=inputs, tags={"plan": plan.key})


def _read_by(units: Sequence[Unit]) -> EventDataset:
    urls = {file.url for unit in units for file in unit.inputs}
    return EventDataset(
        url=common_folder(sorted(urls)), num_bytes=sum(unit.size for unit in units), num_files=len(urls)
    )


def written_output(plan: RunPlan, summary: RunSummary) -> EventDataset:
    """The output of a finished run."""
    return EventDataset(url=plan.out.url, version=summary.content_fingerprint, num_rows=summary.num_kept)
