"""One record of a WARC or ARC file to a Document without its place.

Documents are `response`, `resource` and `conversion` records with the HTTP status 200 or none whose payload
is HTML or text: by its MIME type (`sniff.is_document_type`), or where that says nothing, by what a tool found
or the first bytes show. Of every other record only type, MIME type and status are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from lineage import ids
from stages.document import Document, Place
from stages.reading.charsets.charset import decode_text
from stages.reading.content import Content
from stages.reading.content_types import kind_of
from stages.reading.options import ReadOptions
from stages.reading.warc.body import BodyTooLongError, decode_body
from stages.reading.warc.head import LengthError, RecordHead, TooLongError, read_head
from stages.reading.warc.headers import (
    END_OF_HEADERS,
    MAX_HEADER_BYTES,
    STATUS,
    HttpHead,
    charset_of,
    mime_type,
    parse_http_head,
)
from stages.reading.warc.sniff import SNIFFED_BYTES, begins_html, is_document_type, is_known

DOCUMENT_TYPES: Final = frozenset({"response", "resource", "conversion"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WarcRecord:
    """A record's type, MIME type of its payload (None: not given) and HTTP status, and the document if it is
    one."""

    kind: str
    mime: str | None
    status: int | None
    document: Document | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payload:
    """What the heads of a record say of its payload, which has `num_bytes`."""

    head: RecordHead
    http: HttpHead | None
    num_bytes: int

    @property
    def content_type(self) -> str | None:
        return self.http.content_type if self.http else self.head.content_type

    @property
    def encoding(self) -> str | None:
        return self.http.encoding if self.http else None


def read_record(content: Content, options: ReadOptions, end: int | None = None) -> WarcRecord:
    """The record that begins here; the content is left behind its block. MalformedError if it is not whole,
    LengthError if only its length is wrong.

    `end`: where in the content its block ends, whatever length it gives."""
    head = read_head(content)
    begin = content.position
    length = head.length if end is None else max(end - begin, 0)
    if isinstance(length, str):
        raise LengthError(f"Content-Length {length[:40]!r} is not a number of bytes")
    http = _http_head(content, head, length)
    payload = _Payload(head=head, http=http, num_bytes=length - (content.position - begin))
    mime, status = mime_type(payload.content_type), http.status if http else None
    document = None
    has_status = status is None or options.statuses is None or status in options.statuses
    if head.kind in DOCUMENT_TYPES and has_status:
        is_page = not is_known(mime) and _shows_html(content, payload)
        if is_page or is_document_type(mime or "", options.mime):
            document = _read_document(content, payload, options, is_html=is_page or "html" in (mime or ""))
    if document is None:
        _expect(content.skip(payload.num_bytes), payload.num_bytes)
    return WarcRecord(kind=head.kind, mime=mime, status=status, document=document)


def _shows_html(content: Content, payload: _Payload) -> bool:
    """Whether a payload of no known type, which begins here, is HTML."""
    if "html" in (payload.head.identified or ""):
        return True
    num_bytes = min(payload.num_bytes, SNIFFED_BYTES)
    return begins_html(content.peek(num_bytes), payload.encoding)


def _http_head(content: Content, head: RecordHead, length: int) -> HttpHead | None:
    """The HTTP head that the record's block begins with, taken; None, and nothing taken, where there is
    none."""
    if not head.may_be_http or content.peek(5) != b"HTTP/":
        return None
    limit = min(length, MAX_HEADER_BYTES)
    block = content.take_through(END_OF_HEADERS, limit)
    if block is None and length <= MAX_HEADER_BYTES:
        block = content.take(length)
        _expect(len(block), length)
    return parse_http_head(block) if block else None


def _read_document(content: Content, payload: _Payload, options: ReadOptions, *, is_html: bool) -> Document:
    head, num_bytes, content_type = payload.head, payload.num_bytes, payload.content_type or ""
    hashes = _Hashes(head.record_id or "", head.url or "", num_bytes)
    held = b"".join(hashes.through(_pieces(content, num_bytes), keep=num_bytes <= options.max_document_bytes))
    hint, encoding = charset_of(content_type), payload.encoding
    has_text = not is_html and kind_of(content_type) is None
    text, charset = _plain_text(held, encoding, hint, options.max_document_bytes) if has_text else ("", None)
    return Document(
        doc_id=hashes.doc_id,
        source=options.source,
        place=Place(file=options.file, offset=0, length=0),
        raw_hash=hashes.raw_hash,
        num_bytes=num_bytes,
        payload=held,
        is_html=is_html,
        content_type=content_type[:200],
        charset_hint=hint,
        content_encoding=encoding,
        headers=_headers(payload.http),
        record_id=head.record_id,
        url=head.url,
        captured_at=head.captured_at,
        truncated=head.truncated,
        charset=charset,
        text=text,
    )


def _headers(http: HttpHead | None) -> tuple[tuple[str, str], ...]:
    """Those of a response that a document keeps; its status, where that is another than 200."""
    if http is None:
        return ()
    return http.rights if http.status in (None, 200) else ((STATUS, str(http.status)), *http.rights)


def _plain_text(payload: bytes, encoding: str | None, hint: str | None, limit: int) -> tuple[str, str | None]:
    """The text of a payload that is not HTML, and its charset; no text where it inflates beyond `limit`
    bytes."""
    try:
        return decode_text(decode_body(payload, encoding, limit), hint, is_html=False)
    except BodyTooLongError:
        return "", None


class _Hashes:
    """raw_hash and doc_id (see `ids.content_hash` and `ids.warc_doc_id`) of a payload that comes in
    pieces."""

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
        raise TooLongError(f"the record ends {wanted - found} bytes before its Content-Length does")
