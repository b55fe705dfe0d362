"""Which records are documents by their MIME type, and whether bytes of no known type are HTML."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from typing import Final

from stages.reading.warc.body import BodyTooLongError, decode_body

SNIFFED_BYTES: Final = 2048
"""Of a body: browsers look at 1,445 (MIME Sniffing standard, section 5.2), and codings add some."""
_INFLATED_BYTES: Final = 8 << 20

UNKNOWN_TYPES: Final = frozenset({
    "*/*", "application/force-download", "application/octet-stream", "application/octetstream", "application/unknown",
    "application/x-octet-stream", "application/x-unknown", "application/x-unknown-content-type", "binary/octet-stream",
    "content/unknown", "no-type", "none", "null", "octet/stream", "unknown", "unknown/unknown", "x-unknown",
    "x-unknown/x-unknown",
})  # fmt: skip
"""Types by which a server says that it knows none (the same, section 5.1 and 7), and how ARC files say so."""

_FOR_MACHINES: Final = frozenset({
    "text/cache-manifest", "text/calendar", "text/css", "text/dns", "text/ecmascript", "text/event-stream",
    "text/javascript", "text/jscript", "text/json", "text/livescript", "text/vbscript", "text/vcard",
    "text/x-component", "text/x-cross-domain-policy", "text/x-ecmascript", "text/x-javascript", "text/x-json",
    "text/x-vcard",
})  # fmt: skip
"""Of `text/*`, what is written for programs: styles and scripts (as the HTML standard lists their types),
answers of name servers, records of calendars and address books, data."""
_SCRIPT = re.compile(r"text/javascript1\.\d")

_SPACES: Final = rb"\t\n\f\r "
_HTML = re.compile(
    rb"[%(s)b]*+<(?:!--|(?:!doctype[%(s)b]++html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p)"
    rb"[%(s)b/>])"
    rb"|[%(s)b]*+<\?xml[%(s)b][^>]*+>(?:[%(s)b]|<!--.*?-->)*+<(?:!doctype[%(s)b]++)?html[%(s)b/>]"
    % {b"s": _SPACES},
    re.IGNORECASE | re.DOTALL,
)
"""The tags that HTML may begin with, behind white space (the same, section 7.1); and XHTML behind an XML
declaration. Browsers want a space or `>` behind the tag; here it may be any white space."""


def is_known(mime: str | None) -> bool:
    """Whether a MIME type says what a payload is."""
    return mime is not None and "/" in mime and mime not in UNKNOWN_TYPES


def is_document_type(mime: str, more: Collection[str]) -> bool:
    """Whether payloads of a MIME type are documents: a type with `html`, or `text/*` but for what programs
    read; and what `more` lists (types, or `text/*` for all that begin so, or `*/*`)."""
    if more and (mime in more or mime.partition("/")[0] + "/*" in more or "*/*" in more):
        return True
    if mime in _FOR_MACHINES or _SCRIPT.fullmatch(mime):
        return False
    return mime.startswith("text/") or "html" in mime


def begins_html(head: bytes, encoding: str | None) -> bool:
    """Whether a payload, of which these are the first bytes, is HTML. `encoding` as of `decode_body`."""
    if encoding:
        try:
            head = decode_body(head, encoding, _INFLATED_BYTES)
        except BodyTooLongError:
            return False
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        head = head[: SNIFFED_BYTES * 2].decode("utf-16", "ignore").encode("utf-8", "ignore")
    return _HTML.match(head.removeprefix(codecs.BOM_UTF8)[:SNIFFED_BYTES]) is not None
