"""One unit of work: read an input file, send each document through its source's steps, write what came of it.

documents/<source>/part-NNNNN.parquet   clean texts that survived
work/units/<key>/documents.parquet      a row for every document record
work/units/<key>/{edits,findings,keys,excerpts}.parquet
work/units/<key>/unit.json              counts; published last, so its presence says that the unit is done
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Final

from lineage.ids import add_digests, show_digest, sort_key, text_hash
from lineage.index.output_index import part_name
from lineage.storage.folder import Folder
from lineage.store import tables
from pipeline.inputs.files import open_input
from pipeline.parquet.rows import RowWriter, publish_marker
from pipeline.plan import InputChangedError, Unit, check_unchanged
from pipeline.report.excerpts import ExcerptKeeper
from pipeline.report.faults import FaultTally, StrictError, fault_of, strict_message
from stages.chain import Chain, StepTables, build_chain
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.document import Document, Outcome, Rejection
from stages.reading.options import Format, InputCounts, ReadOptions, RowFields, Unreadable
from stages.reading.reader import read_documents
from stages.steps.url import url_host, url_key

_BATCH_DOCUMENTS: Final = 64
_BATCH_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitJob:
    """What all units of a run share; shipped to each worker once."""

    key: str
    out: str
    steps: tuple[tuple[str, ...], ...]
    formats: tuple[Format, ...]
    fields: tuple[RowFields, ...]
    tables: StepTables
    dedup: DedupTable
    whole_ledger: bool
    strict: bool = False
    """Whether the first exception on a record ends the run."""


@dataclass(slots=True, kw_only=True)
class UnitSummary:
    """What a unit counted. `rejected` maps (stage, rule) to (number, digest of doc_ids). With `strict` a record
    on which something was raised is a StrictError."""

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

    def as_plain(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "source": self.source,
            "file": self.file,
            "url": self.url,
            "bytes": self.num_bytes,
            "num_records": self.counts.num_records,
            "by_type": dict(self.counts.by_type),
            "by_mime": dict(self.counts.by_mime),
            "by_status": dict(self.counts.by_status),
            "unreadable": [[u.offset, u.length, u.error] for u in self.unreadable],
            "num_documents": self.num_documents,
            "digest": show_digest(self.digest),
            "rejected": [[s, r, n, show_digest(d)] for (s, r), (n, d) in sorted(self.rejected.items())],
            "num_survivors": self.num_survivors,
            "num_chars": self.num_chars,
            "html_bytes": self.html_bytes,
            "faults": [asdict(row) for row in self.faults.sorted()],
            "seconds": {name: round(value, 6) for name, value in sorted(self.seconds.items())},
        }


@functools.lru_cache(maxsize=4)
def _chain(steps: tuple[str, ...], job: _ByKey) -> Chain:
    chain = build_chain(steps, job.tables)
    chain.prepare()  # a model that is missing here is no fault of the first document
    return chain


class _ByKey:
    """A UnitJob that hashes by its key, so that a worker process builds each chain once."""

    def __init__(self, job: UnitJob) -> None:
        self.tables, self.key = job.tables, job.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByKey) and other.key == self.key


def run_unit(job: UnitJob, unit: Unit, careful: bool) -> dict[str, Any]:
    """Do one unit and publish its files; returns the content of its unit.json."""
    out = Folder(job.out)
    found = unit.input
    summary = UnitSummary(
        key=unit.key, source=unit.source, file=found.name, url=found.url, num_bytes=found.size, strict=job.strict
    )
    chain = _chain(job.steps[unit.source_index], _ByKey(job))
    started = time.perf_counter()
    with (
        _named_in_errors(found.url), UnitWriter(out, job, unit, summary) as writer,
        _open_planned(job, unit) as stream, chain.isolation(careful),
    ):  # fmt: skip
        options = ReadOptions(
            source=unit.source,
            file=unit.input.name,
            format=job.formats[unit.source_index],
            fields=job.fields[unit.source_index],
            max_document_bytes=job.tables.max_document_bytes,
        )
        for outcome in chain.run(_batches(read_documents(stream, options, summary.counts), summary), summary.seconds):
            writer.add(outcome)
        check_unchanged(job.key, unit)
    summary.seconds["all"] = time.perf_counter() - started
    return publish_marker(out, unit.marker, summary.as_plain() | writer.published())


@contextlib.contextmanager
def _named_in_errors(url: str) -> Iterator[None]:
    """An exception that leaves the block names the input file."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {url} was read")
        raise


def _open_planned(job: UnitJob, unit: Unit) -> BinaryIO:
    try:
        return open_input(unit.input)
    except FileNotFoundError as error:
        check_unchanged(job.key, unit)
        raise InputChangedError(f"{unit.input.url} was gone for a moment: make the same call again") from error


def _batches(items: Iterable[Document | Unreadable], summary: UnitSummary) -> Iterator[list[Document]]:
    """The documents, a few megabytes at a time; all items are counted."""
    batch: list[Document] = []
    num_bytes = 0
    for item in items:
        if isinstance(item, Unreadable):
            summary.count_unreadable(item)
            continue
        summary.count(item)
        batch.append(item)
        num_bytes += len(item.payload) + len(item.text) + len(item.metadata or "") + len(item.url or "")
        if len(batch) == _BATCH_DOCUMENTS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    yield batch


class UnitWriter:
    """The files of a unit, published together when the block ends well."""

    def __init__(self, out: Folder, job: UnitJob, unit: Unit, summary: UnitSummary) -> None:
        self._job, self._unit, self._summary = job, unit, summary
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

    def published(self) -> dict[str, Any]:
        """The part, once the block has ended: what index.json says of it."""
        return {"part": {"file": self._part.name, "num_rows": self._part.num_rows, "hash": self._part.hash}}

    def add(self, outcome: Outcome) -> None:
        """Write one document's rows."""
        if isinstance(outcome, Rejection):
            self._add_rejected(outcome)
        else:
            self._add_survivor(outcome)

    def _add_rejected(self, rejection: Rejection) -> None:
        document, finding = rejection.document, rejection.finding
        self._summary.count_rejection(rejection)
        self._excerpts.offer(document.doc_id, finding.stage, finding.rule, document.text)
        row = _record_row(document)
        row |= {"status": "rejected", "stage": finding.stage, "rule": finding.rule, "value": finding.value,
                "threshold": finding.threshold}  # fmt: skip
        self._documents.add(row)
        if self._job.whole_ledger:
            self._add_findings(document, (*document.findings, *rejection.findings, finding))

    def _add_survivor(self, document: Document) -> None:
        summary, part_row = self._summary, self._summary.num_survivors
        summary.num_survivors += 1
        summary.num_chars += len(document.text)
        clean_hash = text_hash(document.text)
        row = _record_row(document)
        row |= {"clean_hash": clean_hash, "status": "kept", "part": self._unit.file_index, "part_row": part_row}
        self._documents.add(row)
        self._part.add({name: getattr(document, name) for name in tables.PART.names})
        for edit in document.edits:
            self._edits.add({"k": row["k"], "doc_id": document.doc_id, "stage": edit.stage, "kind": edit.kind,
                             "count": edit.count})  # fmt: skip
        if self._job.whole_ledger:
            self._add_findings(document, document.findings)
        started = time.perf_counter()
        self._keys.add({
            "doc_id": document.doc_id, "source_index": self._unit.source_index, "file_index": self._unit.file_index,
            "offset": document.place.offset, "part_row": part_row, "num_chars": len(document.text),
            "captured_at": document.captured_at, "clean_hash": clean_hash,
            "url_key": url_key(document.url) if document.url else None,
            "signature": self._signer.signature(document.text) if self._signer else None,
        })  # fmt: skip
        summary.seconds["signature"] = summary.seconds.get("signature", 0.0) + time.perf_counter() - started

    def _add_findings(self, document: Document, findings: tuple[Any, ...]) -> None:
        for finding in findings:
            self._findings.add({
                "k": sort_key(document.doc_id), "doc_id": document.doc_id, "stage": finding.stage,
                "rule": finding.rule, "value": finding.value, "threshold": finding.threshold,
                "verdict": "reject" if finding.rejected else "keep",
            })  # fmt: skip


def _record_row(document: Document) -> dict[str, Any]:
    """The columns of tables.RECORD_FIELDS, and k."""
    return {
        "k": sort_key(document.doc_id), "doc_id": document.doc_id, "source": document.source, "url": document.url,
        "host": url_host(document.url) if document.url else None, "warc_file": document.place.file,
        "warc_offset": document.place.offset, "warc_length": document.place.length, "record_id": document.record_id,
        "captured_at": document.captured_at, "charset": document.charset, "raw_hash": document.raw_hash,
        "text_hash": document.text_hash, "num_chars": len(document.text), "language": document.language,
        "language_score": document.language_score,
    }  # fmt: skip
