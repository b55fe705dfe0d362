"""Read an input file, send each document through its source's steps, write what came of it: a unit of work.

documents/…, texts/…, work/units/<key>/*.parquet    its rows, see pipeline/units/files.py
work/units/<key>/unit.json                         ReadResult; published last: its presence says that the unit is done
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from rich.filesize import decimal

from lineage.storage.folder import Folder
from pipeline.cluster.metrics import Rejections, StageFlow, WorkCounts
from pipeline.cluster.underway import UnitProgress
from pipeline.inputs.files import Input, open_input
from pipeline.inputs.ranges import fetched, read_selected
from pipeline.phases.phase import Phase, RunState, publish_result
from pipeline.phases.predicted import priced_again
from pipeline.phases.progress import a_second
from pipeline.phases.steps import step_tables
from pipeline.plan import InputChangedError, Unit, check_unchanged
from pipeline.recipe.tables import (
    PipelineRecipe,
    columns_added_by,
    columns_of_documents,
    effective_dedup,
    keeps_facts,
    tables_of,
)
from pipeline.results.unit_results import ReadResult
from pipeline.terminal import counted
from pipeline.units.facts import publish_facts
from pipeline.units.files import UnitFileOptions, UnitWriter
from pipeline.units.parsed_texts import without_purged
from pipeline.units.tally import UnitTally
from stages.chain import Chain, build_chain
from stages.document import Document, Outcome
from stages.html.extraction_child import processor_seconds
from stages.reading.options import Format, InputCounts, ReadOptions, RowFields, Unreadable
from stages.steps.catalogue import STAGES, StepTables

_BATCH_DOCUMENTS: Final = 64
_BATCH_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """What all units of a run share; shipped to each worker once. `key` is the plan's."""

    key: str = ""
    out: str
    steps: tuple[tuple[str, ...], ...]
    formats: tuple[Format, ...]
    fields: tuple[RowFields, ...]
    languages: tuple[str | None, ...]
    mime: tuple[tuple[str, ...], ...]
    namespaces: tuple[tuple[int, ...], ...]
    limits: tuple[int | None, ...]
    tables: StepTables
    unit_files: UnitFileOptions
    max_window_bytes: int
    max_compression_ratio: int
    strict: bool = False
    """Whether the first exception on a record ends the run."""
    isolation: bool = False
    """Whether extractors run in a child process: for a unit whose worker died, perhaps of a page."""


def read_job(recipe: PipelineRecipe, *, prepared: bool = True) -> ReadJob:
    """What units need of the recipe; RecipeError where a step cannot be built or, if its steps are to be
    `prepared`, one of its files not be read."""
    return ReadJob(
        out=Folder(recipe.run.output).url,
        steps=tuple(source.steps for source in recipe.source),
        formats=tuple(source.format for source in recipe.source),
        fields=tuple(source.row_fields for source in recipe.source),
        languages=tuple(source.language for source in recipe.source),
        mime=tuple(source.mime for source in recipe.source),
        namespaces=tuple(source.namespaces for source in recipe.source),
        limits=tuple(source.limit_documents for source in recipe.source),
        tables=step_tables(recipe, prepared=prepared),
        unit_files=unit_file_options(recipe),
        max_window_bytes=recipe.limits.max_window_bytes,
        max_compression_ratio=recipe.limits.max_compression_ratio,
    )


def unit_file_options(recipe: PipelineRecipe) -> UnitFileOptions:
    """What the files of a recipe's units hold."""
    return UnitFileOptions(
        dedup=effective_dedup(recipe),
        tables=tables_of(recipe),
        stages=tuple(dict.fromkeys(step for source in recipe.source for step in source.steps)),
        whole_ledger=recipe.quality.ledger == "all",
        added=columns_added_by(recipe),
        added_to_documents=columns_of_documents(recipe),
        keep_text=recipe.run.keep_text,
        keep_facts=keeps_facts(recipe),
        fragments=frozenset(source.name for source in recipe.source if source.fragments),
        are_cut=recipe.dedup.inside.is_on,
    )


def read_phase(
    run: RunState, job: ReadJob, units: Sequence[Unit], watch: Callable[[ReadResult], None]
) -> Phase[ReadJob, Unit, ReadResult]:
    """The reading of units whose steps hold no model that runs apart. A unit whose worker died is read again
    with its extractors in a child process."""
    # The operator is called after the stages of all sources, each once, in the order in which documents meet
    # them; steps of the user's own come last, since each source may have them at another place.
    used = [job.steps[index] for index in sorted({unit.source_index for unit in units})]
    stages = dict.fromkeys(stage for steps in used for stage in build_chain(steps, job.tables).stages)
    ordered = sorted(stages, key=lambda stage: STAGES.index(stage) if stage in STAGES else len(STAGES))
    return Phase(
        name="read and filter",
        operator="->".join(("read", *ordered)),
        kind="read",
        task=read_unit,
        result=ReadResult,
        job=job,
        units=units,
        size=unit_size,
        note=read_note_of(run),
        counts=read_counts(run.recipe),
        watch=watch,
        isolate=lambda job: replace(job, isolation=True),
    )


def unit_size(unit: Unit) -> float:
    """What a unit weighs: the bytes of its files, at least one."""
    return unit.size or 1.0


def read_note(results: Sequence[ReadResult], seconds: float) -> str:
    """In a line: what was read so far, and how fast, once that says something."""
    documents, size = sum(unit.num_documents for unit in results), sum(unit.num_bytes for unit in results)
    speed = a_second(size, seconds, lambda rate: f"{decimal(rate)}/s of input")
    return f"{counted(documents, 'document')}{speed}"


def read_note_of(run: RunState) -> Callable[[Sequence[ReadResult], float], str]:
    """The same, and what the run costs in all by what was read."""

    def note(results: Sequence[ReadResult], seconds: float) -> str:
        return read_note(results, seconds) + priced_again(results, run.plan.num_bytes, run.prediction)

    return note


def read_counts(recipe: PipelineRecipe) -> Callable[[ReadResult], WorkCounts]:
    """What the metrics count of a unit of one of the recipe's sources."""
    return functools.partial(_work_counts, {source.name: source.steps for source in recipe.source})


def _work_counts(steps: Mapping[str, Sequence[str]], result: ReadResult) -> WorkCounts:
    return WorkCounts(
        num_documents=result.num_documents,
        num_bytes=result.num_bytes,
        page_bytes=result.html_bytes,
        stages=tuple(_flow(steps[result.source], result)),
        rejections=tuple(Rejections(count.stage, count.rule, count.num) for count in result.rejected),
    )


def _flow(steps: Sequence[str], result: ReadResult) -> Iterator[StageFlow]:
    """What came into each stage that the unit passed its documents through, in order."""
    rejected = Counter[str]()
    for count in result.rejected:
        rejected[count.stage] += count.num
    num_left = result.num_documents
    for stage in steps:
        if stage in result.seconds:
            yield StageFlow(stage, num_left, result.seconds[stage])
            num_left -= rejected[stage]


def chain_of(job: ReadJob, source_index: int, first: int = 0) -> Chain:
    """The chain of a source, made once in each process, whose steps from the `first` on will be called."""
    return _chain(job.steps[source_index], _ByKey(job), first)


@functools.lru_cache(maxsize=4)
def _chain(steps: tuple[str, ...], job: _ByKey, first: int) -> Chain:
    chain = build_chain(steps, job.tables)
    chain.prepare(first)  # a model that is missing here is no fault of the first document
    return chain


class _ByKey:
    """A ReadJob that hashes by its key, so that a worker process builds each chain once. What steps keep of
    what they measured is no part of that key: it changes no byte that the run publishes for others."""

    def __init__(self, job: ReadJob) -> None:
        self.tables, self.key = job.tables, (job.key, job.tables.keep_measured)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and other.key == self.key


def read_unit(job: ReadJob, unit: Unit) -> ReadResult:
    """Read the input files of a unit and publish what came of them."""
    out = Folder(job.out)
    tally = tally_of(job, unit)
    started = processor_seconds()
    with named_in_errors(unit), UnitWriter(out, job.unit_files, unit, tally) as writer:
        parsed = writer.keep_document if job.unit_files.keep_text else None
        with contextlib.closing(outcomes_of(job, unit, tally, parsed)) as outcomes:
            for outcome in outcomes:
                writer.add(outcome)
    tally.seconds["all"] = processor_seconds() - started
    if unit.span is not None:
        return publish_result(out, unit.marker, tally.result(writer.part, writer.texts))
    return publish_unit(job, unit, writer, tally)


def publish_unit(job: ReadJob, unit: Unit, writer: UnitWriter, tally: UnitTally) -> ReadResult:
    """Publish what vouches for the files of a whole unit, which are published; what came of it."""
    out = Folder(job.out)
    result = tally.result(writer.part, without_purged(out, writer.texts, tally))
    if job.unit_files.keep_facts:
        result = replace(result, facts=publish_facts(out, unit, result))
    return publish_result(out, unit.marker, result)


def tally_of(job: ReadJob, unit: Unit) -> UnitTally:
    """The tally of a unit of which nothing is read yet."""
    first = unit.inputs[0]
    return UnitTally(
        key=unit.key,
        source=unit.source,
        file=first.name,
        url=first.url,
        num_bytes=unit.size,
        strict=job.strict,
    )


def outcomes_of(
    job: ReadJob,
    unit: Unit,
    tally: UnitTally,
    parsed: Callable[[Document], None] | None = None,
    stop: int | None = None,
) -> Generator[Outcome, None, None]:
    """What the unit's steps make of its documents, in order; with `stop` the steps before that position. What
    is read is counted in `tally`, and `parsed` sees what parse lets pass. InputChangedError behind the last
    one if a file is not what was planned."""
    chain, reading, progress = (
        chain_of(job, unit.source_index),
        _Reading(job, unit),
        UnitProgress(unit.marker),
    )
    with contextlib.closing(reading.items(tally)) as items, chain.isolation(job.isolation):
        batches = batches_of(items, tally, lambda: progress.tell(reading.num_bytes / unit_size(unit)))
        yield from chain.run(batches, tally.seconds, parsed, stop)
        check_unchanged(job.key, unit)


class _Reading:
    """The files of a unit, read one after the other; `num_bytes` are read so far."""

    def __init__(self, job: ReadJob, unit: Unit) -> None:
        self._job, self._unit = job, unit
        self._num_before = 0
        self._stream: BinaryIO | None = None

    @property
    def num_bytes(self) -> int:
        begin = 0 if self._unit.span is None else self._unit.span.begin
        return self._num_before + (0 if self._stream is None else max(self._stream.tell() - begin, 0))

    def items(self, tally: UnitTally) -> Generator[Document | Unreadable, None, None]:
        """What the files hold, in order; each is counted in `tally` when all of it was taken."""
        from stages.reading.reader import read_documents  # not needed by a run from parsed texts

        job, unit = self._job, self._unit
        if unit.inputs[0].records is not None:
            yield from self._selected(tally)
            return
        for found in unit.inputs:
            counts = InputCounts()
            with open_planned(job, unit, found) as stream:
                self._stream = stream
                try:
                    yield from read_documents(stream, read_options(job, unit, found), counts)
                except OSError:
                    check_unchanged(job.key, unit)  # that says more, where a file is another one now
                    raise
                self._stream = None
            self._num_before += found.size
            if unit.span is not None:
                tally.keep_span(counts)
            tally.count_file(found, counts)

    def _selected(self, tally: UnitTally) -> Generator[Document | Unreadable, None, None]:
        """The same of files of which records are selected, and nothing else is fetched."""
        with contextlib.closing(fetched(self._unit.inputs)) as records:
            for found in self._unit.inputs:
                counts = InputCounts()
                assert found.records is not None
                options = read_options(self._job, self._unit, found)
                for each in itertools.islice(records, len(found.records)):
                    yield from read_selected(each, found.records, options, counts)
                    self._num_before += each.record.length
                counts.end = found.size
                tally.count_file(found, counts)


def read_options(job: ReadJob, unit: Unit, found: Input) -> ReadOptions:
    """How a file of a unit is read."""
    source = unit.source_index
    return ReadOptions(
        source=unit.source,
        file=found.name,
        format=job.formats[source],
        fields=job.fields[source],
        language=job.languages[source],
        mime=job.mime[source],
        namespaces=job.namespaces[source],
        max_document_bytes=job.tables.max_document_bytes,
        max_window_bytes=job.max_window_bytes,
        max_compression_ratio=job.max_compression_ratio,
        size=found.size,
        limit_documents=job.limits[source],
        span=unit.span,
    )


@contextlib.contextmanager
def named_in_errors(unit: Unit) -> Iterator[None]:
    """An exception that leaves the block names the input file."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {unit.shown} was read")
        raise


def open_planned(job: ReadJob, unit: Unit, found: Input) -> BinaryIO:
    """The file as a stream; InputChangedError if it is gone."""
    try:
        return open_input(found)
    except FileNotFoundError as error:
        check_unchanged(job.key, unit)
        raise InputChangedError(f"{found.url} was gone for a moment: make the same call again") from error


# The chain sees a few documents at a time: a model answers many at once, and a batch of long ones must fit in
# memory.
def batches_of(
    items: Iterable[Document | Unreadable], tally: UnitTally, done: Callable[[], None]
) -> Iterator[list[Document]]:
    """The documents, a few megabytes at a time; all items are counted. `done` is called when the chain is
    done with a batch."""
    batch: list[Document] = []
    num_bytes = 0
    for item in items:
        if isinstance(item, Unreadable):
            tally.count_unreadable(item)
            continue
        tally.count(item)
        batch.append(item)
        num_bytes += len(item.payload) + len(item.text) + len(item.metadata or "") + len(item.url or "")
        if len(batch) == _BATCH_DOCUMENTS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
            done()
    yield batch
