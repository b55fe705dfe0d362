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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import sort_key, text_hash
from lineage.pages import compared_key, page_of
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.column_names import SCORE
from pipeline.plan import Unit
from pipeline.results.excerpts import ExcerptKeeper, ExcerptRow, best_of_keepers
from pipeline.results.rows import RowWriter
from pipeline.results.unit_results import (
    CleanPart,
    UnitFile,
)
from pipeline.units.parsed_texts import ParsedTextRow, ParsedTextsWriter
from pipeline.units.tally import UnitTally
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.document import Document, Outcome, Rejection
from stages.pii.regions import region_of
from stages.rules import offending_lines
from stages.steps.catalogue import StepTables, rules_of

_OF_DOCUMENT: Final = tuple(name for name in tables.PART.names if name != "rule_values")
"""Columns of a part that are a document's own."""

_PART_ROW: Final = "part_row"
MEASURED_FILE: Final = "measured.parquet"
ROW: Final = "row"
"""Column of a unit's edits and findings: the number, from 0, of the document among the unit's. Its id does not tell
which it is: records of one id and text may have URLs of their own, and so verdicts and edits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFileOptions:
    """What the recipe asks of a unit's files: signatures as `dedup` says, the lines that count against a text
    by the rules of `tables` and `stages` marked in excerpts, every finding, the columns that it adds to
    the parts and to `documents` (`tables.with_added`), the texts after parse, the facts that a run starts from;
    the sources in which URLs with other fragments are other pages. Where texts `are_cut` behind all units, the
    part is one of the unit's own files."""

    dedup: DedupTable
    tables: StepTables
    stages: tuple[str, ...]
    whole_ledger: bool
    added: tuple[str, ...]
    added_to_documents: tuple[str, ...]
    keep_text: bool
    keep_facts: bool
    fragments: frozenset[str]
    are_cut: bool = False


class UnitWriter:
    """The files of a unit, published together when the block ends well."""

    def __init__(self, out: Folder, options: UnitFileOptions, unit: Unit, tally: UnitTally) -> None:
        self._out, self._options, self._unit, self._tally = out, options, unit, tally
        self._of_spans: list[ExcerptRow] = []
        with contextlib.ExitStack() as opened:  # where one cannot be opened, those before it are given up
            self._open(out, opened)
            self._stack = opened.pop_all()
        self._excerpts = ExcerptKeeper(partial(offending_lines, rules_of(options.tables, options.stages)))
        self._signer = Signer(options.dedup) if options.dedup.near else None

    def _open(self, out: Folder, opened: contextlib.ExitStack) -> None:
        options, unit, folder = self._options, self._unit, self._unit.folder

        def rows(name: str, schema: Any) -> RowWriter:
            return opened.enter_context(RowWriter(out, name, schema, is_passing=unit.span is not None))

        schema = tables.with_added(tables.PART, options.added)
        if options.are_cut and unit.span is None:
            # Repeats inside texts are known when all are read: they are published without them, part by part.
            self._part = opened.enter_context(
                RowWriter(out, f"{folder}/survivors.parquet", schema, is_passing=True)
            )
        else:
            self._part = rows(unit.part_file, schema)
        self._documents = rows(
            f"{folder}/documents.parquet",
            tables.with_added(tables.SCHEMAS["documents"], options.added_to_documents),
        )
        row = pa.field(ROW, pa.int64())
        self._edits = rows(f"{folder}/edits.parquet", tables.SCHEMAS["edits"].append(row))
        self._findings = rows(f"{folder}/findings.parquet", tables.SCHEMAS["findings"].append(row))
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
            for excerpt in self._kept_excerpts():
                self._excerpt_rows.add(excerpt)

    def _kept_excerpts(self) -> Iterable[ExcerptRow]:
        if self._of_spans:
            return best_of_keepers(self._of_spans)
        # Of a span all that it held: which of them stay depends on those of the other spans.
        return self._excerpts.rows() if self._unit.span is None else self._excerpts.held_rows()

    @property
    def part(self) -> CleanPart:
        """The part, once the block has ended."""
        return CleanPart(file=self._part.name, num_rows=self._part.num_rows, hash=self._part.hash)

    @property
    def texts(self) -> UnitFile | None:
        """The parsed texts, once the block has ended; None where none are kept."""
        return self._texts.file

    def add_span(self, span: Unit) -> None:
        """Write what the reading of a span of the unit's file published, behind that of the spans before it."""
        in_part, rows, folder = (_PART_ROW, self._part.num_rows), (ROW, self._documents.num_rows), span.folder
        self._copy(self._part, span.part_file)
        self._copy(self._documents, f"{folder}/documents.parquet", in_part)
        self._copy(self._edits, f"{folder}/edits.parquet", rows)
        self._copy(self._findings, f"{folder}/findings.parquet", rows)
        self._copy(self._keys, f"{folder}/keys.parquet", in_part)
        if self._options.keep_text:
            self._copy(self._texts, span.texts_file)
        if self._measured is not None:
            self._copy(self._measured, f"{folder}/{MEASURED_FILE}")
        with self._out.open(f"{folder}/excerpts.parquet") as file:
            self._of_spans += pq.ParquetFile(file).read().to_pylist()

    def _copy(
        self, rows: RowWriter | ParsedTextsWriter, name: str, before: tuple[str, int] = ("", 0)
    ) -> None:
        """The rows of a file, group by group; `before`: a column of row numbers, and how many rows of what it
        numbers are of spans before this one."""
        numbers, num_before = before
        with self._out.open(name) as opened:
            file = pq.ParquetFile(opened)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                if num_before:
                    column = table.schema.get_field_index(numbers)
                    moved = pc.add(table[numbers], num_before).cast(table.schema.field(column).type)
                    table = table.set_column(column, table.schema.field(column), moved)
                rows.add_table(table)

    def keep_document(self, document: Document) -> None:
        """Write the text of a document as parse gave it, where texts are kept."""
        self._texts.keep_document(document)

    def keep_text(self, row: ParsedTextRow) -> None:
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
                self._findings.add({**finding, ROW: self._documents.num_rows - 1})
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
        page = _page_columns(document.url)
        row = _record_row(document, page)
        text = rejection.judged_text or document.text
        self._excerpts.offer(document.doc_id, finding, text, region_of(document.language, page["host"]))
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
        page = _page_columns(document.url)
        row = _record_row(document, page)
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
                    ROW: self._documents.num_rows - 1,
                }
            )
        if self._options.whole_ledger:
            self._add_findings(document, document.findings)
            region = region_of(document.language, page["host"])
            for finding in document.findings:
                self._excerpts.offer(document.doc_id, finding, document.text, region)
        self._add_measured(document.doc_id, dict(document.measured))
        started = time.process_time()
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
        tally.seconds["signature"] = tally.seconds.get("signature", 0.0) + time.process_time() - started

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
                    ROW: self._documents.num_rows - 1,
                }
            )


def _record_row(document: Document, page: Mapping[str, str | None]) -> dict[str, object]:
    """What a row of `documents` says of the record itself, with the columns of its `page`, and k."""
    return {
        "k": sort_key(document.doc_id),
        "doc_id": document.doc_id,
        "source": document.source,
        "url": document.url,
        **page,
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
