"""Header blocks of WARC records and HTTP messages: names to values, content types, status lines.

Input is hostile: nothing here raises, and a header that cannot be understood is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEADER_BYTES: Final = 1 << 20
"""Longest header block read, in bytes; browsers stop at a quarter of that."""

END_OF_HEADERS = re.compile(rb"\r?\n[ \t]*\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})(?!\d)", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([^\s\"';,]{1,60})", re.IGNORECASE)

_LISTS: Final = frozenset({"content-encoding", "transfer-encoding"})
_MOST_CODINGS: Final = 100  # characters; a hostile head repeats a line fifty thousand times


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHead:
    """What an HTTP response says of its body. `encoding` lists the codings that were applied, in that order."""

    status: int | None
    content_type: str | None
    encoding: str | None


def decode(value: bytes) -> str:
    """A header value as text: UTF-8 as the WARC standard has it, or else Latin-1, which fits any bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def header_fields(block: bytes) -> dict[str, str]:
    """The fields of a header block without its first line, by lower-case name; the first of a repeated name counts, but
    codings of a body add up (RFC 9110, 5.3). A line that begins with white space continues the one before it."""
    fields: dict[str, str] = {}
    last: list[bytes] = []
    for line in block.split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t") and last:
            last.append(line.strip())
            continue
        _add_field(fields, last)
        last = [line.strip()]
    _add_field(fields, last)
    return fields


def _add_field(fields: dict[str, str], lines: list[bytes]) -> None:
    name, colon, value = b" ".join(lines).partition(b":")
    if not colon:
        return
    field, content = decode(name).strip().lower(), decode(value).strip()
    if field in _LISTS and len(fields.get(field, "")) < _MOST_CODINGS:
        fields[field] = f"{fields[field]},{content}" if field in fields else content
    else:
        fields.setdefault(field, content)


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
        encoding=",".join(coding for coding in named if coding and coding != "identity")[:_MOST_CODINGS] or None,
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
