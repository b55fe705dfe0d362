"""One WARC record (ISO 28500) to a Document without its place.

Documents are `response`, `resource` and `conversion` records with an HTML or text type (`text/*`, or a type with
`html`) and the HTTP status 200 or none; of every other record only type, MIME type and status are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from blake3 import blake3

from lineage import ids
from stages.document import Document, Place
from stages.reading.body import BodyTooLongError, decode_body
from stages.reading.charset import decode_text
from stages.reading.content import Content
from stages.reading.headers import (
    END_OF_HEADERS,
    MAX_HEADER_BYTES,
    HttpHead,
    charset_of,
    header_fields,
    mime_type,
    parse_http_head,
)
from stages.reading.options import ReadOptions, UnreadableError

DOCUMENT_TYPES: Final = frozenset({"response", "resource", "conversion"})
_VERSION = re.compile(rb"WARC/[01]\.\d{1,3}[ \t]*\r?\n")
_OTHER_VERSION = re.compile(rb"(WARC/\d{1,4}\.\d{1,4})\r?\n")
_LONGEST_FIRST_LINE: Final = 64
_DATE_AND_TIME = re.compile(r"[0-9W-]{7,10}(?:[T ].*)?")
"""Python takes any character between date and time, so that 20260131123 would be eleven at night."""


class MalformedError(UnreadableError):
    """The bytes can be had, but are not a whole record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record's type, MIME type of its payload (None: not given) and HTTP status, and the document if it is one."""

    kind: str
    mime: str | None
    status: int | None
    document: Document | None


def read_record(content: Content, options: ReadOptions) -> Record:
    """The record that begins here; the content is left behind its block. MalformedError if it is not whole."""
    first = content.peek(_LONGEST_FIRST_LINE)
    if not _VERSION.match(first):
        # Never the bytes themselves: they can be a page's text, which has no place in the tables.
        other = _OTHER_VERSION.match(first)
        found = f"the version is {other[1].decode()}" if other else "there is no WARC record"
        raise MalformedError(f"{found}: expected WARC/0.x or WARC/1.x")
    block = content.take_through(END_OF_HEADERS, MAX_HEADER_BYTES)
    if block is None:
        raise MalformedError(f"a record header without an end within {MAX_HEADER_BYTES} bytes")
    fields = header_fields(block)
    length = _content_length(fields)
    kind = fields.get("warc-type", "none").lower()
    begin = content.position
    head = _http_head(content, fields, length)
    content_type = head.content_type if head else fields.get("content-type")
    mime, status = mime_type(content_type), head.status if head else None
    left = length - (content.position - begin)
    document = None
    if kind in DOCUMENT_TYPES and status in (None, 200) and mime and (mime.startswith("text/") or "html" in mime):
        document = _read_document(content, left, fields, head, options)
    else:
        _expect(content.skip(left), left)
    return Record(kind=kind, mime=mime, status=status, document=document)


def _content_length(fields: dict[str, str]) -> int:
    given = fields.get("content-length", "none")
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise MalformedError(f"Content-Length {given[:40]!r} is not a number of bytes")
    return int(given)


def _http_head(content: Content, fields: dict[str, str], length: int) -> HttpHead | None:
    """The HTTP head that the record's block begins with, taken; None, and nothing taken, where there is none."""
    if mime_type(fields.get("content-type", "application/http")) != "application/http" or content.peek(5) != b"HTTP/":
        return None
    limit = min(length, MAX_HEADER_BYTES)
    block = content.take_through(END_OF_HEADERS, limit)
    if block is None and length <= MAX_HEADER_BYTES:
        block = content.take(length)
        _expect(len(block), length)
    return parse_http_head(block) if block else None


def _read_document(
    content: Content, num_bytes: int, fields: dict[str, str], head: HttpHead | None, options: ReadOptions
) -> Document:
    record_id, url = fields.get("warc-record-id"), _strip_brackets(fields.get("warc-target-uri"))
    content_type = (head.content_type if head else fields.get("content-type")) or ""
    hashes = _Hashes(record_id or "", url or "", num_bytes)
    payload = b"".join(hashes.through(_pieces(content, num_bytes), keep=num_bytes <= options.max_document_bytes))
    is_html = "html" in (mime_type(content_type) or "")
    hint, encoding = charset_of(content_type), head.encoding if head else None
    text, charset = ("", None) if is_html else _plain_text(payload, encoding, hint, options.max_document_bytes)
    return Document(
        doc_id=hashes.doc_id,
        source=options.source,
        place=Place(file=options.file, offset=0, length=0),
        raw_hash=hashes.raw_hash,
        num_bytes=num_bytes,
        payload=payload,
        is_html=is_html,
        content_type=content_type[:200],
        charset_hint=hint,
        content_encoding=encoding,
        record_id=record_id,
        url=url,
        captured_at=iso_date(fields.get("warc-date")),
        charset=charset,
        text=text,
    )


def _plain_text(payload: bytes, encoding: str | None, hint: str | None, limit: int) -> tuple[str, str | None]:
    """The text of a payload that is not HTML, and its charset; no text where it inflates beyond `limit` bytes."""
    try:
        return decode_text(decode_body(payload, encoding, limit), hint, is_html=False)
    except BodyTooLongError:
        return "", None


class _Hashes:
    """raw_hash and doc_id (see `ids.content_hash` and `ids.warc_doc_id`) of a payload that comes in pieces."""

    def __init__(self, record_id: str, url: str, num_bytes: int) -> None:
        self._raw = blake3()
        prefix = ids.length_prefixed(
            record_id.encode("utf-8", "surrogateescape"), url.encode("utf-8", "surrogateescape")
        )
        self._doc = blake3(prefix + num_bytes.to_bytes(8, "little"))

    def through(self, pieces: Iterator[bytes], *, keep: bool) -> Iterator[bytes]:
        """Hash the pieces and hand them on, or drop them."""
        for piece in pieces:
            self._raw.update(piece)
            self._doc.update(piece)
            if keep:
                yield piece

    @property
    def raw_hash(self) -> bytes:
        return self._raw.digest(length=ids.ID_BYTES)

    @property
    def doc_id(self) -> bytes:
        return self._doc.digest(length=ids.ID_BYTES)


def _pieces(content: Content, num_bytes: int) -> Iterator[bytes]:
    left = num_bytes
    while left and (piece := content.take_some(left)):
        yield piece
        left -= len(piece)
    _expect(num_bytes - left, num_bytes)


def _expect(found: int, wanted: int) -> None:
    if found < wanted:
        raise MalformedError(f"the record ends {wanted - found} bytes before its Content-Length does")


def _strip_brackets(uri: str | None) -> str | None:
    """A URI without the brackets that WARC/1.0's grammar puts around it (ISO 28500:2009, section 4)."""
    return (uri or "").removeprefix("<").removesuffix(">").strip() or None


def iso_date(value: str | None) -> str | None:
    """A date as ISO-8601 UTC, whole seconds unless it gives fractions; None if it is not a date."""
    # RFC 3339 (section 5.6) has a lower-case t and z too, which Python has not.
    text = (value or "").strip().upper()
    if not _DATE_AND_TIME.fullmatch(text):
        return None
    try:
        date = datetime.fromisoformat(text)
        date = date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return date.isoformat().replace("+00:00", "Z")
