"""The kept texts of a unit: deduplicated, not purged, with where each came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lineage.ids import sort_key
from lineage.index.output_index import PartFile
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.export.sink import ExportSink
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.results.rows import opened, read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """A kept document. `id` is its doc_id (32 hex digits); `file_path` and `offset` say where in the input
    its record begins; `metadata` is a JSON object, as text; `record_id` is the record's own id, where the
    input gives one."""

    doc_id: bytes
    text: str
    url: str | None
    date: str | None
    language: str | None
    language_score: float | None
    source: str
    file_path: str | None
    offset: int | None
    metadata: str | None
    record_id: str | None

    @property
    def id(self) -> str:
        return self.doc_id.hex()

    def plain(self) -> dict[str, object]:
        """The columns that text formats give, in their order."""
        return {name: getattr(self, name) for name in COLUMNS.names}


COLUMNS = pa.schema([
    ("id", pa.string()), ("text", pa.string()), ("url", pa.string()), ("date", pa.string()), ("language", pa.string()),
    ("language_score", pa.float64()), ("source", pa.string()), ("file_path", pa.string()), ("offset", pa.int64()),
    ("metadata", pa.string()), ("record_id", pa.string()),
])  # fmt: skip


class TextFile(Protocol):
    """A file of texts under way."""

    def add(self, row: TextRow, /) -> None: ...


OpenText = Callable[[ExportSink, ExportJob, ExportUnit, str], AbstractContextManager[TextFile]]
"""Opens a unit's file of a split (its name, or "" where there are none)."""


def write_texts(job: ExportJob, unit: ExportUnit, sink: ExportSink, open_text: OpenText) -> None:
    """The texts of a unit into one file a split, in (part, row) order. A split without a text has no file."""
    with ExitStack() as stack:
        files: dict[str, TextFile] = {}
        for row in kept_texts(job, unit):
            split = job.request.split_of(row.doc_id)
            if split not in files:
                files[split] = stack.enter_context(open_text(sink, job, unit, split))
            files[split].add(row)


def kept_texts(job: ExportJob, unit: ExportUnit) -> Iterator[TextRow]:
    """The unit's kept documents in (part, row) order. dedup/ names them: a purge takes their rows out of
    it."""
    out = Folder(job.out)
    lookup = Lookup(out)
    for part, dedup in unit.parts:
        yield from _of_part(out, lookup, part, dedup)


def _of_part(out: Folder, lookup: Lookup, part: PartFile, dedup: PartFile) -> Iterator[TextRow]:
    columns = read_rows(out, dedup.file, ["part_row", "doc_id"], dedup.hash)
    kept = dict(zip(columns["part_row"].to_pylist(), columns["doc_id"].to_pylist(), strict=True))
    if not kept:
        return
    file_path, offsets = _places(lookup, part, next(iter(kept.values())))
    first = 0
    with opened(out, part.file, part.hash) as file:
        for batch in file.iter_batches(batch_size=1024):
            rows = pa.array([at for at in range(batch.num_rows) if first + at in kept], pa.int64())
            elsewhere = _elsewhere(
                lookup, part, {first + at: kept[first + at] for at in rows.to_pylist()}, offsets
            )
            for at, plain in zip(rows.to_pylist(), batch.take(rows).to_pylist(), strict=True):
                doc_id = plain["doc_id"]
                assert doc_id == kept[first + at] and plain["text"] is not None, (
                    f"{part.file} row {first + at}"
                )
                warc_file, offset = elsewhere.get(first + at, (file_path, offsets.get(sort_key(doc_id))))
                yield TextRow(
                    doc_id=doc_id,
                    text=plain["text"],
                    url=plain["url"],
                    date=plain["captured_at"],
                    language=plain["language"],
                    language_score=plain["language_score"],
                    source=part.source,
                    file_path=warc_file,
                    offset=offset,
                    metadata=plain["metadata"],
                    record_id=plain.get("record_id"),
                )
            first += batch.num_rows


def _places(lookup: Lookup, part: PartFile, doc_id: bytes) -> tuple[str | None, dict[int, int]]:
    """The input file that a document of a part was read from, and where in it each document's record begins, by
    `k`. Most parts come of one file."""
    for row in lookup.documents([doc_id]):
        if (row.source, row.part) == (part.source, part.part) and row.warc_file is not None:
            return row.warc_file, lookup.in_file(row.warc_file, part.source)
    return None, {}


def _elsewhere(
    lookup: Lookup, part: PartFile, kept: Mapping[int, bytes], offsets: Mapping[int, int]
) -> dict[int, tuple[str | None, int | None]]:
    """File and offset, by row, of those kept documents of a part that are not among these of one file: a part may
    come of several small ones."""
    others = [doc_id for doc_id in kept.values() if sort_key(doc_id) not in offsets]
    return {
        row.part_row: (row.warc_file, row.warc_offset)
        for row in (lookup.documents(others) if others else [])
        if (row.source, row.part) == (part.source, part.part) and row.part_row is not None
    }
