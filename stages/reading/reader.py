"""From the bytes of one input file to its documents: WARC (also ARC, WET and WACZ), JSONL, Parquet, a
MediaWiki dump, or a document by itself, known by name and content.

Every record of the file is a Document, or counted in InputCounts, or part of an Unreadable stretch."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final, cast

from stages.document import Document
from stages.reading import jsonl, papers, whole_file, wikipedia
from stages.reading.content import Cursor, DamagedError, RefutedError, Stream, TornError, WindowError
from stages.reading.content_types import TYPES_OF, WIKITEXT, why_not_converted
from stages.reading.file_names import is_marker, kind_by_name, may_hold_rows, unpacked_name
from stages.reading.give_up import rest_of_file, until_given_up
from stages.reading.magic import (
    HEAD_BYTES,
    PARQUET_MAGIC,
    is_streamed,
    why_content_not_read,
    why_not_read,
)
from stages.reading.members import how_to_split, is_compressed, read_through
from stages.reading.options import (
    ALWAYS_UNFOLDED_BYTES,
    RATIO_KEY,
    Border,
    Format,
    InputCounts,
    Note,
    ReadOptions,
    Unreadable,
    UnreadableError,
    unreadable_for_any_error,
)
from stages.reading.parquet import documents as parquet
from stages.reading.unpacked import UnpackedStream, content_stream
from stages.reading.warc import documents as warc
from stages.reading.warc import wacz

__all__ = [
    "Format",
    "InputCounts",
    "ReadOptions",
    "Unreadable",
    "detect_format",
    "heads_at",
    "lacks_fields",
    "most_unfolded",
    "named_format",
    "read_documents",
    "read_numbered",
    "read_one",
    "stream_of_records",
    "why_no_reader",
    "why_one_reader",
]


def read_documents(
    stream: BinaryIO, options: ReadOptions, counts: InputCounts | None = None
) -> Iterator[Document | Unreadable]:
    """The documents and unreadable stretches of a seekable stream, in the order of their place, up to the
    last document that `options.limit_documents` lets in. (A compressed member of JSONL that its checksum
    refutes is a stretch behind the rows that were read of it.)

    Memory is bounded by a few MiB and `max_document_bytes`, whatever the file holds. Exceptions come from the
    stream alone (and MemoryError): wrong content is an Unreadable, never an exception, and a stream that
    fails is never wrong content."""
    counts = InputCounts() if counts is None else counts
    watched = _WatchedStream(stream, options.size)
    for item in until_given_up(_to_the_end(watched, options, counts), options, counts):
        if watched.error is not None:
            raise watched.error
        if isinstance(item, Document):
            counts.num_documents += 1
        else:
            counts.num_unreadable += 1
        yield item
        if isinstance(item, Document) and counts.num_documents == options.limit_documents:
            return


def lacks_fields(stream: BinaryIO, options: ReadOptions, num_rows: int) -> tuple[bool, str | None]:
    """Whether a file is one of rows, and which field that `options` name its columns, or its first rows, have
    not got."""
    try:
        with unreadable_for_any_error():
            kind = detect_format(stream, options)
            stream.seek(0)
            if kind == "parquet":
                return True, parquet.parquet_lacks(stream, options)
            if kind == "jsonl":
                return True, jsonl.jsonl_lacks(stream, options, num_rows)
    except UnreadableError:
        return True, None  # its reading says so
    return False, None


def _to_the_end(
    watched: _WatchedStream, options: ReadOptions, counts: InputCounts
) -> Iterator[Document | Unreadable]:
    """All items of a file; one that cannot be read on from somewhere ends there, in an Unreadable."""
    stream, end, is_first = cast(BinaryIO, watched), 0, options.span is None or not options.span.begin
    most = most_unfolded(options.size, options.max_compression_ratio)
    try:
        with unreadable_for_any_error():
            if note := _holds_nothing(stream, options):
                counts.note(note)
                _end_of_first_span(options, counts)
                return
            kind = detect_format(stream, options)
            if kind == "warc":
                stream = content_stream(stream, options.max_window_bytes)
            is_packed = isinstance(stream, UnpackedStream)
            of_content = replace(options, size=None) if is_packed else options
            if options.span is not None and (is_packed or kind not in _SPLIT):
                # The first span is the file, and there is nothing in the others.
                if options.span.begin:
                    return
                of_content = replace(of_content, span=None)
            for found in _READERS[kind](stream, of_content, counts):
                item = found
                if is_first and isinstance(found, Unreadable):
                    item = _with_its_kind(found, watched, options)
                is_first = False
                if isinstance(item, Document):
                    counts.num_unfolded += max(item.num_bytes, len(item.text)) + len(item.metadata or "")
                    if most is not None and counts.num_unfolded > most:
                        raise UnreadableError(_unfolds_to_too_much(options, most))
                place = item.place if isinstance(item, Document) else item
                end = place.offset + place.length
                yield _with_language(item, options) if isinstance(item, Document) else item
            _end_of_first_span(options, counts)
    except UnreadableError as error:
        rest = rest_of_file(end, f"nothing more of the file is read: {error}", options, counts, error.fault)
        if isinstance(stream, UnpackedStream):
            rest = _rest_of_packed(rest, stream, error, options, counts)
        yield rest


_READERS: Final[
    dict[str, Callable[[BinaryIO, ReadOptions, InputCounts], Iterator[Document | Unreadable]]]
] = {
    "warc": warc.read_warc,
    "wacz": wacz.read_wacz,
    "jsonl": jsonl.read_jsonl,
    "parquet": parquet.read_parquet,
    "file": whole_file.read_file,
    "pdf": partial(whole_file.read_file, content_type=TYPES_OF["pdf"]),
    "epub": partial(whole_file.read_file, content_type=TYPES_OF["epub"]),
    "latex": papers.read_papers,
    "wikipedia": wikipedia.read_wikipedia,
}
_READERS_AT: Final[dict[str, Callable[[BinaryIO, int, ReadOptions, bytes | None], Document | Unreadable]]] = {
    "warc": warc.read_warc_at,
    "wacz": wacz.read_wacz_at,
    "jsonl": jsonl.read_jsonl_at,
    "parquet": parquet.read_parquet_at,
    "file": whole_file.read_file_at,
    "pdf": partial(whole_file.read_file_at, content_type=TYPES_OF["pdf"]),
    "epub": partial(whole_file.read_file_at, content_type=TYPES_OF["epub"]),
    "latex": papers.read_paper_at,
    "wikipedia": wikipedia.read_wikipedia_at,
}
_SPLIT: Final = ("warc", "jsonl", "parquet")
"""What is read in spans."""


def _end_of_first_span(options: ReadOptions, counts: InputCounts) -> None:
    """Where the first span ended with the file, as its reader knows of no spans, say that it did."""
    span = options.span
    if span is not None and not span.begin and counts.ended is None:
        counts.began, counts.ended = Border(0), Border(options.size or span.end)


_MOST_OF_NOTHING: Final = 4 << 10
"""A compressed file of more bytes holds something: its head may have a name and a comment."""


def _holds_nothing(stream: BinaryIO, options: ReadOptions) -> Note | None:
    """Why a file holds no record, as its notes call it; None where it may hold some."""
    cursor = Cursor(stream, max_window_bytes=options.max_window_bytes)
    if options.size is None or options.size <= _MOST_OF_NOTHING:
        with suppress(DamagedError, WindowError):
            if next(read_through(cursor), None) is None:
                return "empty"
    return "marker" if options.format != "file" and is_marker(options.file) else None


def most_unfolded(size: int | None, max_compression_ratio: int) -> int | None:
    """The bytes that the documents of a file of `size` bytes may have together; None where that is not
    known."""
    return None if size is None else max(ALWAYS_UNFOLDED_BYTES, size * max_compression_ratio)


def _unfolds_to_too_much(options: ReadOptions, most: int) -> str:
    return (
        f"its {options.size} bytes unfold to documents of more than {most} bytes, which"
        f" {RATIO_KEY} = {options.max_compression_ratio} allows: raise it to read the file whole"
    )


def _rest_of_packed(
    rest: Unreadable,
    stream: UnpackedStream,
    error: UnreadableError,
    options: ReadOptions,
    counts: InputCounts,
) -> Unreadable:
    """The rest of a compressed file that is not read on, and about how many records are lost, as it is
    estimated for JSONL: those that are refuted, and what is left of the file, which has as many to a byte as
    what was read."""
    num, num_bytes = 0, options.size
    if isinstance(error, RefutedError):
        num = counts.num_records
    elif options.size is not None and not isinstance(error, TornError):
        num_bytes = max(options.size - stream.num_packed, 0)
        num = counts.num_records * num_bytes // max(stream.num_packed, 1)
    return replace(
        rest,
        length=0,
        num_records=max(1, num),
        num_bytes=num_bytes,
        breaks_off=isinstance(error, TornError),
    )


def _with_its_kind(first: Unreadable, watched: _WatchedStream, options: ReadOptions) -> Unreadable:
    """What is unreadable at a file's first byte, and what the file is if no reader is for it."""
    stream = cast(BinaryIO, watched)
    here = stream.tell()
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    stream.seek(here)
    why = why_no_reader(head, options.file, options.max_window_bytes)
    return first if why is None or why in first.error else replace(first, error=f"{first.error}; {why}")


def why_no_reader(head: bytes, name: str, max_window_bytes: int) -> str | None:
    """Why a file of this name that begins with these bytes (HEAD_BYTES of them, or all there are) cannot be
    read as it is, and what to do: another format, also inside a compressed file, or a window above
    `max_window_bytes`. None where it can, and where only more of it tells."""
    if why := why_not_read(head, name):
        return why
    try:
        content = next(read_through(Cursor(io.BytesIO(head), max_window_bytes=max_window_bytes)), b"")
    except WindowError as error:
        return str(error)
    except DamagedError:
        return None
    if wikipedia.begins_dump(content):
        return why_not_converted(WIKITEXT)
    return why_content_not_read(content) if is_compressed(Cursor(io.BytesIO(head))) else None


class _WatchedStream:
    """A stream that remembers what it raised: the libraries that decode formats raise OSError for damaged
    content too, and a connection that broke off must not look like it. One that ends before the file's `size`
    is such a connection, too."""

    def __init__(self, stream: BinaryIO, size: int | None) -> None:
        self._stream, self._size = stream, size
        self.error: Exception | None = None

    def read(self, *size: int) -> bytes:
        try:
            data = self._stream.read(*size)
            if not data and size != (0,) and self._stream.tell() < (self._size or 0):
                raise OSError(f"the stream ends at byte {self._stream.tell():,} of {self._size:,}")
            return data
        except Exception as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def why_one_reader(stream: BinaryIO, options: ReadOptions) -> str:
    """Why no span of a file but the first held anything, and what to do."""
    kind = detect_format(stream, options)
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    if kind == "jsonl":
        return f"its rows are in one {how_to_split(head)}"
    if kind == "parquet":
        return "it has one row group: write it with more (row_group_size of pyarrow.parquet.write_table)"
    if kind == "wikipedia":
        return "it is a dump in one file: name the parts that dumps.wikimedia.org has of it (pages-articles1.xml-p1p…)"
    if kind == "wacz":
        return "it is a WACZ archive: name the WARC files in it, unpacked (unzip)"
    if is_streamed(head):
        return (
            "its records lie anywhere in bzip2 or xz streams: pack each as a gzip member (warcio recompress)"
        )
    if is_compressed(Cursor(io.BytesIO(head))):
        return "all its records are in one compressed member: pack each as its own (warcio recompress)"
    return "no record begins behind its first part"


def read_one(stream: BinaryIO, offset: int, options: ReadOptions, doc_id: bytes | None = None) -> Document:
    """The document at byte `offset` of a WARC (of a WACZ as `stages.reading.warc.wacz` counts them; of a JSONL
    file, and of a WARC in bzip2 or xz: of its decompressed bytes; of a Parquet file: the row), the same as
    `read_documents` gives there. ValueError says what is there instead.

    Of several records in one compressed member, and of several elements in a row, it is the document with
    `doc_id`, else the first."""
    try:
        kind = detect_format(stream, options)
        if kind == "warc":
            stream = content_stream(stream, options.max_window_bytes)
        found = _READERS_AT[kind](stream, offset, options, doc_id)
    except UnreadableError as error:
        raise ValueError(f"{options.file} cannot be read: {error}") from error
    if isinstance(found, Unreadable):
        raise ValueError(f"{options.file} at offset {offset} cannot be read: {found.error}")
    return _with_language(found, options)


def heads_at(stream: BinaryIO, offset: int, options: ReadOptions) -> tuple[bytes, bytes]:
    """The head of the record at byte `offset` of a WARC or ARC file, and the HTTP head in it, as they stand
    there; both empty for other formats, whose rows have none. ValueError where no record begins there."""
    try:
        if detect_format(stream, options) != "warc":
            return b"", b""
        return warc.read_heads_at(
            content_stream(stream, options.max_window_bytes), offset, options.max_window_bytes
        )
    except UnreadableError as error:
        raise ValueError(f"{options.file} at offset {offset} cannot be read: {error}") from error


def _with_language(document: Document, options: ReadOptions) -> Document:
    return document if options.language is None else document.but(language=options.language)


def read_numbered(stream: BinaryIO, offset: int, number: int, options: ReadOptions) -> Document:
    """The document with this number, from 0, among those at one place of a file; ValueError if there is
    none."""
    if not number:
        return read_one(stream, offset, options)
    found = (
        item
        for item in read_documents(stream, options)
        if isinstance(item, Document) and item.place.offset == offset
    )
    document = next(islice(found, number, None), None)
    if document is None:
        raise ValueError(f"{options.file}: there are fewer than {number + 1} documents at offset {offset}")
    return document


@contextmanager
def stream_of_records(stream: BinaryIO, offset: int, options: ReadOptions) -> Iterator[Stream]:
    """The stream in which a record of a WARC, ARC or WACZ file lies at the offset that `read_documents`
    gives."""
    if detect_format(stream, options) != "wacz":
        yield stream
        return
    with wacz.archive_at(stream, offset) as archive:
        yield archive or stream


def detect_format(stream: BinaryIO, options: ReadOptions) -> str:
    """`warc` (which ARC and WET are too), `wacz`, or another of Format: by the options, else the file's name, else its
    first bytes; these alone tell WACZ from WARC where it is named otherwise."""
    kind = named_format(options)
    if kind == "file" and options.format == "auto" and may_hold_rows(options.file):
        return _kind_of_text(stream, options.max_window_bytes)
    if kind is None:
        stream.seek(0)
        head = stream.read(len(PARQUET_MAGIC))
        if head == PARQUET_MAGIC:
            return "parquet"
        if wacz.is_zip(stream):
            return "wacz"
        begin = _begin_of_content(stream, options.max_window_bytes)
        if wikipedia.begins_dump(begin):
            return "wikipedia"
        kind = "jsonl" if jsonl.begins_with_object(begin) else "warc"
    return "wacz" if kind == "warc" and wacz.is_zip(stream) else kind


def _kind_of_text(stream: BinaryIO, max_window_bytes: int) -> str:
    """What a file named as a text is: a text, unless its first bytes are those of records or rows."""
    begin = _begin_of_content(stream, max_window_bytes)
    if begin.startswith(PARQUET_MAGIC):
        return "parquet"
    if begin.startswith(b"WARC/"):
        return "warc"
    return "jsonl" if jsonl.begins_with_row(begin) else "file"


def _begin_of_content(stream: BinaryIO, max_window_bytes: int) -> bytes:
    """What a file, decompressed, begins with; nothing where that cannot be read."""
    stream.seek(0)
    try:
        return next(read_through(Cursor(stream, max_window_bytes=max_window_bytes)), b"")
    except (DamagedError, WindowError):
        return b""


def named_format(options: ReadOptions) -> str | None:
    """The same as far as options and name tell; None where only the first bytes do."""
    if options.format != "auto":
        return "warc" if options.format == "wet" else options.format
    name = unpacked_name(options.file)
    named = next((format_name for format_name, endings in _ENDINGS.items() if name.endswith(endings)), None)
    return kind_by_name(name) if named is None else named


_ENDINGS = {
    "warc": (".warc", ".wet", ".wat", ".arc"),
    "wacz": (".wacz",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
}
