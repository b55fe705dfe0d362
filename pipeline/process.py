"""`sluice run`, read from top to bottom: from crawl files to a finished output.

    1. plan       list the inputs; refuse an output folder that holds another run
    2. read       each input file: records → documents → the source's steps → clean texts and facts
    3. compare    identity, URL, exact and near duplicates over the whole corpus → verdicts
    4. tokenize   what is kept, file by file, in the order of a keyed hash
    5. shard      cut each group of files into shards and write them; with tokenize.off there is neither 4 nor 5
    6. record     join all facts; write and commit the lineage tables
    7. publish    excerpts, report, checksums, and last index.json

Every phase is made of units that publish their files whole and are skipped where they stand: the same call after a
kill continues, and repeats no finished unit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.filesize import decimal

from lineage.index.output_index import Index, Shard
from lineage.storage.lock import hold
from pipeline.cluster.session import units_session, what_starts
from pipeline.cluster.tasks import TaskResources, check_resources
from pipeline.dedup.compare import NUM_STEPS, dedup_job, engine_of, note_of
from pipeline.dedup.corpus import deduplicate
from pipeline.model_stages.actors import check_can_work, models_of, plan_actors
from pipeline.model_stages.phase import read_inputs
from pipeline.phases.groups import Group, make_groups
from pipeline.phases.join import join_phase
from pipeline.phases.phase import Run, run_phase
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.publish import output_index, publish_output, publish_parsed_texts, summarise
from pipeline.phases.read import ReadJob, read_job
from pipeline.phases.record import write_lineage
from pipeline.phases.shard import cut_phase, number_shards, write_phase
from pipeline.phases.small_tables import small_tables
from pipeline.phases.steps import stages_of
from pipeline.phases.tokenize import kept_tokenizer, tokenize_phase
from pipeline.plan import check_same_run, places_with_credentials, plan_run
from pipeline.recipe import RAY_STAGES, PipelineRecipe, keeps_facts
from pipeline.refilter.earlier import Refiltering, honouring, open_earlier, plan_from, record_reuse, starts_of
from pipeline.refilter.unit import refilter_phase
from pipeline.report.render import render_output
from pipeline.results.dedup_result import DedupResult
from pipeline.results.run_summary import RunSummary, read_summary
from pipeline.results.unit_results import JoinResult, ReadResult, TokenizeResult
from pipeline.units.bad_records import BadRecordWatch, announcement, check_bad_records


def run(
    recipe: PipelineRecipe,
    reporter: ProgressReporter,
    *,
    strict: bool = False,
    from_output: str | None = None,
    trial: bool = False,
) -> RunSummary:
    """Carry a data recipe out, or continue it; what it came to, as OUT/run.json has it. With `from_output` the input is
    the texts that this earlier output kept, and no step is run again that is as it was there. A
    `trial` takes the place of an earlier one with other settings.

    RecipeError if the recipe is wrong or the output holds another run; bad_records.TooManyBadRecordsError past
    limits.max_bad_records; tasks.WorkerDiedError if a unit's worker dies on every try. With `strict`
    faults.StrictError at the first record on which a reader or step raises."""
    table = recipe.tokenize
    tokenizer = None if table.off else kept_tokenizer(table.encoding, table.end_of_text)
    earlier = None if from_output is None else open_earlier(from_output)
    recipe = recipe if earlier is None else honouring(recipe, earlier)
    job = read_job(recipe)
    if earlier is None:
        check_can_work(models_of(job.steps, job.tables), recipe.ray)
    plan = plan_run(recipe) if earlier is None else plan_from(recipe, earlier)
    refiltering = None if earlier is None else Refiltering(earlier=earlier, starts=starts_of(plan, earlier))
    if places := places_with_credentials(plan):
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        reporter.say(f"The credentials of {places[0]}{more} are used, and recorded nowhere.")
    with hold(plan.out, "sluice run") as held:
        if check_same_run(plan, reporter.say, trial=trial):
            reporter.say(f"{plan.out.url} is finished: nothing to do.")
            return read_summary(plan.out)
        state = Run(plan=plan, reporter=reporter, held=held)
        for line in [] if tokenizer is None else tokenizer.lines():
            reporter.say(line)
        size = decimal(sum(unit.input.size for unit in plan.units))
        starting = "" if recipe.ray.in_process else f"; {what_starts(recipe.ray.address)}"
        reporter.say(f"{len(plan.units):,} input files, {size}{starting}")
        with units_session(recipe.ray):
            for stage in RAY_STAGES:  # now, and not when the stage comes
                check_resources(TaskResources.of(recipe.ray, stage))
            job = replace(job, key=plan.key, strict=strict)
            documents = read(state, job) if refiltering is None else read_again(state, job, refiltering)
            compared = compare(state, documents)
            groups = make_groups(plan, compared)
            shards: list[Shard] = []
            if tokenizer is not None:
                tokenize(state, groups)
                shards = shard(state, groups)
            joined = record(state, job, groups, shards, documents)
            if refiltering is not None:
                record_reuse(state, refiltering)
        index = output_index(tokenizer, shards, plan.units, documents, joined)
        return publish(state, index, documents, joined, compared)


def read(state: Run, job: ReadJob) -> list[ReadResult]:
    """2. What came of every input file, in plan order. Models among the steps work on actors of their own meanwhile.

    TooManyBadRecordsError past the recipe's share, or as soon as a step raises on so many documents that it will be."""
    actors = plan_actors(models_of(job.steps, job.tables), state.recipe.ray, state.reporter.say)
    watch = _watch(state, job)
    return _checked(state, read_inputs(state, job, actors, watch.see))


def read_again(state: Run, job: ReadJob, refiltering: Refiltering) -> list[ReadResult]:
    """2. The same of the parsed texts of every input file, where the run starts from an earlier output."""
    watch = _watch(state, job)
    return _checked(state, run_phase(state, refilter_phase(state.plan, job, refiltering, watch.see)))


def _watch(state: Run, job: ReadJob) -> BadRecordWatch:
    num_bytes = sum(unit.input.size for unit in state.plan.units)
    return BadRecordWatch(allowed=state.recipe.limits.max_bad_records, num_bytes=num_bytes, strict=job.strict)


def _checked(state: Run, results: list[ReadResult]) -> list[ReadResult]:
    """The results, unless too much is bad; what was raised is said."""
    check_bad_records(results, state.recipe.limits.max_bad_records)
    for line in announcement(results):
        state.reporter.say(line)
    return results


def compare(state: Run, documents: Sequence[ReadResult]) -> DedupResult:
    """3. The verdicts on what survived reading."""
    started = time.perf_counter()
    job = dedup_job(state.plan, documents)
    engine = engine_of(state, job)
    with state.reporter.phase("compare", NUM_STEPS) as progress:
        compared = deduplicate(job, engine, notify=lambda name: progress.step(1, name))
        note = note_of(documents, compared)
        progress.step(0, note)
    state.took("compare", started, note)
    return compared


def tokenize(state: Run, groups: Sequence[Group]) -> list[TokenizeResult]:
    """4. What each unit keeps, as tokens."""
    return run_phase(state, tokenize_phase(state.plan, groups))


def shard(state: Run, groups: Sequence[Group]) -> list[Shard]:
    """5. All shards, by (source, number)."""
    cuts = run_phase(state, cut_phase(state.plan, groups))
    numbered = number_shards(groups, [cut.num_shards for cut in cuts])
    return run_phase(state, write_phase(state.plan, numbered))


def record(
    state: Run, job: ReadJob, groups: Sequence[Group], shards: Sequence[Shard], documents: Sequence[ReadResult]
) -> list[JoinResult]:
    """6. What the final facts of each unit come to, in plan order; the lineage tables are committed."""
    joined = run_phase(state, join_phase(state.plan, groups))
    small = small_tables(stages_of(state.recipe, job.tables), documents, joined)
    write_lineage(state, joined, shards, small)
    return joined


def publish(
    state: Run, index: Index, documents: Sequence[ReadResult], joined: Sequence[JoinResult], compared: DedupResult
) -> RunSummary:
    """7. What the run came to."""
    summary = summarise(state, index, documents, joined, compared)
    state.held.check()
    if keeps_facts(state.recipe):
        publish_parsed_texts(state.plan, documents)
    publish_output(state, index, summary, render_output)
    return summary
