"""`sluice run`, read from top to bottom: from crawl files to a finished output.

    1. plan       list the inputs; refuse an output folder that holds another run
    2. read       each input file, large ones in spans: records → documents → the source's steps → clean texts and facts
    3. compare    identity, URL, exact and near duplicates over the whole corpus → verdicts; with [dedup.inside]
                  what is repeated inside documents is cut, and only then are clean texts published
    4. tokenize   what is kept, file by file, in the order of a keyed hash
    5. shard      part sources by language, [[bucket]] and [repeat]; cut each group of files, or part of one, into
                  shards and write them; with tokenize.off there is neither 4 nor 5
    6. record     join all facts; write and commit the lineage tables
    7. publish    excerpts, report, checksums, and last index.json

Every phase is made of units that publish their files whole and are skipped where they stand: the same call
after a kill continues, and repeats no finished unit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.filesize import decimal

from lineage.index.output_index import Index, Shard
from lineage.openlineage import job_events
from lineage.recipe import RecipeError
from lineage.storage.lock import hold
from pipeline.cluster.session import units_session, what_starts
from pipeline.cluster.tasks import TaskResources, check_resources
from pipeline.dedup.compare import NUM_STEPS, dedup_job, engine_of, note_of
from pipeline.dedup.corpus import deduplicate
from pipeline.dedup.dates import check_dates
from pipeline.dedup.inside.process import cut_inside
from pipeline.job_facts import run_facts, written_output
from pipeline.model_steps.actors import check_can_work, models_of, plan_actors
from pipeline.model_steps.phase import read_inputs
from pipeline.phases.buckets import PartedGroups, part_groups
from pipeline.phases.groups import Group, make_groups
from pipeline.phases.join import join_phase
from pipeline.phases.phase import RunState, run_phase
from pipeline.phases.predicted import prediction_of
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.publish import output_index, publish_output, publish_parsed_texts, summarise
from pipeline.phases.read import ReadJob, read_job
from pipeline.phases.record import write_lineage
from pipeline.phases.shard import cut_phase, number_shards, write_phase
from pipeline.phases.small_tables import small_tables
from pipeline.phases.steps import stages_of
from pipeline.phases.tokenize import check_tokenizer, tokenize_units, tokenizer_of
from pipeline.plan import GAVE_UP, RunPlan, places_with_credentials, plan_run
from pipeline.recipe.checks import unread_keys
from pipeline.recipe.tables import UNIT_KINDS, PipelineRecipe, keeps_facts
from pipeline.refilter.earlier import (
    Refiltering,
    check_unpurged,
    open_earlier,
    plan_from,
    record_reuse,
    starts_of,
    tokens_to_copy,
    with_earlier_purges,
)
from pipeline.refilter.unit import refilter_phase
from pipeline.report.render import render_output
from pipeline.results.dedup_result import DedupResult
from pipeline.results.run_summary import InsideSummary, RunSummary, read_summary
from pipeline.results.unit_results import JoinResult, ReadResult, TokenizeResult
from pipeline.same_run import check_same_run
from pipeline.terminal import counted
from pipeline.units.bad_records import BadRecordWatch, TooManyBadRecordsError, announcement, check_bad_records
from pipeline.units.placed_tokens import PlacedTokens


def run(
    recipe: PipelineRecipe,
    reporter: ProgressReporter,
    *,
    strict: bool = False,
    from_output: str | None = None,
    trial: bool = False,
) -> RunSummary:
    """Carry a data recipe out, or continue it; what it came to, as OUT/run.json has it. With `from_output`
    the input is the texts that this earlier output kept, and no step is run again that is as it was there. A
    `trial` takes the place of an earlier one with other settings.

    RecipeError if the recipe is wrong or the output holds another run; bad_records.TooManyBadRecordsError
    past limits.max_bad_records; tasks.WorkerDiedError if a unit's worker dies on every try. With `strict`
    faults.StrictError at the first record on which a reader or step raises."""
    run_input = from_inputs(recipe) if from_output is None else from_texts(recipe, from_output)
    plan, job = run_input.plan, replace(run_input.job, key=run_input.plan.key, strict=strict)
    for line in unread_keys(recipe):
        reporter.say(line)
    if places := places_with_credentials(plan):
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        reporter.say(f"The credentials of {places[0]}{more} are used, and recorded nowhere.")
    with hold(plan.out, "sluice run") as held:
        if check_same_run(plan, reporter.say, trial=trial):
            reporter.say(f"{plan.out.url} is finished: nothing to do.")
            return read_summary(plan.out)
        with job_events(run_facts(plan)) as facts:
            state = RunState(plan=plan, reporter=reporter, held=held, prediction=prediction_of(plan))
            try:
                summary = phases(state, job, run_input)
            except FileNotFoundError:
                run_input.check()  # that says more, where a purge took the file meanwhile
                raise
            facts.outputs = [written_output(plan, summary)]
    return summary


def phases(state: RunState, job: ReadJob, run_input: RunInput) -> RunSummary:
    """Those of a run that holds its output."""
    plan, reporter, recipe = state.plan, state.reporter, state.recipe
    tokenizer, lines = tokenizer_of(recipe, run_input.placed)
    for line in lines:
        reporter.say(line)
    starting = "" if recipe.ray.in_process else f"; {what_starts(recipe.ray.address)}"
    reporter.say(f"{counted(plan.num_files, 'input file')}, {decimal(plan.num_bytes)}{starting}")
    with units_session(recipe.ray):
        for kind in UNIT_KINDS:  # now, and not when the first unit of its kind comes
            check_resources(TaskResources.of(recipe.ray, kind))
        read_results = read(state, job, run_input)
        compared = compare(state, read_results)
        inside: InsideSummary | None = None
        if recipe.dedup.inside.is_on:
            read_results, compared, inside = cut_inside(state, read_results, compared)
        groups = make_groups(plan, compared)
        parted, shards = PartedGroups(whole=groups, groups=groups), list[Shard]()
        if not recipe.tokenize.off:
            tokenize(state, groups, read_results, run_input.placed)
            parted = part_groups(state, groups)
            shards = shard(state, parted.groups)
        joined = record(state, job, parted, shards, read_results)
        # The last that can refuse the run: index.json is not there yet.
        run_input.check()
        run_input.record_reuse(state)
    index = output_index(tokenizer, shards, plan.units, read_results, joined)
    return publish(state, index, read_results, joined, compared, parted=parted, inside=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """Where a run's documents come from: its plan, what its units need, how they are read, the tokens that may
    be copied, and what is recorded of it once the lineage tables are committed. `check` raises where they have
    changed since."""

    plan: RunPlan
    job: ReadJob
    read: Callable[[RunState, ReadJob, BadRecordWatch], list[ReadResult]]
    placed: PlacedTokens | None = None
    check: Callable[[], None] = lambda: None
    record_reuse: Callable[[RunState], None] = lambda state: None


def from_inputs(recipe: PipelineRecipe) -> RunInput:
    """The documents of the recipe's input files. Models among the steps work on actors of their own
    meanwhile."""
    check_tokenizer(recipe)
    job = read_job(recipe)
    models = models_of(job.steps, job.tables)
    check_can_work(models, recipe.ray)

    def read_files(state: RunState, job: ReadJob, watch: BadRecordWatch) -> list[ReadResult]:
        return read_inputs(state, job, plan_actors(models, recipe.ray, state.reporter.say), watch.see)

    plan = plan_run(recipe)
    if recipe.purges.honour:
        # The plan says which purges it honours: one that ended while the inputs were listed is among them.
        job = read_job(recipe, prepared=False)  # the steps' files were read before
    return RunInput(plan=plan, job=job, read=read_files)


def from_texts(recipe: PipelineRecipe, output: str) -> RunInput:
    """The parsed texts of an earlier output, less what was purged from it."""
    earlier = open_earlier(output)
    recipe = with_earlier_purges(recipe, earlier)
    plan = plan_from(recipe, earlier)
    job = read_job(recipe, prepared=False)  # most steps will not be called
    refiltering = Refiltering(earlier=earlier, starts=starts_of(plan, earlier))
    placed = tokens_to_copy(plan, earlier)
    if placed is None:
        check_tokenizer(recipe)

    def read_texts(state: RunState, job: ReadJob, watch: BadRecordWatch) -> list[ReadResult]:
        return run_phase(state, refilter_phase(plan, job, refiltering, watch.see))

    return RunInput(
        plan=plan,
        job=job,
        read=read_texts,
        placed=placed,
        check=lambda: check_unpurged(earlier),
        record_reuse=lambda state: record_reuse(state, refiltering),
    )


def read(state: RunState, job: ReadJob, run_input: RunInput) -> list[ReadResult]:
    """2. What came of every input file, in plan order.

    TooManyBadRecordsError past the recipe's share, or as soon as a step raises on so many documents that it
    will be; RecipeError where the copy that stays hangs on dates, and no document has one."""
    allowed = state.recipe.limits.max_bad_records
    watch = BadRecordWatch(allowed=allowed, num_bytes=state.plan.num_bytes, strict=job.strict)
    try:
        read_results = run_input.read(state, job, watch)
        check_bad_records(read_results, allowed)
        check_dates(state.recipe, read_results)
    except (TooManyBadRecordsError, RecipeError):
        state.out.publish(GAVE_UP, b"")
        raise
    for line in announcement(read_results):
        state.reporter.say(line)
    return read_results


def compare(state: RunState, read_results: Sequence[ReadResult]) -> DedupResult:
    """3. The verdicts on what survived reading."""
    started = time.perf_counter()
    job = dedup_job(state.plan, read_results)
    engine = engine_of(state, job)
    with state.reporter.phase("compare", NUM_STEPS) as progress:
        compared = deduplicate(job, engine, notify=lambda name: progress.step(1, name))
        note = note_of(read_results, compared)
        progress.step(0, note)
    state.took("compare", started, note)
    return compared


def tokenize(
    state: RunState, groups: Sequence[Group], read_results: Sequence[ReadResult], placed: PlacedTokens | None
) -> list[TokenizeResult]:
    """4. What each unit keeps, as tokens."""
    return tokenize_units(state, groups, read_results, placed)


def shard(state: RunState, groups: Sequence[Group]) -> list[Shard]:
    """5. All shards, by (source, number)."""
    cuts = run_phase(state, cut_phase(state.plan, groups))
    numbered = number_shards(groups, [cut.num_shards for cut in cuts])
    return run_phase(state, write_phase(state.plan, numbered))


def record(
    state: RunState,
    job: ReadJob,
    parted: PartedGroups,
    shards: Sequence[Shard],
    read_results: Sequence[ReadResult],
) -> list[JoinResult]:
    """6. What the final facts of each unit come to, in plan order; the lineage tables are committed."""
    joined = run_phase(state, join_phase(state.plan, parted.whole, parted.groups))
    small = small_tables(stages_of(state.recipe, job.tables), read_results, joined)
    write_lineage(state, joined, shards, small)
    return joined


def publish(
    state: RunState,
    index: Index,
    read_results: Sequence[ReadResult],
    joined: Sequence[JoinResult],
    compared: DedupResult,
    *,
    parted: PartedGroups,
    inside: InsideSummary | None,
) -> RunSummary:
    """7. What the run came to."""
    summary = summarise(state, index, read_results, joined, compared)
    summary = replace(
        summary, bucket_cuts=parted.cuts, buckets=parted.sizes, repeats=parted.repeats, inside=inside
    )
    state.held.check()
    if keeps_facts(state.recipe):
        publish_parsed_texts(state.plan, read_results)
    publish_output(state, index, summary, render_output)
    return summary
