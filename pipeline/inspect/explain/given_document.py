"""The document that a call of `explain` names: a page on disk, a plain text, a record or a row of a file.

What the call says a file is, is held against its first bytes: a table judged as a page would come out as one
without a text."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from lineage.ids import content_hash, warc_doc_id
from lineage.magic import GZIP_MAGIC, ZSTD_MAGIC
from lineage.recipe import RecipeError
from lineage.storage.folder import filesystem, is_remote, local_path
from pipeline.inputs.files import list_inputs
from pipeline.recipe.tables import LimitsTable, SourceTable
from stages.document import Document, Place
from stages.reading.jsonl import looks_like_jsonl
from stages.reading.magic import HEAD_BYTES, PARQUET_MAGIC, is_streamed, why_not_read
from stages.reading.options import ReadOptions
from stages.reading.reader import detect_format, read_documents, read_numbered
from stages.reading.warc.sniff import begins_html

_TAG: Final = re.compile(
    rb"<(?:!doctype|html|head|body|meta|link|title|script|style|div|span|p|a|h[1-6]|br|table|ul|ol|li|img|article|main"
    rb"|section|center|font|b|i|form)[\s/>]",
    re.IGNORECASE,
)
"""A page may begin with a text, or with the error message of the program that made it: a tag somewhere is
enough."""
_BINARY: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
"""A byte that no text has (MIME Sniffing standard, section 3, "binary data byte")."""
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


_OF_FILES: Final = ("file", "pdf", "epub", "latex")
"""Formats whose files are documents by themselves, in the offset 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file as a call names it, by the option `option`; the place in it, where one is named: a byte `offset`
    or a `row`, and the number of an `element` there; and the URL to judge it by."""

    path: str
    option: str
    offset: int | None = None
    row: int | None = None
    element: int | None = None
    url: str | None = None


def named_document(
    *,
    file: str | None,
    text: str | None,
    warc: str | None,
    offset: int | None,
    row: int | None,
    element: int | None,
    url: str | None,
) -> NamedFile:
    """What a call names by its options, of which it gives those that are not None; RecipeError where they do not go
    together."""
    given = {"--file": file, "--text": text, "--warc": warc}
    named = [(option, path) for option, path in given.items() if path is not None]
    if len(named) != 1:
        raise RecipeError(
            "expected --file HTML, --text FILE, --file JSONL --offset N, --file PARQUET --row N or --warc"
            " FILE --offset N; or OUT with --doc ID or --url URL"
        )
    ((option, path),) = named
    has_place = offset is not None or row is not None
    if offset is not None and row is not None:
        raise RecipeError("--offset names a byte and --row a row of a Parquet file: expected one of them")
    if url is not None and (option == "--warc" or has_place):
        raise RecipeError(
            "--url goes with a --file of HTML and with --text: a record or row has a URL of its own"
        )
    if has_place and option == "--text":
        raise RecipeError("--offset and --row go with --warc and --file: a --text is read as a whole")
    if element is not None and not has_place:
        raise RecipeError(
            "--element goes with --offset or --row: it is the number of a document among those of one row"
        )
    if option == "--warc" and not has_place:
        raise RecipeError("--warc needs --offset N: the byte at which the record's member begins")
    return NamedFile(path=path, option=option, offset=offset, row=row, element=element, url=url)


def document_of(named: NamedFile, source: SourceTable, limits: LimitsTable) -> Document:
    """The document, as a run of the source would read it. RecipeError where there is no such file, or it is
    not what the call says; ValueError where nothing begins at its place."""
    has_place = named.offset is not None or named.row is not None
    with _opened(named.path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if named.option == "--text":
            if _BINARY.search(head) and not head.startswith(_UTF16):
                raise RecipeError(f"--text {named.path}: it is no text, for it has bytes that no text has")
            return _whole(stream, named, source, limits, is_html=False)
        if named.option == "--file" and not has_place:
            reading = _reading(named, source, limits)
            if named.url is None and detect_format(stream, reading) in _OF_FILES:
                return _at_place(stream, head, replace(named, offset=0), source, limits)
            stream.seek(0)
            if why := why_no_page(head, named.path):
                raise RecipeError(f"--file {named.path}: {why}")
            return _whole(stream, named, source, limits, is_html=True)
        return _at_place(stream, head, named, source, limits)


def why_no_page(head: bytes, name: str) -> str | None:
    """Why a file that begins with these bytes (HEAD_BYTES of them, or all there are) is no HTML, and what to
    do; None for one that is."""
    if not head.strip():
        return "it holds nothing"
    if begins_html(head, None):
        return None
    if head.startswith(PARQUET_MAGIC):
        return "it is a Parquet file: name one of its rows, with --row N"
    if head.startswith(b"WARC/"):
        return "it is a crawl file: name one of its records, with --warc FILE --offset N"
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)) or is_streamed(head):
        return (
            "it is compressed: name a record of a crawl file with --warc FILE --offset N, a line of JSON"
            " lines with --file FILE --offset N, or unpack a page first"
        )
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
        return "it holds JSON: name the byte at which one of its lines begins, with --offset N"
    is_wide = head.startswith(_UTF16)
    has_tag = (
        _TAG.search(head.decode("utf-16", "ignore").encode("utf-8", "ignore") if is_wide else head)
        is not None
    )
    # By its magic alone where it has a tag, which may stand in a PDF too; else by its name as well.
    why = (
        None
        if is_wide or (has_tag and head.lstrip()[:1] == b"<")
        else why_not_read(head, "" if has_tag else name)
    )
    if why is not None:
        return f"expected an HTML page, and {why}"
    if has_tag:
        return None
    if not is_wide and _BINARY.search(head):
        return "expected an HTML page, and it has bytes that no text has, and no tag of HTML"
    return "expected an HTML page, and there is no tag of HTML in it: --text FILE takes it as plain text"


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with filesystem(path).open(path if is_remote(path) else local_path(path), "rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise RecipeError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise RecipeError(f"{path} is a folder: name a file in it") from error


def _whole(
    stream: BinaryIO, named: NamedFile, source: SourceTable, limits: LimitsTable, *, is_html: bool
) -> Document:
    """The whole file as one document."""
    payload = stream.read(limits.max_document_bytes + 1)
    return Document(
        doc_id=warc_doc_id("", named.url or "", payload),
        source=source.name,
        raw_hash=content_hash(payload),
        payload=payload,
        place=Place(file=os.path.basename(named.path), offset=0, length=len(payload)),
        num_bytes=len(payload),
        is_html=is_html,
        content_type="text/html" if is_html else "text/plain",
        url=named.url,
        language=source.language,
    )


def _at_place(
    stream: BinaryIO, head: bytes, named: NamedFile, source: SourceTable, limits: LimitsTable
) -> Document:
    """The record or row that begins at a place of the file."""
    reading = _reading(named, source, limits)
    kind = detect_format(stream, reading)
    stream.seek(0)
    if named.option == "--file" and kind == "warc":
        if begins_html(head, None):
            raise RecipeError(
                "--offset goes with --warc, or with a --file of JSON lines: a page is read as a whole"
            )
        raise RecipeError(f"--file {named.path}: of a crawl file name a record, with --warc FILE --offset N")
    if named.option == "--file" and kind == "jsonl" and not looks_like_jsonl(stream, limits.max_window_bytes):
        raise RecipeError(f"--file {named.path}: expected JSON lines, and it does not begin with an object")
    if named.row is not None and kind != "parquet":
        raise RecipeError(
            f"--row goes with a Parquet file, and {named.path} is none: --offset N names the byte where a line begins"
        )
    if named.option == "--file" and named.row is None and kind == "parquet":
        raise RecipeError(
            f"{named.path} is a Parquet file, whose rows have numbers and no bytes: --row N names one"
        )
    stream.seek(0)
    place = named.row if named.row is not None else named.offset
    assert place is not None
    try:
        found: Document = read_numbered(stream, place, named.element or 0, reading)
    except ValueError as error:
        stream.seek(0)
        if nearest := _nearest_places(stream, place, reading):
            where = "row" if named.row is not None else "offset"
            raise ValueError(
                f"{error}; the nearest documents: {where} {f' and {where} '.join(nearest)}"
            ) from error
        raise
    return found


def _reading(named: NamedFile, source: SourceTable, limits: LimitsTable) -> ReadOptions:
    """How a run of the source reads the file that the call names, if it is what the call's option says."""
    return ReadOptions(
        source=source.name,
        file=_input_name(named.path, source),
        format=source.format if named.option == "--warc" or source.format in _OF_FILES else "auto",
        fields=source.row_fields,
        language=source.language,
        mime=source.mime,
        namespaces=source.namespaces,
        max_document_bytes=limits.max_document_bytes,
        max_window_bytes=limits.max_window_bytes,
    )


def _nearest_places(stream: BinaryIO, place: int, options: ReadOptions) -> list[str]:
    """Where the last document of a file before a place begins, and the first behind it; none if one begins
    there. The file is read up to there."""
    before: int | None = None
    for item in read_documents(stream, options):
        if not isinstance(item, Document):
            continue
        if item.place.offset == place:
            return []
        if item.place.offset > place:
            return [str(each) for each in (before, item.place.offset) if each is not None]
        before = item.place.offset
    return [] if before is None else [str(before)]


def _input_name(path: str, source: SourceTable) -> str:
    """What a run of the source calls this file, on which the ids of rows depend; its base name where it reads
    no such file."""
    if not is_remote(path):
        wanted = os.path.realpath(local_path(path))
        with contextlib.suppress(
            RecipeError, OSError
        ):  # the inputs of a recipe need not be there to explain a page
            for found in list_inputs(source):
                if not is_remote(found.url) and os.path.realpath(local_path(found.url)) == wanted:
                    return found.name
    return os.path.basename(path)
