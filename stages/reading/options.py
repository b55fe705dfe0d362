"""A reader's options, what it gives besides documents, and what it counts."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Literal

from stages.fault import Fault

Format = Literal["auto", "warc", "wet", "jsonl", "parquet", "file", "wikipedia", "pdf", "epub", "latex"]

DEFAULT_WINDOW_BYTES: Final = 128 << 20
"""What `zstd --long` (27) writes, and every decoder of it takes without being asked to."""
MAX_WINDOW_BYTES: Final = 2 << 30
"""What `zstd --long=31` writes: there is no more in the library."""
WINDOW_KEY: Final = "limits.max_window_bytes"
"""The recipe's key for it: an error that names it says that a file is not damaged."""

DEFAULT_COMPRESSION_RATIO: Final = 1_000
"""About the most that gzip can do; text compresses to a third, and copies of one page to a hundredth."""
RATIO_KEY: Final = "limits.max_compression_ratio"
ALWAYS_UNFOLDED_BYTES: Final = 256 << 20
"""Documents that a file may unfold to whatever its size: a small one of few texts, each again and again, is
none that fills a disk."""

MAX_DISTINCT: Final = 1000
"""Distinct names one counter holds: a hostile file may give each record a type of its own."""

Note = Literal["mended", "other_members", "surrogates", "odd_dates", "empty", "marker", "binary"]
"""`mended`: records whose length was wrong, read to the end of their compressed member. `other_members`:
files of a WACZ beside its archives, which are passed over. `surrogates`: rows with a lone surrogate in text,
id or URL. `odd_dates`: rows whose usual fields of a date hold something else. `empty`: files that hold
nothing, compressed or not. `marker`: files that a writer of tables leaves beside them
(`file_names.is_marker`). `binary`: files that are no text, where each file is a document."""

_MIME = re.compile(r"[\w.+*-]{1,60}/[\w.+*-]{1,120}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFields:
    """Which fields of a JSONL or Parquet row hold its text, id, URL and date; a dot leads into a nested
    field, `[]` into the elements of a list, unless a field has that whole name. None: the usual name (`id`;
    `url`; `captured_at`, or else `date`), where it holds what is expected. In a field that is named here
    anything else is an error of the row, but for null and a field that is missing."""

    text: str = "text"
    id: str | None = None
    url: str | None = None
    date: str | None = None


@dataclass(frozen=True, slots=True)
class Border:
    """Where a span of a file ends and the next one begins: a byte of the file, as it lies, and what a reader
    knows there that has read the file from its first byte on. `state` is the reader's own; `offset` and
    `number` are the byte of the content and the number of the row, where places are of that kind."""

    position: int
    state: str = ""
    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpan:
    """The bytes [begin, end) of a file: of its records those whose first byte lies there.

    Without `start` the reader looks for the first place where a record may begin, which what the span before
    it ends with must confirm. With `start` it goes on from there; `stop` is where a span of JSON lines ends,
    whose places and numbers were counted before."""

    begin: int
    end: int
    start: Border | None = None
    stop: Border | None = None

    @property
    def name(self) -> str:
        """A name for files, of this span of a file alone."""
        borders = (each for each in (self.start, self.stop) if each is not None)
        shown = (f".{at.position}-{at.state}-{at.offset}-{at.number}" for at in borders)
        return f"{self.begin}-{self.end}{''.join(shown)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read one input file.

    `file` is its relative name, as it stands in the tables. `size` is its length in bytes where that is
    known; it is used for how much the rest of a damaged file is, and for `max_compression_ratio`: a file
    whose documents unfold to more than so many times its size (and to more than 256 MiB) is not read on.
    `fields` are for JSONL and Parquet. `language` is that of every text, where the recipe names it. `mime`
    are types whose records are documents besides HTML and text (see `sniff.is_document_type`).
    `max_window_bytes`: what is held of a compressed file's content for its references back.
    `statuses`: HTTP statuses of responses that are documents (None: all). `namespaces`: those of a MediaWiki dump
    whose pages are documents.
    `limit_documents`: behind the document with this number, from 1, nothing more is read or counted. `span`:
    what is read of the file, if not all of it."""

    source: str
    file: str
    format: Format = "auto"
    max_document_bytes: int = 16 << 20
    max_window_bytes: int = DEFAULT_WINDOW_BYTES
    max_compression_ratio: int = DEFAULT_COMPRESSION_RATIO
    size: int | None = None
    fields: RowFields = RowFields()
    language: str | None = None
    mime: tuple[str, ...] = ()
    statuses: frozenset[int] | None = frozenset({200})
    limit_documents: int | None = None
    span: FileSpan | None = None
    namespaces: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A stretch of an input that holds no whole record: `length` bytes (rows of a Parquet file) from
    `offset`. The length is 0 where it is not known, as that of the rest of a compressed JSONL file is not:
    `error` says then that no more of the file is read.

    `num_records` is about how many records are lost; None where only the length tells. `num_bytes` is how
    many bytes of the file, as it lies, were not read, where the length does not tell; with `breaks_off` the
    file ends within a record or member, and nobody knows how much is missing. It has a `fault` where reading
    raised what no reader expects."""

    file: str
    offset: int
    length: int
    error: str
    num_records: int | None = None
    num_bytes: int | None = None
    breaks_off: bool = False
    fault: Fault | None = None


class UnreadableError(Exception):
    """Content that holds no whole record. The message never quotes it: it has no place in the tables."""

    fault: Fault | None = None


class _UnreadableForAnyError:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (UnreadableError, OSError, MemoryError)):
            return
        raised = UnreadableError(f"reading it raised {(fault := Fault.of(error)).summary}")
        raised.fault = fault
        raise raised from error


def unreadable_for_any_error() -> AbstractContextManager[None]:
    """Whatever the block raises comes out as an UnreadableError, so that one record never ends the reading of
    its file. What is not about the record passes: a stream that fails (OSError), and memory that is used
    up."""
    return _FOR_ANY_ERROR


_FOR_ANY_ERROR: Final = _UnreadableForAnyError()
"""It has no state; to make one from a generator for each record takes longer than to read a head."""


@dataclass(slots=True)
class InputCounts:
    """What was read of one input file. `num_records` is the sum of each of `by_type`, and for WARC of
    `by_mime` and `by_status`; a stretch that could not be read counts in `num_unreadable` alone.

    `notes` counts what was read in another way than it says of itself, or passed over, by Note.

    `end` is where the file ends, in the unit of its places, once that is known (it never is for compressed
    JSONL); `by_row` says that places are numbers of rows. `odd_date` is the first of the note `odd_dates`.

    Of a span: `began` is where its first record was looked for (None: no record begins in it) and `ended` where
    the first one behind it begins (None: reading ended before that). `num_unfolded` are the bytes that its
    documents have, as `max_compression_ratio` counts them; `most_excess` is the most by which its unreadable
    stretches were ever more than twice its documents."""

    num_records: int = 0
    num_documents: int = 0
    num_unreadable: int = 0
    end: int | None = None
    by_row: bool = False
    by_type: dict[str, int] = field(default_factory=dict)
    by_mime: dict[str, int] = field(default_factory=dict)
    by_status: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    odd_date: str | None = None
    began: Border | None = None
    ended: Border | None = None
    num_unfolded: int = 0
    most_excess: int = 0

    def add_record(self, kind: str, mime: str | None, status: int | None) -> None:
        """Count one WARC record: its type, the MIME type of its payload, its HTTP status."""
        self.num_records += 1
        _count(self.by_type, kind if len(kind) <= 60 else "malformed")
        _count(self.by_mime, "none" if mime is None else mime if _MIME.fullmatch(mime) else "malformed")
        _count(self.by_status, "none" if status is None else str(status))

    def add(self, other: InputCounts) -> None:
        """Count what was read of another file too; where files end is of each alone."""
        self.num_records += other.num_records
        self.num_documents += other.num_documents
        self.num_unreadable += other.num_unreadable
        self.odd_date = self.odd_date or other.odd_date
        for mine, more in (
            (self.by_type, other.by_type),
            (self.by_mime, other.by_mime),
            (self.by_status, other.by_status),
            (self.notes, other.notes),
        ):
            for name, num in more.items():
                mine[name] = mine.get(name, 0) + num

    def note(self, name: Note) -> None:
        """Count one more of these."""
        self.notes[name] = self.notes.get(name, 0) + 1

    def note_odd_date(self, shown: str) -> None:
        """Count one more that is no date, of which so much may be shown."""
        self.note("odd_dates")
        self.odd_date = self.odd_date or shown

    def add_row(self, kind: str = "row") -> None:
        """Count one row of a JSONL or Parquet file, or an element of one."""
        self.num_records += 1
        _count(self.by_type, kind)


def _count(counter: dict[str, int], name: str) -> None:
    if name not in counter and len(counter) >= MAX_DISTINCT:
        name = "other"
    counter[name] = counter.get(name, 0) + 1
