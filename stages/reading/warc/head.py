"""Where a record of a WARC (ISO 28500) or ARC file begins, and what its head says.

ARC is what crawlers wrote before WARC: Common Crawl until 2012, Heritrix 1
(https://archive.org/web/researcher/ArcFileFormat.php). A record is one line and its block:

  version 1   URL IP-address date MIME-type length
  version 2   URL IP-address date MIME-type status checksum location offset file length
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from stages.reading.content import Content
from stages.reading.options import UnreadableError
from stages.reading.warc.headers import END_OF_HEADERS, MAX_HEADER_BYTES, decode, header_fields, mime_type

_WARC: Final = b"WARC/"
_VERSION = re.compile(rb"(?i:WARC)/[01]\.\d{1,3}[ \t]{0,8}\r?\n")
_END_OF_VERSION = re.compile(rb"/[01]\.\d{1,3}[ \t]{0,8}\r?\n")
_OTHER_VERSION = re.compile(rb"((?i:WARC)/\d{1,4}\.\d{1,4})\r?\n")
_LONGEST_FIRST_LINE: Final = 64
NEXT_WARC: Final = re.compile(rb"(?=" + _VERSION.pattern + rb")")
"""Matches where a WARC record may begin: also within a line, as what stands before it may break off
anywhere."""
NEXT_WARC_LINE: Final = re.compile(rb"\n(?=" + _VERSION.pattern + rb")")
"""Ends where a WARC record may begin on a line of its own. Within a member nothing else is looked for: a page
that shows a WARC file is likelier there than a record that breaks off."""

MAX_ARC_HEAD_BYTES: Final = 8 << 10
"""Longest line that counts as an ARC record's head; Heritrix takes URLs of 2,083 characters at most."""
_SCHEME = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]{0,30}:")
_ARC_IP: Final = rb"(?:[0-9A-Fa-f.:]{1,45}|-)"
_ARC_DATE: Final = rb"\d{12,17}"
_ARC_LINE = re.compile(rb"[^\n]{1,%d}\n" % MAX_ARC_HEAD_BYTES)
_ARC_IP_WORD, _ARC_DATE_WORD = re.compile(_ARC_IP), re.compile(_ARC_DATE)
_WORDS_AFTER_DATE: Final = 7  # in version 2
NEXT_ARC: Final = re.compile(
    rb"\n(?=%b[^\s]{1,%d}+ %b %b [^\n]{1,200} ?\d{1,18}\r?\n)"
    % (_SCHEME.pattern, MAX_ARC_HEAD_BYTES - 300, _ARC_IP, _ARC_DATE)
)
"""Ends where an ARC record may begin, whose URL holds no space: behind damage, any other line could be
meant."""

_DATE_AND_TIME = re.compile(r"[0-9W-]{7,10}(?:[T ].*)?")
"""Python takes any character between date and time, so that 20260131123 would be eleven at night."""
_WRITTEN_AS_WE_DO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
"""The one form of WARC/1.0 (ISO 28500:2009, section 5.4), and of nearly every record since."""
_TRUNCATED = re.compile(r"[a-z-]{1,20}")


class MalformedError(UnreadableError):
    """The bytes can be had, but are not a whole record."""


class LengthError(MalformedError):
    """The bytes may be a whole record, but not of the length that its head gives."""


class TooLongError(LengthError):
    """The bytes end before the length does."""


class TornHeadError(MalformedError):
    """The bytes end before the head does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """What the head of a record says; `length` counts the bytes of its block, and is the text that was given
    where that is no number.

    `kind` is the WARC-Type in lower case, or for ARC `filedesc`, `dns`, `response` or `resource`.
    `may_be_http`: the block may begin with an HTTP head. `identified`: the MIME type that a tool found in the
    payload. `truncated`: why the record does not hold the whole payload, if it says so: a reason of
    WARC-Truncated, or `segment`."""

    kind: str
    length: int | str
    record_id: str | None = None
    url: str | None = None
    captured_at: str | None = None
    content_type: str | None = None
    may_be_http: bool = True
    identified: str | None = None
    truncated: str | None = None


def begins_record(content: Content) -> bool:
    """Whether the content goes on with what may be a record."""
    return content.peek(len(_WARC)).upper() == _WARC or _arc_head(content) is not None


def next_record(content: Content) -> re.Pattern[bytes]:
    """Where to look within a member for the records behind this one: a file keeps to WARC or ARC."""
    return (
        NEXT_WARC_LINE
        if content.peek(len(_WARC)).upper() == _WARC or _arc_head(content) is None
        else NEXT_ARC
    )


def read_head(content: Content) -> RecordHead:
    """The head of the record that begins here, taken. MalformedError if none does, or it is not whole."""
    first = content.peek(_LONGEST_FIRST_LINE)
    if _VERSION.match(first):
        return _warc_head(_header_block(content))
    arc = _arc_head(content)
    if arc is not None:
        line, head = arc
        content.skip(len(line))
        return head
    # Never the bytes themselves: they can be a page's text, which has no place in the tables.
    other = _OTHER_VERSION.match(first)
    found = f"the version is {other[1].decode()}" if other else "there is no WARC record"
    raise MalformedError(f"{found}: expected WARC/0.x or WARC/1.x")


def _header_block(content: Content) -> bytes:
    block = content.take_through(END_OF_HEADERS, MAX_HEADER_BYTES)
    if block is None:
        kind = MalformedError if len(content.peek(MAX_HEADER_BYTES)) == MAX_HEADER_BYTES else TornHeadError
        raise kind(f"a record header without an end within {MAX_HEADER_BYTES} bytes")
    # A header that breaks off runs into the next record, which would be taken for the rest of it.
    again = _next_head(block)
    if again is not None:
        content.give_back(len(block) - again)
        raise MalformedError("the record's header breaks off: the first line of another record follows")
    return block


def _next_head(block: bytes) -> int | None:
    """Where in a header block another record begins; None if it holds one head alone."""
    within_line = None
    for found in _END_OF_VERSION.finditer(block, len(_WARC)):
        begin = found.start() - len(_WARC) + 1
        if block[begin : found.start() + 1].upper() == _WARC:
            if block[begin - 1 : begin] == b"\n":
                return begin
            within_line = within_line or begin
    # A value may end as a version does, as an address may; so what follows must be a head.
    if within_line is not None:
        fields = header_fields(block[within_line:])
        if "warc-type" in fields and "content-length" in fields:
            return within_line
    return None


def _warc_head(block: bytes) -> RecordHead:
    fields = header_fields(block)
    if not fields.keys() & {
        "warc-type",
        "content-length",
    }:  # a length alone may be wrong; this is no head at all
        raise MalformedError("a record header with neither WARC-Type nor Content-Length")
    content_type = fields.get("content-type")
    return RecordHead(
        kind=fields.get("warc-type", "none").lower(),
        length=_content_length(fields),
        record_id=fields.get("warc-record-id"),
        url=_strip_brackets(fields.get("warc-target-uri")),
        captured_at=iso_date(fields.get("warc-date")),
        content_type=content_type,
        may_be_http=content_type is None or mime_type(content_type) == "application/http",
        identified=mime_type(fields.get("warc-identified-payload-type")),
        truncated=_truncated(fields),
    )


def _content_length(fields: dict[str, str]) -> int | str:
    given = fields.get("content-length", "none")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else given


def _truncated(fields: dict[str, str]) -> str | None:
    reason = fields.get("warc-truncated")
    if reason is not None:
        reason = reason.lower()
        return reason if _TRUNCATED.fullmatch(reason) else "unspecified"
    return "segment" if "warc-segment-number" in fields else None


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
        if _WRITTEN_AS_WE_DO.fullmatch(text):
            return text
        date = date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return date.isoformat().replace("+00:00", "Z")


def _arc_head(content: Content) -> tuple[bytes, RecordHead] | None:
    """The line that an ARC record begins with here, and what it says; None if none does."""
    if not _SCHEME.match(content.peek(_LONGEST_FIRST_LINE)):
        return None
    line = _ARC_LINE.match(content.peek(MAX_ARC_HEAD_BYTES))
    if not line:
        return None
    words = line[0].rstrip(b"\r\n").split(b" ")
    length = words[-1]
    # From the end: a URL may hold spaces, and with them anything.
    dates = range(len(words) - 2, 1, -1)
    at = next(
        (n for n in dates if _ARC_DATE_WORD.fullmatch(words[n]) and _ARC_IP_WORD.fullmatch(words[n - 1])),
        None,
    )
    if at is None or not (length.isdigit() and len(length) <= 18):
        return None
    url, types = decode(b" ".join(words[: at - 1])), words[at + 1 : -1]
    if len(types) == _WORDS_AFTER_DATE - 1:
        types = types[:1]
    head = RecordHead(
        kind=_arc_kind(url),
        length=int(length),
        url=url,
        captured_at=_arc_date(words[at].decode()),
        content_type=decode(b" ".join(types)) or None,
    )
    return line[0], head


def _arc_kind(url: str) -> str:
    scheme = url.partition(":")[0].lower()
    if scheme in ("filedesc", "dns"):
        return scheme
    return "response" if scheme in ("http", "https") else "resource"


def _arc_date(digits: str) -> str | None:
    digits = digits[:14].ljust(14, "0")
    parts = [digits[at : at + 2] for at in range(4, 14, 2)]
    month, day, hour, minute, second = parts
    return iso_date(f"{digits[:4]}-{month}-{day}T{hour}:{minute}:{second}Z")
