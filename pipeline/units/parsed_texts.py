"""The file of a unit's texts after parse (run.keep_text)."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, TypedDict

import pyarrow as pa

from lineage.purge.rewrite import erase_parsed_texts
from lineage.storage.folder import Folder
from lineage.store import tables
from pipeline.plan import Unit
from pipeline.results.rows import RowWriter
from pipeline.results.unit_results import (
    UnitFile,
)
from pipeline.units.tally import UnitTally
from stages.document import Document, Edit, Place


class EditOfText(TypedDict):
    """An edit as a row of parsed texts has it."""

    stage: str
    kind: str
    count: int


class ParsedTextRow(TypedDict):
    """A row of tables.PARSED_TEXTS; `text` is null where it was purged."""

    doc_id: bytes
    warc_file: str
    warc_offset: int
    warc_length: int
    record_id: str | None
    url: str | None
    captured_at: str | None
    raw_hash: bytes
    charset: str | None
    num_bytes: int
    is_html: bool
    content_type: str
    metadata: str | None
    text: str | None
    text_hash: bytes | None
    language: str | None
    language_score: float | None
    edits: list[EditOfText]


class ParsedTextsWriter:
    """The file of a unit's texts after parse, published when the block ends well; none unless `is_on`."""

    def __init__(self, out: Folder, unit: Unit, *, is_on: bool) -> None:
        self._out = out
        self._rows = (
            RowWriter(out, unit.texts_file, tables.PARSED_TEXTS, is_passing=unit.span is not None)
            if is_on
            else None
        )

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

    def add_table(self, table: pa.Table) -> None:
        """Write rows of tables.PARSED_TEXTS."""
        if self._rows is not None:
            self._rows.add_table(table)

    def keep_text(self, row: ParsedTextRow) -> None:
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


def parsed_text_row(document: Document) -> dict[str, object]:
    """The row of tables.PARSED_TEXTS for a document as parse gave it."""
    row = {
        name: getattr(document, name) for name in tables.PARSED_TEXTS.names if not name.startswith("warc_")
    }
    place = document.place
    row |= {"warc_file": place.file, "warc_offset": place.offset, "warc_length": place.length}
    return row | {"edits": [asdict(edit) for edit in document.edits]}


def parsed_document(source: str, row: ParsedTextRow) -> Document:
    """The document of a row as parse gave it; without a text where that was purged."""
    return Document(
        doc_id=row["doc_id"],
        source=source,
        place=Place(file=row["warc_file"], offset=row["warc_offset"], length=row["warc_length"]),
        raw_hash=row["raw_hash"],
        record_id=row["record_id"],
        url=row["url"],
        captured_at=row["captured_at"],
        charset=row["charset"],
        num_bytes=row["num_bytes"],
        is_html=row["is_html"],
        content_type=row["content_type"],
        metadata=row["metadata"],
        text=row["text"] or "",
        text_hash=row["text_hash"],
        language=row["language"],
        language_score=row["language_score"],
        edits=tuple(Edit(**edit) for edit in row["edits"]),
    )
