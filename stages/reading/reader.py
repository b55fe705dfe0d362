"""From the bytes of one input file to its documents: WARC, WET, JSONL or Parquet, told apart by name and content.

Every record of the file is a Document, or counted in InputCounts, or part of an Unreadable stretch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from stages.document import Document
from stages.reading import jsonl, parquet, warc
from stages.reading.hopeless import until_hopeless
from stages.reading.options import Format, InputCounts, ReadOptions, Unreadable

__all__ = ["Format", "InputCounts", "ReadOptions", "Unreadable", "detect_format", "read_documents", "read_one"]

_PARQUET_MAGIC = b"PAR1"


def read_documents(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts | None = None
) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a seekable stream, in the order of their place.

    Memory is bounded by a few MiB and `max_document_bytes`, whatever the file holds. OSError comes from the stream
    alone: wrong content is an Unreadable, never an exception."""
    counts = InputCounts() if counts is None else counts
    readers = {"warc": warc.read_warc, "jsonl": jsonl.read_jsonl, "parquet": parquet.read_parquet}
    for item in until_hopeless(readers[detect_format(stream, options)](stream, options, counts), options):
        if isinstance(item, Document):
            counts.num_documents += 1
        else:
            counts.num_unreadable += 1
        yield item


def read_one(stream: BinaryIO, offset: int, options: ReadOptions) -> Document:
    """The document at byte `offset` of a WARC (of a JSONL file: of its decompressed bytes; of a Parquet file: the
    row), the same as `read_documents` gives there. ValueError says what is there instead.

    Of several records in one compressed member it is the first document."""
    readers = {"warc": warc.read_warc_at, "jsonl": jsonl.read_jsonl_at, "parquet": parquet.read_parquet_at}
    found = readers[detect_format(stream, options)](stream, offset, options)
    if isinstance(found, Unreadable):
        raise ValueError(f"{options.file} at offset {offset} cannot be read: {found.error}")
    return found


def detect_format(stream: BinaryIO, options: ReadOptions) -> str:
    """`warc` (which WET is too), `jsonl` or `parquet`: as told, or by the file's name, or by its first bytes."""
    if options.format != "auto":
        return "warc" if options.format == "wet" else options.format
    name = options.file.lower()
    for ending in (".gz", ".zst", ".zstd"):
        name = name.removesuffix(ending)
    for format_name, endings in _ENDINGS.items():
        if name.endswith(endings):
            return format_name
    stream.seek(0)
    head = stream.read(len(_PARQUET_MAGIC))
    if head == _PARQUET_MAGIC:
        return "parquet"
    return "jsonl" if jsonl.looks_like_jsonl(stream) else "warc"


_ENDINGS = {
    "warc": (".warc", ".wet", ".wat"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
}
