"""From the bytes of one input file to its documents: WARC (also ARC, WET and WACZ), JSONL or Parquet, known by name and
content.

Every record of the file is a Document, or counted in InputCounts, or part of an Unreadable stretch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from stages.document import Document
from stages.reading import jsonl, parquet, wacz, warc
from stages.reading.content import Cursor, Stream
from stages.reading.give_up import rest_of_file, until_given_up
from stages.reading.options import (
    Format,
    InputCounts,
    ReadOptions,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)

__all__ = [
    "Format", "InputCounts", "ReadOptions", "Unreadable", "detect_format", "read_documents", "read_one",
    "stream_of_records",
]  # fmt: skip

_PARQUET_MAGIC = b"PAR1"


def read_documents(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts | None = None
) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a seekable stream, in the order of their place. (A compressed member of
    JSONL that its checksum refutes is a stretch behind the rows that were read of it.)

    Memory is bounded by a few MiB and `max_document_bytes`, whatever the file holds. Exceptions come from the stream
    alone (and MemoryError): wrong content is an Unreadable, never an exception, and a stream that fails is never wrong
    content."""
    counts = InputCounts() if counts is None else counts
    watched = _WatchedStream(stream)
    for item in until_given_up(_to_the_end(watched, options, counts), options, counts):
        if watched.error is not None:
            raise watched.error
        if isinstance(item, Document):
            counts.num_documents += 1
        else:
            counts.num_unreadable += 1
        yield item


def _to_the_end(watched: _WatchedStream, options: ReadOptions, counts: InputCounts) -> Iterator[Document | Unreadable]:
    """All items of a file; one that cannot be read on from somewhere ends there, in an Unreadable."""
    readers = {
        "warc": warc.read_warc,
        "wacz": wacz.read_wacz,
        "jsonl": jsonl.read_jsonl,
        "parquet": parquet.read_parquet,
    }
    stream, end = cast(BinaryIO, watched), 0
    try:
        with unreadable_for_any_error():
            for item in readers[detect_format(stream, options)](stream, options, counts):
                place = item.place if isinstance(item, Document) else item
                end = place.offset + place.length
                yield item
    except UnreadableError as error:
        yield rest_of_file(end, f"nothing more of the file is read: {error}", options, counts, error.fault)


class _WatchedStream:
    """A stream that remembers what it raised: the libraries that decode formats raise OSError for damaged content too,
    and a connection that broke off must not look like it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def read(self, *size: int) -> bytes:
        try:
            return self._stream.read(*size)
        except Exception as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def read_one(stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None) -> Document:
    """The document at byte `offset` of a WARC (of a WACZ as `stages.reading.wacz` counts them; of a JSONL file: of its
    decompressed bytes; of a Parquet file: the row), the same as `read_documents` gives there. ValueError says what is
    there instead.

    Of several records in one compressed member it is the document with `doc_id`, else the first."""
    kind = detect_format(stream, options)
    if kind == "warc":
        found = warc.read_record_at(Cursor(stream), offset, options, doc_id)
    elif kind == "wacz":
        found = wacz.read_wacz_at(stream, offset, options, doc_id)
    else:
        readers = {"jsonl": jsonl.read_jsonl_at, "parquet": parquet.read_parquet_at}
        found = readers[kind](stream, offset, options)
    if isinstance(found, Unreadable):
        raise ValueError(f"{options.file} at offset {offset} cannot be read: {found.error}")
    return found


@contextmanager
def stream_of_records(stream: BinaryIO, offset: int, options: ReadOptions) -> Iterator[Stream]:
    """The stream in which a record of a WARC, ARC or WACZ file lies at the offset that `read_documents` gives."""
    if detect_format(stream, options) != "wacz":
        yield stream
        return
    with wacz.archive_at(stream, offset) as archive:
        yield archive or stream


def detect_format(stream: BinaryIO, options: ReadOptions) -> str:
    """`warc` (which ARC and WET are too), `wacz`, `jsonl` or `parquet`: by the options, else the file's name, else its
    first bytes; these alone tell WACZ from WARC where it is named otherwise."""
    kind = _named_format(options)
    if kind is None:
        stream.seek(0)
        head = stream.read(len(_PARQUET_MAGIC))
        if head == _PARQUET_MAGIC:
            return "parquet"
        kind = "jsonl" if not wacz.is_zip(stream) and jsonl.looks_like_jsonl(stream) else "warc"
    return "wacz" if kind == "warc" and wacz.is_zip(stream) else kind


def _named_format(options: ReadOptions) -> str | None:
    if options.format != "auto":
        return "warc" if options.format == "wet" else options.format
    name = options.file.lower()
    for ending in (".gz", ".zst", ".zstd"):
        name = name.removesuffix(ending)
    return next((format_name for format_name, endings in _ENDINGS.items() if name.endswith(endings)), None)


_ENDINGS = {
    "warc": (".warc", ".wet", ".wat", ".arc"),
    "wacz": (".wacz",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
}
