"""The files of a unit, and what it counts on the way: one row of each kind for each document that it gives.

documents/<source>/part-NNNNN.parquet   clean texts that survived
texts/<source>/part-NNNNN.parquet       with run.keep_text: the texts after parse
work/units/<key>/documents.parquet      a row for every document record
work/units/<key>/{edits,findings,keys,excerpts}.parquet
work/units/<key>/measured.parquet       where another run may start from this one's texts
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

from lineage.ids import add_digests, show_digest, sort_key, text_hash
from lineage.index.output_index import part_name
from lineage.index.parsed_texts import texts_name
from lineage.pages import compared_key, page_of
from lineage.purge.purged_sets import PURGED_RULE
from lineage.purge.rewrite import erase_parsed_texts
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.column_names import SCORE
from pipeline.inputs.files import Input
from pipeline.plan import Unit
from pipeline.results.excerpts import ExcerptKeeper
from pipeline.results.faults import FaultTally, StrictError, fault_of, strict_message
from pipeline.results.rows import RowWriter
from pipeline.results.unit_results import (
    CleanPart,
    InputFile,
    ReadResult,
    RuleCount,
    UnitFile,
    UnreadableStretch,
)
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.document import Document, Outcome, Rejection
from stages.pii.regions import region_of
from stages.reading.options import InputCounts, Unreadable
from stages.rules import offending_lines
from stages.steps.catalogue import StepTables, rules_of

_OF_DOCUMENT: Final = tuple(name for name in tables.PART.names if name != "rule_values")
"""Columns of a part that are a document's own."""

MEASURED_FILE: Final = "measured.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFileOptions:
    """What the recipe asks of a unit's files: signatures as `dedup` says, the lines that count against a text
    by the rules of `tables` and `stages` marked in excerpts, every finding, the columns that it adds
    (`tables.with_added`), the texts after parse, the facts that a run starts from; the sources in which URLs
    with other fragments are other pages."""

    dedup: DedupTable
    tables: StepTables
    stages: tuple[str, ...]
    whole_ledger: bool
    added: tuple[str, ...]
    keep_text: bool
    keep_facts: bool
    fragments: frozenset[str]


@dataclass(slots=True, kw_only=True)
class UnitTally:
    """What a unit has counted so far. `rejected` maps (stage, rule) to (number, digest of doc_ids). `purged`
    are the doc_ids of documents that an honoured purge rejected after parse, by their clean text.
    `counts` and `stretches` are those of the `files` that are read to their end; `unreadable`, `longest` (the
    length of the document that takes most of the file) and `extent` (where it ends so far) of the one that is
    being read. With `strict` a record on which something was raised is a StrictError."""

    key: str
    source: str
    file: str
    url: str
    num_bytes: int
    counts: InputCounts = field(default_factory=InputCounts)
    files: list[InputFile] = field(default_factory=list)
    stretches: list[UnreadableStretch] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    num_documents: int = 0
    longest: int = 0
    extent: int = 0
    digest: int = 0
    rejected: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    num_survivors: int = 0
    num_without_page: int = 0
    num_without_date: int = 0
    num_chars: int = 0
    html_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultTally = field(default_factory=FaultTally)
    purged: set[bytes] = field(default_factory=set)
    strict: bool = False

    @classmethod
    def resumed(cls, read: ReadResult, *, strict: bool) -> UnitTally:
        """The tally that gave this result: what reading counted, before any document was kept or rejected."""
        return cls(
            key=read.key,
            source=read.source,
            file=read.file,
            url=read.url,
            num_bytes=read.num_bytes,
            counts=InputCounts(
                num_records=read.num_records,
                by_type=dict(read.by_type),
                by_mime=dict(read.by_mime),
                by_status=dict(read.by_status),
                notes=dict(read.notes),
                odd_date=read.odd_date,
            ),
            files=list(read.files),
            stretches=list(read.unreadable),
            num_documents=read.num_documents,
            digest=int(read.digest, 16),
            html_bytes=read.html_bytes,
            seconds=dict(read.seconds),
            faults=FaultTally({row.kind: row for row in read.faults}),
            strict=strict,
        )

    def count(self, document: Document) -> None:
        self.num_documents += 1
        self.longest = max(self.longest, document.place.length)
        self.extent = max(self.extent, document.place.offset + document.place.length)
        self.html_bytes += document.num_bytes
        self.digest = add_digests((self.digest, int.from_bytes(document.doc_id, "big")))

    def count_rejection(self, rejection: Rejection) -> None:
        finding, document = rejection.finding, rejection.document
        self.count_rejected(finding.stage, finding.rule, document.doc_id)
        if finding.rule == PURGED_RULE and finding.stage != "parse" and document.text_hash is not None:
            self.purged.add(document.doc_id)
        self._count_fault(rejection)

    def count_rejected(self, stage: str, rule: str, doc_id: bytes) -> None:
        number, digest = self.rejected.get((stage, rule), (0, 0))
        self.rejected[stage, rule] = number + 1, add_digests((digest, int.from_bytes(doc_id, "big")))

    def count_unreadable(self, stretch: Unreadable) -> None:
        self.unreadable.append(stretch)
        self.extent = max(self.extent, stretch.offset + stretch.length)
        self._count_fault(stretch)

    def count_file(self, found: Input, counts: InputCounts) -> None:
        """Count what was read of a file, when it is read to its end."""
        self.stretches += self._stretches(found, counts)
        self.files.append(
            InputFile(
                url=found.url,
                num_bytes=found.size,
                num_records=counts.num_records,
                num_documents=counts.num_documents,
                by_type=counts.by_type,
                by_mime=counts.by_mime,
                by_status=counts.by_status,
                notes=counts.notes,
            )
        )
        self.counts.add(counts)
        self.unreadable, self.longest, self.extent = [], 0, 0

    def _stretches(self, found: Input, counts: InputCounts) -> Iterator[UnreadableStretch]:
        """What was unreadable of a file. Where the reader cannot tell how many records a stretch holds, it is
        one if it is no longer than a document of the file, and else as many as the rest of the file has in as
        many bytes. What holds more than one is so many bytes of the file as its share of all places in it is;
        of a file that breaks off, all are."""
        end = counts.end or 0
        good = end - sum(stretch.length for stretch in self.unreadable)
        torn = next((each for each in self.unreadable if each.breaks_off), None)
        for each in self.unreadable:
            num, length, is_many = each.num_records, each.length, (each.num_records or 0) > 1
            if num is None:
                is_long = length > self.longest
                num = max(1, length * counts.num_records // good) if is_long and good > 0 else 1
                is_many = is_long and (num > 1 or good <= 0)
            num_bytes = each.num_bytes
            if num_bytes is None:
                num_bytes = length * found.size // max(end or self.extent, 1) if is_many else 0
            if torn is not None and each is not torn:
                num_bytes = 0
            yield UnreadableStretch(
                offset=each.offset,
                length=length,
                error=each.error,
                num_records=num,
                num_bytes=min(num_bytes, found.size),
                breaks_off=each is torn,
                file=found.name,
            )

    def _count_fault(self, item: Rejection | Unreadable) -> None:
        row = fault_of(item)
        if row is None:
            return
        if self.strict:
            raise StrictError(strict_message(row))
        self.faults.add(row)

    def result(self, part: CleanPart, texts: UnitFile | None) -> ReadResult:
        """What the whole unit counted, with the part and the parsed texts that it published."""
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
            notes=self.counts.notes,
            odd_date=self.counts.odd_date,
            unreadable=tuple(self.stretches),
            num_documents=self.num_documents,
            digest=show_digest(self.digest),
            rejected=tuple(
                RuleCount(stage, rule, num, show_digest(digest))
                for (stage, rule), (num, digest) in sorted(self.rejected.items())
            ),
            num_survivors=self.num_survivors,
            num_without_page=self.num_without_page,
            num_without_date=self.num_without_date,
            num_chars=self.num_chars,
            html_bytes=self.html_bytes,
            faults=tuple(self.faults.sorted()),
            seconds={name: round(value, 6) for name, value in sorted(self.seconds.items())},
            part=part,
            texts=texts,
            files=tuple(self.files) if len(self.files) > 1 else (),
        )


class ParsedTextsWriter:
    """The file of a unit's texts after parse, published when the block ends well; none unless `is_on`."""

    def __init__(self, out: Folder, unit: Unit, *, is_on: bool) -> None:
        name = texts_name(unit.source, unit.file_index)
        self._out = out
        self._rows = RowWriter(out, name, tables.PARSED_TEXTS) if is_on else None

    def __enter__(self) -> ParsedTextsWriter:
        if self._rows is not None:
            self._rows.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._rows is not None:
            self._rows.__exit__(*error)

    @property
    def file(self) -> UnitFile | None:
        """The file, once the block has ended; None where none is kept."""
        if self._rows is None:
            return None
        name = self._rows.name
        return UnitFile(
            file=name, num_rows=self._rows.num_rows, hash=self._rows.hash, bytes=self._out.size(name)
        )

    def keep_document(self, document: Document) -> None:
        """Write the text of a document as parse gave it."""
        if self._rows is not None:
            self._rows.add(parsed_text_row(document))

    def keep_text(self, row: Mapping[str, Any]) -> None:
        """Write a row of tables.PARSED_TEXTS."""
        if self._rows is not None:
            self._rows.add(row)


def without_purged(out: Folder, texts: UnitFile | None, tally: UnitTally) -> UnitFile | None:
    """The unit's parsed texts, in the same file, less those of `tally.purged`: a text was written as soon as
    it was parsed, and the steps behind parse made of it one that an honoured output had purged."""
    if texts is None or not tally.purged:
        return texts
    erased = erase_parsed_texts(out, texts.file, texts.file, tally.purged)
    return replace(texts, hash=erased.hash, bytes=out.size(texts.file))


class UnitWriter:
    """The files of a unit, published together when the block ends well."""

    def __init__(self, out: Folder, options: UnitFileOptions, unit: Unit, tally: UnitTally) -> None:
        self._options, self._unit, self._tally = options, unit, tally
        with contextlib.ExitStack() as opened:  # where one cannot be opened, those before it are given up
            self._open(out, opened)
            self._stack = opened.pop_all()
        self._excerpts = ExcerptKeeper(partial(offending_lines, rules_of(options.tables, options.stages)))
        self._signer = Signer(options.dedup) if options.dedup.near else None

    def _open(self, out: Folder, opened: contextlib.ExitStack) -> None:
        options, unit, folder = self._options, self._unit, self._unit.folder

        def rows(name: str, schema: Any) -> RowWriter:
            return opened.enter_context(RowWriter(out, name, schema))

        part_file = part_name("documents", unit.source, unit.file_index)
        self._part = rows(part_file, tables.with_added(tables.PART, options.added))
        self._documents = rows(
            f"{folder}/documents.parquet", tables.with_added(tables.SCHEMAS["documents"], options.added)
        )
        self._edits = rows(f"{folder}/edits.parquet", tables.SCHEMAS["edits"])
        self._findings = rows(f"{folder}/findings.parquet", tables.SCHEMAS["findings"])
        self._keys = rows(f"{folder}/keys.parquet", tables.KEYS)
        self._excerpt_rows = rows(f"{folder}/excerpts.parquet", tables.EXCERPTS)
        self._texts = opened.enter_context(ParsedTextsWriter(out, unit, is_on=options.keep_text))
        self._measured = rows(f"{folder}/{MEASURED_FILE}", tables.MEASURED) if options.keep_facts else None

    def __enter__(self) -> UnitWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._stack.__exit__(*error)
            return
        with self._stack:
            for excerpt in self._excerpts.rows():
                self._excerpt_rows.add(excerpt)

    @property
    def part(self) -> CleanPart:
        """The part, once the block has ended."""
        return CleanPart(file=self._part.name, num_rows=self._part.num_rows, hash=self._part.hash)

    @property
    def texts(self) -> UnitFile | None:
        """The parsed texts, once the block has ended; None where none are kept."""
        return self._texts.file

    def keep_document(self, document: Document) -> None:
        """Write the text of a document as parse gave it, where texts are kept."""
        self._texts.keep_document(document)

    def keep_text(self, row: Mapping[str, Any]) -> None:
        """Write a row of tables.PARSED_TEXTS, where texts are kept."""
        self._texts.keep_text(row)

    def carry(
        self,
        row: Mapping[str, Any],
        findings: Sequence[Mapping[str, Any]],
        excerpts: Sequence[Mapping[str, Any]],
        measured: Mapping[str, float],
    ) -> None:
        """Write what an earlier run found out about a document that it rejected: its row of `documents`, its
        rows of `findings`, those of tables.EXCERPTS, and what was measured."""
        stage, rule, doc_id = row["stage"], row["rule"], row["doc_id"]
        self._tally.count_rejected(stage, rule, doc_id)
        self._add_row({**row, **_page_columns(row["url"])})
        for excerpt in excerpts:
            self._excerpt_rows.add(excerpt)
        if self._options.whole_ledger:
            for finding in findings:
                self._findings.add(finding)
        self._add_measured(doc_id, measured)

    def add(self, outcome: Outcome) -> None:
        """Write one document's rows."""
        if isinstance(outcome, Rejection):
            self._add_rejected(outcome)
        else:
            self._add_survivor(outcome)

    def _add_rejected(self, rejection: Rejection) -> None:
        document, finding = rejection.document, rejection.finding
        self._tally.count_rejection(rejection)
        row = _record_row(document)
        text = rejection.judged_text or document.text
        self._excerpts.offer(document.doc_id, finding, text, region_of(document.language, row["host"]))
        row |= {
            "status": "rejected",
            "stage": finding.stage,
            "rule": finding.rule,
            "value": finding.value,
            "threshold": finding.threshold,
            "matched": finding.matched,
        }
        self._add_row(row)
        if self._options.whole_ledger:
            self._add_findings(document, (*document.findings, *rejection.findings, finding))
        self._add_measured(document.doc_id, dict(document.measured))

    def _add_survivor(self, document: Document) -> None:
        tally, part_row = self._tally, self._tally.num_survivors
        tally.num_survivors += 1
        tally.num_without_date += document.captured_at is None
        tally.num_chars += len(document.text)
        clean_hash = text_hash(document.text)
        row = _record_row(document)
        row |= {
            "clean_hash": clean_hash,
            "status": "kept",
            "part": self._unit.file_index,
            "part_row": part_row,
        }
        self._add_row(row)
        part = {name: row[name] if name in row else getattr(document, name) for name in _OF_DOCUMENT}
        self._part.add(part | {"rule_values": self._rule_values(document)} | _added(document))
        for edit in document.edits:
            self._edits.add(
                {
                    "k": row["k"],
                    "doc_id": document.doc_id,
                    "stage": edit.stage,
                    "kind": edit.kind,
                    "count": edit.count,
                }
            )
        if self._options.whole_ledger:
            self._add_findings(document, document.findings)
            region = region_of(document.language, row["host"])
            for finding in document.findings:
                self._excerpts.offer(document.doc_id, finding, document.text, region)
        self._add_measured(document.doc_id, dict(document.measured))
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
                "url_key": compared_key(document.url, fragments=self._unit.source in self._options.fragments),
                "signature": self._signer.signature(document.text) if self._signer else None,
            }
        )
        tally.seconds["signature"] = tally.seconds.get("signature", 0.0) + time.perf_counter() - started

    def _add_row(self, row: Mapping[str, Any]) -> None:
        self._tally.num_without_page += row["host"] is None
        self._documents.add(row)

    def _add_measured(self, doc_id: bytes, measured: Mapping[str, float]) -> None:
        if self._measured is not None and measured:
            finite = {rule: value for rule, value in measured.items() if math.isfinite(value)}
            self._measured.add({"doc_id": doc_id, "measured": json.dumps(finite)})

    def _rule_values(self, document: Document) -> str | None:
        """What each rule measured, as JSON; null where the ledger is not kept."""
        if not self._options.whole_ledger:
            return None
        values = {finding.rule: finding.value for finding in document.findings if finding.value is not None}
        return json.dumps({rule: value if math.isfinite(value) else None for rule, value in values.items()})

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
                    "matched": finding.matched,
                }
            )


def _record_row(document: Document) -> dict[str, Any]:
    """What a row of `documents` says of the record itself, and k."""
    return {
        "k": sort_key(document.doc_id),
        "doc_id": document.doc_id,
        "source": document.source,
        "url": document.url,
        **_page_columns(document.url),
        "truncated": document.truncated,
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
        **_added(document),
    }


def _page_columns(url: str | None) -> dict[str, str | None]:
    """Host and registered domain of the page that a URL names."""
    page = page_of(url)
    return {"host": None, "domain": None} if page is None else {"host": page.host, "domain": page.domain}


def _added(document: Document) -> dict[str, float | str]:
    """The document's columns of scores, and of labels."""
    return {SCORE + name: score for name, score in document.scores} | dict(document.labels)


def parsed_text_row(document: Document) -> dict[str, Any]:
    """The row of tables.PARSED_TEXTS for a document as parse gave it."""
    row = {
        name: getattr(document, name) for name in tables.PARSED_TEXTS.names if not name.startswith("warc_")
    }
    place = document.place
    row |= {"warc_file": place.file, "warc_offset": place.offset, "warc_length": place.length}
    return row | {"edits": [asdict(edit) for edit in document.edits]}
