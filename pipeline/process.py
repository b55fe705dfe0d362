"""`sluice run`, read from top to bottom: from crawl files to a finished output.

    1. plan       list the inputs; refuse an output folder that holds another run
    2. read       each input file: records → documents → the source's steps → clean texts and facts
    3. compare    identity, URL, exact and near duplicates over the whole corpus → verdicts
    4. tokenize   what is kept, file by file, in the order of a keyed hash
    5. shard      cut each group of files into shards and write them
    6. record     join all facts; write and commit the lineage tables
    7. publish    excerpts, report, checksums, and last index.json

Every phase is made of units that publish their files whole and are skipped where they stand: the same call after a
kill continues, and repeats no finished unit.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lineage.index.output_index import Shard, read_index
from lineage.purge.purge_filter import honoured
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.store.delta import StoreError
from pipeline.cluster import engine
from pipeline.dedup.corpus import DedupJob, DedupResult, deduplicate
from pipeline.dedup.inputs import DedupUnit, EarlierFile
from pipeline.phases import join as facts
from pipeline.phases import tokenize as tokens
from pipeline.phases.phase import Done, Phase, Run, carry_out
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.publish import output_index, publish, summarise
from pipeline.phases.read import UnitJob, run_unit
from pipeline.phases.record import record
from pipeline.phases.tokenize import Group, TokenJob, UnitOfGroup, number_shards
from pipeline.plan import RUN, RunPlan, Unit, check_same_run, places_with_credentials, plan_run
from pipeline.recipe import RAY_STAGES, PipelineRecipe, comparing, recipe_of
from pipeline.report.faults import BadRecords, announcement, check_bad_records, stop_at_first, stop_if_hopeless
from stages.chain import CORPUS_STAGES, StepTables, build_chain
from stages.dedup.minhash import scheme_name
from stages.dedup.options import DedupTable
from stages.steps.purged import PurgedContent
from stages.steps.url import named_host, normalise_url
from stages.tokens.tokenizer import load_tokenizer

NUM_COMPARE_PHASES = 12
"""About how many phases comparing has: only the progress bar asks."""


def run(recipe: PipelineRecipe, reporter: ProgressReporter, *, strict: bool = False) -> dict[str, Any]:
    """Carry a data recipe out, or continue it; the content of OUT/run.json.

    RecipeError if the recipe is wrong or the output holds another run; faults.TooManyBadRecordsError past
    limits.max_bad_records; engine.WorkerDiedError if a unit's worker dies on every try. With `strict`
    faults.StrictError at the first record on which a reader or step raises."""
    tokenizer = load_tokenizer(recipe.tokenize.encoding)
    job = unit_job(recipe)
    plan = plan_run(recipe)
    if places := places_with_credentials(plan):
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        reporter.say(f"The credentials of {places[0]}{more} are used, and recorded nowhere.")
    with hold(plan.out, "sluice run"):
        if check_same_run(plan):
            reporter.say(f"{plan.out.url} is finished: nothing to do.")
            finished_before: dict[str, Any] = json.loads(plan.out.read(RUN))
            return finished_before
        state = Run(plan=plan, reporter=reporter)
        with engine.cluster(recipe.ray):
            for stage in RAY_STAGES:  # now, and not when the stage comes
                engine.check_resources(engine.TaskResources.of(recipe.ray, stage))
            read = read_inputs(state, replace(job, key=plan.key, strict=strict))
            compared = compare(state, read)
            groups = make_groups(plan, compared)
            tokenize(state, groups)
            shards = write_shards(state, groups)
            finished = finish_units(state, groups, shards)
            record(state, finished, shards, small_tables(state, job, read, finished))
        index = output_index(tokenizer, shards, plan.units, read, finished)
        summary = summarise(state, index, read, finished, compared)
        publish(plan, index, summary)
    return summary


def unit_job(recipe: PipelineRecipe) -> UnitJob:
    """What every unit needs of the recipe; RecipeError where a step cannot be built or one of its files not be read."""
    step_tables = StepTables(
        max_document_bytes=recipe.limits.max_document_bytes, url=recipe.url, parse=recipe.parse,
        language=recipe.language, quality=recipe.quality, classifier=recipe.classifier,
        decontaminate=recipe.decontaminate, pii=recipe.pii, encoding=recipe.tokenize.encoding,
        purged=purged_sets(recipe.purges.honour),
    )  # fmt: skip
    for source in recipe.source:
        build_chain(source.steps, step_tables).prepare()
    return UnitJob(
        key="", out=Folder(recipe.run.output).url, steps=tuple(source.steps for source in recipe.source),
        formats=tuple(source.format for source in recipe.source),
        fields=tuple(source.row_fields for source in recipe.source), tables=step_tables, dedup=comparing(recipe),
        whole_ledger=recipe.quality.ledger == "all",
    )  # fmt: skip


def purged_sets(honour: Sequence[str]) -> PurgedContent | None:
    """What earlier outputs purged, as the steps look for it; None where the recipe honours none."""
    if not honour:
        return None
    try:
        found = honoured(honour)
    except StoreError as error:
        raise RecipeError(f"purges.honour: {error}") from error
    return PurgedContent(
        doc_ids=found.doc_ids, raw_hashes=found.hashes, text_hashes=found.hashes, clean_hashes=found.hashes,
        urls=frozenset(map(normalise_url, found.urls)),
        hosts=frozenset(host for name in found.hosts if (host := named_host(name))),
    )  # fmt: skip


def read_inputs(state: Run, job: UnitJob) -> list[Done]:
    """Phase 2. What every unit counted, in plan order; TooManyBadRecordsError past the recipe's share, or as soon as a
    step raises on so many documents that it will be."""
    allowed, bad, seen = state.recipe.limits.max_bad_records, BadRecords(), list[Done]()

    num_bytes = sum(unit.input.size for unit in state.plan.units)

    def watch(done: Done) -> None:
        bad.add(done)
        seen.append(done)
        stop_if_hopeless(seen, bad, allowed, share_read=bad.num_bytes / max(1, num_bytes))
        if job.strict:
            stop_at_first([done])

    def note(done: Sequence[Done], seconds: float) -> str:
        documents, size = sum(unit["num_documents"] for unit in done), sum(unit["bytes"] for unit in done)
        return f"{documents:,} documents, {size / 1e6 / seconds:.1f} MB/s of input"

    units = state.plan.units
    read = carry_out(
        state,
        Phase(
            name="read and filter", stage="read", task=run_unit, job=job, items=units, note=note, size=_input_size,
            watch=watch,
        ),
    )  # fmt: skip
    check_bad_records(read, allowed)
    for said in announcement(read):
        state.reporter.say(said)
    return read


def _input_size(unit: Unit) -> float:
    return unit.input.size or 1.0


def compare(state: Run, read: Sequence[Done]) -> DedupResult:
    """Phase 3."""
    plan, table, started = state.plan, comparing(state.recipe), time.perf_counter()
    survivors = sum(unit["num_survivors"] for unit in read)
    earlier, num_earlier = earlier_files(table)
    job = DedupJob(
        table=table, work=plan.out.folder("work"), out=plan.out, num_rows=survivors + num_earlier,
        units=tuple(
            DedupUnit(source_index=unit.source_index, file_index=unit.file_index, keys=f"units/{unit.key}/keys.parquet",
                      part=done["part"]["file"])
            for unit, done in zip(plan.units, read, strict=True)
        ),
        group_files=state.recipe.tokenize.group_files, earlier=earlier,
    )  # fmt: skip
    with state.reporter.phase("compare", NUM_COMPARE_PHASES) as progress:
        result = deduplicate(
            job,
            notify=lambda name: progress.step(1, name),
            work=engine.TaskResources.of(state.recipe.ray, "compare"),
        )
        dropped = {stage: result.counts.get(stage, 0) for stage in CORPUS_STAGES}
        note = f"{survivors:,} documents, dropped: " + ", ".join(f"{num:,} {stage}" for stage, num in dropped.items())
        progress.step(0, note)
    state.took("compare", started, note)
    return result


def earlier_files(table: DedupTable) -> tuple[tuple[EarlierFile, ...], int]:
    """The files of the finished outputs to compare with, and how many documents they hold; RecipeError where one was
    signed in another way."""
    files, num_rows = [], 0
    for url in table.against:
        index, signed = read_index(url), scheme_name(recipe_of(Folder(url)).dedup)
        if signed != scheme_name(table):
            raise RecipeError(
                f"dedup.against: {url} was signed as {signed}, this run as {scheme_name(table)}: give both the same"
                " dedup.scheme, num_perm and shingle"
            )
        parts = {(part.source, part.part): part.file for part in index.documents}
        for entry in index.dedup:
            own = ((entry.part, parts[entry.source, entry.part]),)
            files.append(EarlierFile(out=Folder(url).url, dedup=entry.file, parts=own, dedup_hash=entry.hash))
            num_rows += entry.num_rows
    return tuple(files), num_rows


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


def _token_job(state: Run) -> TokenJob:
    table = state.recipe.tokenize
    return TokenJob(
        out=state.out.url, encoding=table.encoding, seed=state.recipe.run.seed, shard_tokens=table.shard_tokens
    )


def tokenize(state: Run, groups: Sequence[Group]) -> None:
    """Phase 4."""

    def note(done: Sequence[Done], seconds: float) -> str:
        num, chars = sum(unit["num_tokens"] for unit in done), sum(unit["num_chars"] for unit in done)
        return f"{num:,} tokens, {chars / 1e6 / seconds:.1f} M characters/s"

    items = [UnitOfGroup(unit=unit, verdicts=group.verdicts) for group in groups for unit in group.units]
    phase = Phase(
        name="tokenize", stage="tokenize", task=tokens.tokenize_unit, job=_token_job(state), items=items, note=note
    )
    carry_out(state, phase)


def write_shards(state: Run, groups: Sequence[Group]) -> list[Shard]:
    """Phase 5. All shards, by (source, number)."""
    job = _token_job(state)
    cuts = carry_out(state, Phase(name="cut groups", stage="cut", task=tokens.cut_group_task, job=job, items=groups))
    items = number_shards(groups, [cut["num_shards"] for cut in cuts])
    written = carry_out(
        state, Phase(name="write shards", stage="write", task=tokens.write_shard_task, job=job, items=items)
    )
    return [Shard(**shard) for shard in written]


def finish_units(state: Run, groups: Sequence[Group], shards: Sequence[Shard]) -> list[Done]:
    """Phase 6, first half: what each unit's final facts count, in plan order."""
    first_shard: dict[tuple[int, int], int] = {}
    next_shard: dict[str, int] = defaultdict(int)
    for group in groups:
        first_shard[group.source_index, group.number] = next_shard[group.source]
        next_shard[group.source] += len(tokens.read_cuts(state.out, group)) - 1
    assert sum(next_shard.values()) == len(shards)
    job = facts.FinishJob(out=state.out.url, first_shard=first_shard)
    items = [facts.UnitToFinish(unit=unit, group=replace(group, units=())) for group in groups for unit in group.units]
    return carry_out(state, Phase(name="join facts", stage="join", task=facts.finish_unit, job=job, items=items))


def small_tables(state: Run, job: UnitJob, read: Sequence[Done], finished: Sequence[Done]) -> dict[str, pa.Table]:
    """The lineage tables that fit in memory, by name."""
    steps, step_rules = facts.step_tables(stages_of(state.recipe, job), read, finished)
    inputs, unreadable = facts.input_tables(read)
    return {"steps": steps, "step_rules": step_rules, "inputs": inputs, "unreadable": unreadable}


def stages_of(recipe: PipelineRecipe, job: UnitJob) -> dict[str, tuple[str, ...]]:
    """The stages that each source's documents meet, in order: those of its chain, then those that compare."""
    table = comparing(recipe)
    switched_on = {"identity": True, "dedup.url": table.url, "dedup.exact": table.exact, "dedup.near": table.near}
    last = tuple(stage for stage in CORPUS_STAGES if switched_on[stage])
    return {source.name: (*build_chain(source.steps, job.tables).stages, *last) for source in recipe.source}
