"""warc: the crawl's own records of the kept documents, read again from where each was found.

A record is checked before it is written: the document at its place must have the doc_id that the run gave it.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import pyarrow as pa
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed
from warcio.warcwriter import WARCWriter

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, StorageError
from lineage.store.delta import read_table
from pipeline.export.request import ExportRequest
from pipeline.export.sink import ExportSink, FileUnderWay, as_stream
from pipeline.export.texts import TextRow, kept_texts
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.inputs.files import may_be_called
from pipeline.results.rows import table_bytes
from stages.document import Document
from stages.reading.options import MAX_WINDOW_BYTES, ReadOptions
from stages.reading.reader import detect_format, read_one, stream_of_records
from stages.reading.unpacked import content_stream
from stages.reading.warc.headers import END_OF_HEADERS

_DOCUMENTS: Final = pa.schema([
    ("doc_id", pa.string()), ("url", pa.string()), ("offset", pa.int64()), ("file_path", pa.string()),
    ("offset_in_file_path", pa.int64()),
])  # fmt: skip
"""`offset`: where the record begins in the exported file; the last two: where it was found."""


@dataclass(slots=True)
class _Records:
    """A file of records under way, and what it holds."""

    file: FileUnderWay
    writer: Any
    rows: list[Mapping[str, Any]] = field(default_factory=list)


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>/<split->NNNNN.warc.gz and .documents.parquet.

    RecipeError where a source was not read from WARC files, StorageError where a file of the crawl is gone or
    holds another record now."""
    places = _places(Folder(job.out), unit.source)
    files: dict[str, _Records] = {}
    with ExitStack() as stack:
        for file_path, rows in itertools.groupby(kept_texts(job, unit), key=lambda row: row.file_path):
            first = next(rows)
            with _opened(unit.source, file_path, places, first) as (url, stream):
                for row in itertools.chain([first], rows):
                    split = job.request.split_of(row.doc_id)
                    if split not in files:
                        file = stack.enter_context(sink.writing(unit.name(".warc.gz", split), split))
                        files[split] = _Records(file, WARCWriter(as_stream(file), gzip=True))
                    _copy(url, stream, row, files[split])
    for split, records in files.items():
        table = pa.Table.from_pylist(records.rows, schema=_DOCUMENTS)
        sink.put(unit.name(".documents.parquet", split), table_bytes(table), split)


def check(out: Folder, request: ExportRequest) -> None:
    """RecipeError, StorageError: as `write` raises them for a source's first input file."""
    sources = sorted({entry.source for entry in read_index(out).documents if request.takes(entry.source)})
    for source in sources:
        for url in _places(out, source)[:1]:
            with _opened(source, url, [url]):
                pass


def _places(out: Folder, source: str) -> list[str]:
    return sorted(row["file"] for row in read_table(out, "inputs").to_pylist() if row["source"] == source)


@contextmanager
def _opened(
    source: str, file_path: str | None, places: list[str], row: TextRow | None = None
) -> Iterator[tuple[str, BinaryIO]]:
    """The crawl file whose name below its inputs' fixed part is `file_path`. Where several may be it, as their
    patterns have fixed parts of different depth, the one that holds the record of `row`."""
    found = [url for url in places if file_path and may_be_called(url, file_path)]
    if not found:
        raise StorageError(f"source {source!r} has no input file {file_path!r}: run sluice verify")
    found.sort(key=len)
    url = next((url for url in found if row and _holds(url, row)), found[0]) if found[1:] else found[0]
    try:
        stream: BinaryIO = Folder(url).open("")
    except FileNotFoundError as error:
        raise StorageError(
            f"{url} is not there any more: --format warc reads the records again from the crawl. Put it back,"
            " or choose another format"
        ) from error
    with stream:
        if detect_format(stream, _options(source, url)) not in ("warc", "wacz"):
            raise RecipeError(
                f"--format warc: source {source!r} was read from {url}, which is no WARC file: name the"
                " others with --source"
            )
        yield url, content_stream(stream, MAX_WINDOW_BYTES)


def _holds(url: str, row: TextRow) -> bool:
    """Whether a file is there and holds the record of a document at its place."""
    assert row.offset is not None
    try:
        with Folder(url).open("") as stream:
            return read_one(stream, row.offset, _options(row.source, url), row.doc_id).doc_id == row.doc_id
    except (FileNotFoundError, ValueError):
        return False


def _options(source: str, file: str) -> ReadOptions:
    """Bounds above those of any run, and every type, since a recipe may have named more: what it read is read
    here too."""
    return ReadOptions(
        source=source, file=file, max_document_bytes=1 << 31, max_window_bytes=MAX_WINDOW_BYTES, mime=("*/*",)
    )


def _copy(url: str, stream: BinaryIO, row: TextRow, records: _Records) -> None:
    """Write the record of a document behind those that are there."""
    assert row.offset is not None
    options = _options(row.source, row.file_path or "")
    document = read_one(stream, row.offset, options)
    if document.doc_id != row.doc_id:
        if read_one(stream, row.offset, options, row.doc_id).doc_id == row.doc_id:
            raise StorageError(
                f"{url} at offset {row.offset}: document {row.id} lies behind other records in one compressed"
                " member, of which --format warc finds the first alone: choose another format"
            )
        raise StorageError(
            f"{url} at offset {row.offset} holds another record than document {row.id} came from: put the"
            " crawl file back as it was"
        )
    with stream_of_records(stream, row.offset, options) as records_of_file:
        records_of_file.seek(row.offset)
        try:
            record = next(iter(ArchiveIterator(records_of_file, no_record_parse=True, arc2warc=True)))
            _set_block(record, document)
        except (ArchiveLoadFailed, StopIteration) as error:
            raise StorageError(
                f"{url} at offset {row.offset}: warcio cannot read the record: {error}"
            ) from error
    place = {"offset": records.file.num_bytes, "file_path": row.file_path, "offset_in_file_path": row.offset}
    records.writer.write_record(record)
    records.rows.append({"doc_id": row.id, "url": row.url, **place})
    records.file.num_documents += 1


def _set_block(record: Any, document: Document) -> None:
    """Give a record that is to be written its whole block, whatever its Content-Length says; and one that has
    no id, as all of ARC files, one that hangs on nothing but the document."""
    block = record.raw_stream.read()
    if not block.endswith(document.payload):
        head = END_OF_HEADERS.search(block) if block.startswith(b"HTTP/") else None
        block = (block[: head.end()] if head else b"") + document.payload
    record.raw_stream, record.length = io.BytesIO(block), len(block)
    if document.record_id is None:
        record.rec_headers.replace_header("WARC-Record-ID", f"<urn:uuid:{uuid.UUID(bytes=document.doc_id)}>")
