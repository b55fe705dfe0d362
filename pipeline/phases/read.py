"""Read an input file, send each document through its source's steps, write what came of it: a unit of work.

documents/<source>/part-NNNNN.parquet   clean texts that survived
work/units/<key>/documents.parquet      a row for every document record
work/units/<key>/{edits,findings,keys,excerpts}.parquet
work/units/<key>/unit.json              ReadResult; published last, so its presence says that the unit is done
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

from lineage.ids import add_digests, show_digest, sort_key, text_hash
from lineage.index.output_index import part_name
from lineage.storage.folder import Folder
from lineage.store import tables
from pipeline.cluster.metrics import Rejections, StageFlow, WorkCounts
from pipeline.inputs.files import open_input
from pipeline.parquet.rows import RowWriter
from pipeline.phases.phase import Phase, publish_result
from pipeline.phases.results import CleanPart, ReadResult, RuleCount, UnreadableStretch
from pipeline.phases.steps import step_tables
from pipeline.plan import InputChangedError, RunPlan, Unit, check_unchanged
from pipeline.recipe import PipelineRecipe, comparing
from pipeline.report.excerpts import ExcerptKeeper
from pipeline.report.faults import FaultTally, StrictError, fault_of, strict_message
from stages.chain import Chain, StepTables, build_chain
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.document import STAGES, Document, Outcome, Rejection
from stages.reading.options import Format, InputCounts, ReadOptions, RowFields, Unreadable
from stages.reading.reader import read_documents
from stages.steps.url import url_host, url_key

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
    tables: StepTables
    dedup: DedupTable
    whole_ledger: bool
    strict: bool = False
    """Whether the first exception on a record ends the run."""
    isolation: bool = False
    """Whether extractors run in a child process: for a unit whose worker died, perhaps of a page."""


def read_job(recipe: PipelineRecipe) -> ReadJob:
    """What units need of the recipe; RecipeError where a step cannot be built or one of its files not be read."""
    return ReadJob(
        out=Folder(recipe.run.output).url,
        steps=tuple(source.steps for source in recipe.source),
        formats=tuple(source.format for source in recipe.source),
        fields=tuple(source.row_fields for source in recipe.source),
        tables=step_tables(recipe),
        dedup=comparing(recipe),
        whole_ledger=recipe.quality.ledger == "all",
    )


def read_phase(plan: RunPlan, job: ReadJob, watch: Callable[[ReadResult], None]) -> Phase[ReadJob, Unit, ReadResult]:
    """The reading of all units. A unit whose worker died is read again with its extractors in a child process."""
    steps = {source.name: source.steps for source in plan.recipe.source}
    return Phase(
        name="read and filter",
        operator="->".join(("read", *_stages(job))),
        stage="read",
        task=read_unit,
        result=ReadResult,
        job=job,
        items=plan.units,
        size=lambda unit: unit.input.size or 1.0,
        note=_note,
        counts=functools.partial(_counts, steps),
        watch=watch,
        isolate=lambda job: replace(job, isolation=True),
    )


def _stages(job: ReadJob) -> tuple[str, ...]:
    """The stages of all sources, each once, in the order in which documents meet them; steps of the user's own last."""
    named = dict.fromkeys(stage for steps in job.steps for stage in build_chain(steps, job.tables).stages)
    return tuple(sorted(named, key=lambda stage: STAGES.index(stage) if stage in STAGES else len(STAGES)))


def _note(results: Sequence[ReadResult], seconds: float) -> str:
    documents, size = sum(unit.num_documents for unit in results), sum(unit.num_bytes for unit in results)
    return f"{documents:,} documents, {size / 1e6 / seconds:.1f} MB/s of input"


def _counts(steps: Mapping[str, Sequence[str]], result: ReadResult) -> WorkCounts:
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


@dataclass(slots=True, kw_only=True)
class UnitTally:
    """What a unit has counted so far. `rejected` maps (stage, rule) to (number, digest of doc_ids). With `strict` a
    record on which something was raised is a StrictError."""

    key: str
    source: str
    file: str
    url: str
    num_bytes: int
    counts: InputCounts = field(default_factory=InputCounts)
    unreadable: list[Unreadable] = field(default_factory=list)
    num_documents: int = 0
    digest: int = 0
    rejected: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    num_survivors: int = 0
    num_chars: int = 0
    html_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultTally = field(default_factory=FaultTally)
    strict: bool = False

    def count(self, document: Document) -> None:
        self.num_documents += 1
        self.html_bytes += document.num_bytes
        self.digest = add_digests((self.digest, int.from_bytes(document.doc_id, "big")))

    def count_rejection(self, rejection: Rejection) -> None:
        cause = rejection.finding.stage, rejection.finding.rule
        number, digest = self.rejected.get(cause, (0, 0))
        doc_id = int.from_bytes(rejection.document.doc_id, "big")
        self.rejected[cause] = number + 1, add_digests((digest, doc_id))
        self._count_fault(rejection)

    def count_unreadable(self, stretch: Unreadable) -> None:
        self.unreadable.append(stretch)
        self._count_fault(stretch)

    def _count_fault(self, item: Rejection | Unreadable) -> None:
        row = fault_of(item)
        if row is None:
            return
        if self.strict:
            raise StrictError(strict_message(row))
        self.faults.add(row)

    def result(self, part: CleanPart) -> ReadResult:
        """What the whole unit counted, with the part that it published."""
        return ReadResult(
            key=self.key,
            source=self.source,
            file=self.file,
            url=self.url,
            num_bytes=self.num_bytes,
            num_records=self.counts.num_records,
            by_type=self.counts.by_type,
            by_mime=self.counts.by_mime,
            by_status=self.counts.by_status,
            unreadable=tuple(UnreadableStretch(u.offset, u.length, u.error) for u in self.unreadable),
            num_documents=self.num_documents,
            digest=show_digest(self.digest),
            rejected=tuple(
                RuleCount(stage, rule, num, show_digest(digest))
                for (stage, rule), (num, digest) in sorted(self.rejected.items())
            ),
            num_survivors=self.num_survivors,
            num_chars=self.num_chars,
            html_bytes=self.html_bytes,
            faults=tuple(self.faults.sorted()),
            seconds={name: round(value, 6) for name, value in sorted(self.seconds.items())},
            part=part,
        )


@functools.lru_cache(maxsize=4)
def _chain(steps: tuple[str, ...], job: _ByKey) -> Chain:
    chain = build_chain(steps, job.tables)
    chain.prepare()  # a model that is missing here is no fault of the first document
    return chain


class _ByKey:
    """A ReadJob that hashes by its key, so that a worker process builds each chain once."""

    def __init__(self, job: ReadJob) -> None:
        self.tables, self.key = job.tables, job.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and other.key == self.key


def read_unit(job: ReadJob, unit: Unit) -> ReadResult:
    """Read one input file and publish what came of it."""
    out = Folder(job.out)
    found = unit.input
    tally = UnitTally(
        key=unit.key, source=unit.source, file=found.name, url=found.url, num_bytes=found.size, strict=job.strict
    )
    chain = _chain(job.steps[unit.source_index], _ByKey(job))
    started = time.perf_counter()
    with (
        _named_in_errors(found.url),
        UnitWriter(out, job, unit, tally) as writer,
        _open_planned(job, unit) as stream,
        chain.isolation(job.isolation),
    ):
        options = ReadOptions(
            source=unit.source,
            file=unit.input.name,
            format=job.formats[unit.source_index],
            fields=job.fields[unit.source_index],
            max_document_bytes=job.tables.max_document_bytes,
        )
        for outcome in chain.run(_batches(read_documents(stream, options, tally.counts), tally), tally.seconds):
            writer.add(outcome)
        check_unchanged(job.key, unit)
    tally.seconds["all"] = time.perf_counter() - started
    return publish_result(out, unit.marker, tally.result(writer.part))


@contextlib.contextmanager
def _named_in_errors(url: str) -> Iterator[None]:
    """An exception that leaves the block names the input file."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {url} was read")
        raise


def _open_planned(job: ReadJob, unit: Unit) -> BinaryIO:
    try:
        return open_input(unit.input)
    except FileNotFoundError as error:
        check_unchanged(job.key, unit)
        raise InputChangedError(f"{unit.input.url} was gone for a moment: make the same call again") from error


def _batches(items: Iterable[Document | Unreadable], tally: UnitTally) -> Iterator[list[Document]]:
    """The documents, a few megabytes at a time; all items are counted."""
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
    yield batch


class UnitWriter:
    """The files of a unit, published together when the block ends well."""

    def __init__(self, out: Folder, job: ReadJob, unit: Unit, tally: UnitTally) -> None:
        self._job, self._unit, self._tally = job, unit, tally
        self._stack = contextlib.ExitStack()
        folder = unit.folder

        def rows(name: str, schema: Any) -> RowWriter:
            return self._stack.enter_context(RowWriter(out, name, schema))

        self._part = rows(part_name("documents", unit.source, unit.file_index), tables.PART)
        self._documents = rows(f"{folder}/documents.parquet", tables.DOCUMENTS)
        self._edits = rows(f"{folder}/edits.parquet", tables.EDITS)
        self._findings = rows(f"{folder}/findings.parquet", tables.FINDINGS)
        self._keys = rows(f"{folder}/keys.parquet", tables.KEYS)
        self._excerpt_rows = rows(f"{folder}/excerpts.parquet", tables.EXCERPTS)
        self._excerpts = ExcerptKeeper()
        self._signer = Signer(job.dedup) if job.dedup.near else None

    def __enter__(self) -> UnitWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            for excerpt in self._excerpts.rows():
                self._excerpt_rows.add(excerpt)
        self._stack.__exit__(*error)

    @property
    def part(self) -> CleanPart:
        """The part, once the block has ended."""
        return CleanPart(file=self._part.name, num_rows=self._part.num_rows, hash=self._part.hash)

    def add(self, outcome: Outcome) -> None:
        """Write one document's rows."""
        if isinstance(outcome, Rejection):
            self._add_rejected(outcome)
        else:
            self._add_survivor(outcome)

    def _add_rejected(self, rejection: Rejection) -> None:
        document, finding = rejection.document, rejection.finding
        self._tally.count_rejection(rejection)
        self._excerpts.offer(document.doc_id, finding.stage, finding.rule, document.text)
        row = _record_row(document)
        row |= {
            "status": "rejected",
            "stage": finding.stage,
            "rule": finding.rule,
            "value": finding.value,
            "threshold": finding.threshold,
        }
        self._documents.add(row)
        if self._job.whole_ledger:
            self._add_findings(document, (*document.findings, *rejection.findings, finding))

    def _add_survivor(self, document: Document) -> None:
        tally, part_row = self._tally, self._tally.num_survivors
        tally.num_survivors += 1
        tally.num_chars += len(document.text)
        clean_hash = text_hash(document.text)
        row = _record_row(document)
        row |= {"clean_hash": clean_hash, "status": "kept", "part": self._unit.file_index, "part_row": part_row}
        self._documents.add(row)
        self._part.add({name: getattr(document, name) for name in tables.PART.names})
        for edit in document.edits:
            self._edits.add(
                {"k": row["k"], "doc_id": document.doc_id, "stage": edit.stage, "kind": edit.kind, "count": edit.count}
            )
        if self._job.whole_ledger:
            self._add_findings(document, document.findings)
        started = time.perf_counter()
        self._keys.add(
            {
                "doc_id": document.doc_id,
                "source_index": self._unit.source_index,
                "file_index": self._unit.file_index,
                "offset": document.place.offset,
                "part_row": part_row,
                "num_chars": len(document.text),
                "captured_at": document.captured_at,
                "clean_hash": clean_hash,
                "url_key": url_key(document.url) if document.url else None,
                "signature": self._signer.signature(document.text) if self._signer else None,
            }
        )
        tally.seconds["signature"] = tally.seconds.get("signature", 0.0) + time.perf_counter() - started

    def _add_findings(self, document: Document, findings: tuple[Any, ...]) -> None:
        for finding in findings:
            self._findings.add(
                {
                    "k": sort_key(document.doc_id),
                    "doc_id": document.doc_id,
                    "stage": finding.stage,
                    "rule": finding.rule,
                    "value": finding.value,
                    "threshold": finding.threshold,
                    "verdict": "reject" if finding.rejected else "keep",
                }
            )


def _record_row(document: Document) -> dict[str, Any]:
    """The columns of tables.RECORD_FIELDS, and k."""
    return {
        "k": sort_key(document.doc_id),
        "doc_id": document.doc_id,
        "source": document.source,
        "url": document.url,
        "host": url_host(document.url) if document.url else None,
        "warc_file": document.place.file,
        "warc_offset": document.place.offset,
        "warc_length": document.place.length,
        "record_id": document.record_id,
        "captured_at": document.captured_at,
        "charset": document.charset,
        "raw_hash": document.raw_hash,
        "text_hash": document.text_hash,
        "num_chars": len(document.text),
        "language": document.language,
        "language_score": document.language_score,
    }
