"""The end of a run: the index, the summary, the report, the checksums; index.json comes last."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict

from lineage.allocator import give_back_freed_memory
from lineage.index.names import EXCERPTS_FILE, RECIPE_FILE, REPORT_FILE, RUN_FILE
from lineage.index.output_index import (
    Index,
    PartFile,
    Shard,
    TokenizerIdentity,
    make_index,
    publish_index,
)
from lineage.index.parsed_texts import ParsedPart, publish_texts
from lineage.purge.erase import remove_leftovers
from lineage.recipe import as_plain, as_toml
from lineage.secrets import recordable
from lineage.storage.folder import Folder
from lineage.store.checksum_update import WORK, cover_output
from lineage.store.work import clear_work
from pipeline.phases.join import merge_excerpts
from pipeline.phases.phase import RunState
from pipeline.plan import RunPlan, Unit
from pipeline.results.dedup_result import DedupResult
from pipeline.results.faults import as_kept
from pipeline.results.run_summary import ParsedTextsSize, RunSummary, encode_summary, first_odd_date
from pipeline.results.unit_results import JoinResult, ReadResult, UnitFile
from pipeline.units.bad_records import faults_of, unread_of, why_nothing_was_kept


def output_index(
    tokenizer: TokenizerIdentity,
    shards: Sequence[Shard],
    units: Sequence[Unit],
    read_results: Sequence[ReadResult],
    joined: Sequence[JoinResult],
) -> Index:
    """The index of a run's files; of texts alone with NO_TOKENIZER."""
    parts = [
        PartFile(source=unit.source, part=unit.file_index, **asdict(result.part))
        for unit, result in zip(units, read_results, strict=True)
    ]
    return make_index(tokenizer, shards, parts, [result.dedup for result in joined])


def summarise(
    state: RunState,
    index: Index,
    read_results: Sequence[ReadResult],
    joined: Sequence[JoinResult],
    compared: DedupResult,
) -> RunSummary:
    """What the run came to."""
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    rejected: dict[str, Counter[str]] = defaultdict(Counter)
    for unit, facts in zip(read_results, joined, strict=True):
        seconds[unit.source].update(unit.seconds)
        for stage, rule, number, _ in (*unit.rejected, *facts.dropped):
            rejected[stage][rule] += number
    num_kept = sum(facts.num_kept for facts in joined)
    return RunSummary(
        name=state.recipe.run.name,
        output=state.out.url,
        num_files=sum(unit.num_files for unit in read_results),
        num_bytes=sum(unit.num_bytes for unit in read_results),
        num_records=sum(unit.num_records for unit in read_results),
        num_unreadable=sum(len(unit.unreadable) for unit in read_results),
        unread=unread_of(read_results),
        num_documents=sum(unit.num_documents for unit in read_results),
        num_kept=num_kept,
        nothing_kept=None if num_kept else why_nothing_was_kept(read_results, rejected),
        num_tokens=index.num_tokens,
        num_shards=len(index.shards),
        rejected={stage: dict(rules) for stage, rules in rejected.items()},
        faults=as_kept(faults_of(read_results)),
        dedup=compared.counts.in_summary(),
        unlike_pages={
            state.recipe.source[int(number)].name: num for number, num in compared.counts.unlike_pages.items()
        },
        num_without_page=sum(unit.num_without_page for unit in read_results),
        num_compared=sum(unit.num_survivors for unit in read_results),
        num_without_date=sum(unit.num_without_date for unit in read_results),
        notes=sum((Counter(unit.notes) for unit in read_results), Counter()),
        odd_date=first_odd_date(read_results),
        order_fingerprint=index.order_fingerprint,
        content_fingerprint=index.content_fingerprint,
        seconds={
            source: {name: round(value, 3) for name, value in counter.items()}
            for source, counter in seconds.items()
        },
        phases=tuple(state.phases),
        datasets=tuple(state.datasets),
        devices=dict(state.devices),
        parsed_texts=_parsed_size(read_results),
        from_output=state.plan.from_output,
        prediction=state.prediction,
        identity=dict(state.plan.identity),
    )


def _parsed_size(read_results: Sequence[ReadResult]) -> ParsedTextsSize | None:
    if not any(unit.texts is not None for unit in read_results):
        return None
    return ParsedTextsSize(
        num_documents=sum(unit.texts.num_rows for unit in read_results if unit.texts is not None),
        bytes=sum(
            file.bytes for unit in read_results for file in (unit.texts, unit.facts) if file is not None
        ),
    )


def publish_parsed_texts(plan: RunPlan, read_results: Sequence[ReadResult]) -> None:
    """Publish texts.json, which names the parsed texts and the facts of all units."""
    none = UnitFile(file="", num_rows=0, hash="", bytes=0)
    parts = [
        ParsedPart(
            source=unit.source,
            part=unit.file_index,
            name=result.file,
            input_bytes=result.num_bytes,
            **asdict(result.texts or none),
            facts=result.facts.file,
            facts_hash=result.facts.hash,
            facts_bytes=result.facts.bytes,
            num_files=result.num_files,
        )
        for unit, result in zip(plan.units, read_results, strict=True)
        if result.facts is not None
    ]
    publish_texts(plan.out, parts, kept=plan.recipe.run.keep_text)


def publish_output(
    state: RunState, index: Index, summary: RunSummary, render_report: Callable[[Folder, Index], bytes]
) -> None:
    """Publish everything that readers open after the tables are committed, index.json last; then remove
    work/.

    HeldError where the output is no longer held: another may have finished it meanwhile, and purged it."""
    out = state.out
    out.write(EXCERPTS_FILE, merge_excerpts(out, state.plan.units))
    give_back_freed_memory()  # which the report's questions do not fill
    out.write(RECIPE_FILE, as_toml(recordable(as_plain(state.recipe))).encode())
    out.write(RUN_FILE, encode_summary(summary))
    report = render_report(out, index)
    # Rendering takes long enough for a lease to be lost. Another call may have finished this output and purged it: a
    # report from before would show purged texts.
    state.held.check()
    out.write(REPORT_FILE, report)
    # A killed call may have left another run.json or report of the same size: their sums must not be taken
    # over.
    cover_output(out, index, rewritten=(EXCERPTS_FILE, RECIPE_FILE, RUN_FILE, REPORT_FILE))
    remove_leftovers(out, also=("lineage/",))
    out.sync_all(WORK)  # of folders that a worker made and could not sync before it died, too
    state.held.check()
    publish_index(out, index)
    # work/ goes after the index: a call that finds an index repeats nothing, and one without needs these files.
    state.held.check()
    clear_work(out)
