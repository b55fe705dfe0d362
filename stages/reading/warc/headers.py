"""Header blocks of WARC records and HTTP messages: names to values, content types, status lines.

Input is hostile: nothing here raises, and a header that cannot be understood is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEADER_BYTES: Final = 1 << 20
"""Longest header block read, in bytes; browsers stop at a quarter of that."""

END_OF_HEADERS = re.compile(rb"\n[ \t]*\r?\n")
"""Ends where a header block does. It begins with the one byte that is there for certain: with a carriage
return that may be there it would be tried at every byte, and take ten times as long."""
_STATUS_LINE = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})(?!\d)", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([^\s\"';,]{1,60})", re.IGNORECASE)

_LISTS: Final = frozenset({"content-encoding", "transfer-encoding"})
RIGHTS_FIELDS: Final = (
    "content-usage", "content-signal", "tdm-reservation", "tdm-policy", "x-robots-tag", "link", "location",
)  # fmt: skip
"""Fields of a response that may say how its page may be used, and where it redirects to."""
STATUS: Final = ":status"
"""The name of the status among a document's headers, as in HTTP/2 (RFC 9113, 8.3.2)."""
_MOST_OF_FIELD: Final = 4_000  # characters
_MOST_CODINGS: Final = 100  # characters; a hostile head repeats a line fifty thousand times


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHead:
    """What an HTTP response says of its body. `encoding` lists the codings that were applied, in that
    order; `rights` are the fields of RIGHTS_FIELDS that it has, several lines of one joined by line ends."""

    status: int | None
    content_type: str | None
    encoding: str | None
    rights: tuple[tuple[str, str], ...]


def decode(value: bytes) -> str:
    """A header value as text: UTF-8 as the WARC standard has it, or else Latin-1, which fits any bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def header_fields(block: bytes) -> dict[str, str]:
    """The fields of a header block without its first line, by lower-case name; the first of a repeated name
    counts, but codings of a body add up (RFC 9110, 5.3). A line that begins with white space continues the
    one before it."""
    fields: dict[str, str] = {}
    for line in _lines(block):
        name, colon, value = line.partition(":")
        if not colon:
            continue
        field = name.strip().lower()
        if field not in fields:
            fields[field] = value.strip()
        elif field in _LISTS and len(fields[field]) < _MOST_CODINGS:
            fields[field] += f",{value.strip()}"
        elif field in RIGHTS_FIELDS and len(fields[field]) < _MOST_OF_FIELD:
            fields[field] += f"\n{value.strip()}"
    return fields


def _lines(block: bytes) -> list[str]:
    """The lines behind the first, continued ones as one; each decoded by itself where they are not all
    UTF-8."""
    if b"\n " not in block and b"\n\t" not in block:
        try:
            return block.decode("utf-8").split("\n")[1:]
        except UnicodeDecodeError:
            pass
    lines: list[str] = []
    last: list[bytes] = []
    for line in block.split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t") and last:
            last.append(line.strip())
            continue
        lines.append(_decoded_field(last))
        last = [line.strip()]
    return [*lines, _decoded_field(last)]


def _decoded_field(lines: list[bytes]) -> str:
    name, colon, value = b" ".join(lines).partition(b":")
    return f"{decode(name)}:{decode(value)}" if colon else ""


def parse_http_head(block: bytes) -> HttpHead | None:
    """The head of an HTTP response, or None if the bytes do not begin with a status line."""
    line = _STATUS_LINE.match(block)
    if not line:
        return None
    fields = header_fields(block)
    codings = [fields.get("content-encoding", ""), fields.get("transfer-encoding", "")]
    named = [coding for each in codings for coding in each.lower().replace(" ", "").split(",")]
    return HttpHead(
        status=int(line[1]),
        content_type=fields.get("content-type"),
        encoding=",".join(coding for coding in named if coding and coding != "identity")[:_MOST_CODINGS]
        or None,
        rights=tuple(
            (name, fields[name][:_MOST_OF_FIELD])
            for name in RIGHTS_FIELDS
            if name in fields and (name != "link" or "license" in fields[name].lower())
        ),
    )


def mime_type(content_type: str | None) -> str | None:
    """The MIME type of a Content-Type value, lower-case, without parameters; None if there is none."""
    if content_type is None:
        return None
    return content_type.partition(";")[0].strip().lower() or None


def charset_of(content_type: str | None) -> str | None:
    """The charset parameter of a Content-Type value as it was given."""
    match = _CHARSET.search(content_type or "")
    return match[1] if match else None
