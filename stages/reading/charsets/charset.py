"""Bytes to text, in one order: what the bytes themselves say, what header and page say, a detector,
windows-1252.

1. A byte-order mark.
2. UTF-8 with at least one character of several bytes, whatever header or page say: text of another charset is
  next to
   never valid UTF-8. Escape sequences of ISO-2022-JP and ISO-2022-KR, which no other text has.
3. The charset that the HTTP header names, then the one that the page names, each while the bytes do not
  refute it.
4. Of bytes beyond ASCII that are left: UTF-8 with more characters than misfits, then what a detector finds,
  if there is
   evidence for it (`detector`).
5. Last windows-1252, as browsers do (HTML standard, 13.2.3.2).

Refuted is a charset in which more than a tenth of what is not ASCII cannot be decoded: a damaged byte, or a
character that is cut off at the end, refutes nothing in a page of many, and everything in a page that has no
other."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

from stages.reading.charsets.detector import detected_charset
from stages.reading.charsets.labels import known_charset

_META_BYTES: Final = 4096
"""Browsers look for <meta charset> in the first 1,024 bytes (HTML standard, 13.2.3.2), real pages have it
later."""
_MISFIT_SHARE: Final = 0.1
"""Largest share of misfits among the characters that are not ASCII."""

_SPACES: Final = rb"\t\n\f\r "
_TAG = re.compile(
    rb"<(?:(?P<comment>!--)|(?P<meta>meta)(?=[%(spaces)b/])|(?P<tag>/?[a-z][^%(spaces)b>]*+)|[!/?][^>]*+(?:>|\Z))"
    % {b"spaces": _SPACES},
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(
    rb"[%(spaces)b/]*+(?P<name>[^%(spaces)b/>][^%(spaces)b/>=]*+)(?:[%(spaces)b]*+=[%(spaces)b]*+"
    rb"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<open>[\"'].*+)|(?P<bare>[^%(spaces)b>]*+)))?"
    % {b"spaces": _SPACES},
    re.DOTALL,
)
_CHARSET_IN_CONTENT = re.compile(
    rb"charset[%(spaces)b]*+=[%(spaces)b]*+(?:\"([^\"]*+)\"|'([^']*+)'|([^%(spaces)b;\"'][^%(spaces)b;]*+))"
    % {b"spaces": _SPACES},
    re.IGNORECASE,
)
_XML = re.compile(rb"\s*+<\?xml\s[^>]{0,200}?encoding\s*+=\s*+[\"']\s*+([\w.:-]{2,40})", re.IGNORECASE)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ESCAPES: Final = (
    (re.compile(rb"\x1b\$(?:[@B]|\(D)"), "iso2022_jp_ext"),
    (re.compile(rb"\x1b\$\)C"), "iso2022_kr"),
)
"""What opens the Japanese (RFC 1468, RFC 2237) and the Korean (RFC 1557) set of characters."""
_MISFIT: Final = "\ufffd"
_JIS: Final = frozenset({"euc_jp", "iso2022_jp_ext"})
_JIS_ERRORS: Final = "sluice.jis"
_FEW: Final = 1_000


def decode_text(payload: bytes, hint: str | None = None, *, is_html: bool = True) -> tuple[str, str]:
    """The text of `payload` and the name of the charset that was used (Python's name for it).

    `hint` is the charset of the HTTP header, as it was given. Never raises: what does not fit is U+FFFD. A
    byte-order mark is not part of the text."""
    for mark, name in _MARKS:
        if payload.startswith(mark) and (text := _fit(payload, name)) is not None:
            return text.removeprefix("\ufeff"), name
    payload = payload.removeprefix(codecs.BOM_UTF8)  # a mark that lied
    is_ascii = payload.isascii()
    if not is_ascii and (text := _fit(payload, "utf-8")) is not None:
        return text, "utf-8"
    for name in _named_charsets(payload, hint, is_html):
        if (is_ascii or name != "utf-8") and (text := _fit(payload, name)) is not None:
            return text, name
    if is_ascii:
        return payload.decode("ascii"), "utf-8"
    text = payload.decode("utf-8", "replace")
    num_misfits, num_characters = _count_misfits(payload, text, "utf-8")
    if num_misfits < num_characters / 2:
        return text, "utf-8"
    name = detected_charset(payload) or "cp1252"
    return _decoded(payload, name), name


def _named_charsets(payload: bytes, hint: str | None, is_html: bool) -> Iterator[str]:
    if b"\x1b" in payload and payload.isascii():
        yield from (name for escape, name in _ESCAPES if escape.search(payload))
    named = known_charset(hint)
    if named:
        yield named
    named = _declared_charset(payload[:_META_BYTES]) if is_html else None
    if named:
        # Bytes in which a <meta> can be read are not UTF-16 (HTML standard, 13.2.3.3).
        yield "utf-8" if named.startswith("utf-16") else named


def _declared_charset(head: bytes) -> str | None:
    """The known charset that a page's first bytes name in a <meta>, or else in an XML declaration (HTML
    standard, 13.2.3.2, "prescan a byte stream to determine its encoding"). Comments and other elements'
    attributes name none."""
    at = 0
    while tag := _TAG.search(head, at):
        at = tag.end()
        if tag["comment"]:
            end = head.find(b"-->", at - 2)  # <!--> is a whole comment
            if end < 0:
                break
            at = end + 3
        elif tag["meta"] or tag["tag"]:
            attributes, at = _attributes(head, at)
            named = _charset_of_meta(attributes) if tag["meta"] else None
            if named:
                return named
    declared = _XML.match(head)
    return known_charset(declared[1].decode("ascii", "replace")) if declared else None


def _attributes(head: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    """The attributes of the tag whose name ends at `at`, the first of a name, and where they end. A tag that
    is cut off has none."""
    found: dict[bytes, bytes] = {}
    while attribute := _ATTRIBUTE.match(head, at):
        at = attribute.end()
        value = attribute["double"] or attribute["single"] or attribute["bare"] or b""
        found.setdefault(attribute["name"].lower(), value.lower())
    return (found if at < len(head) else {}), at


def _charset_of_meta(attributes: dict[bytes, bytes]) -> str | None:
    label = attributes.get(b"charset")
    if label is None and attributes.get(b"http-equiv") == b"content-type":
        in_content = _CHARSET_IN_CONTENT.search(attributes.get(b"content", b""))
        label = in_content and (in_content[1] or in_content[2] or in_content[3])
    return known_charset(label.decode("ascii", "replace")) if label else None


def _fit(payload: bytes, name: str) -> str | None:
    """`payload` read as `name`, or None if the bytes refute that."""
    if name.startswith("utf-16") and b"\0" not in payload and not payload.startswith(_UTF16_MARKS):
        return None
    try:
        return payload.decode(name)
    except UnicodeDecodeError:
        text = _decoded(payload, name)
    num_misfits, num_characters = _count_misfits(payload, text, name)
    return text if num_misfits <= _MISFIT_SHARE * num_characters else None


def _count_misfits(payload: bytes, text: str, name: str) -> tuple[int, int]:
    """The misfits of a text that was read as `name`, and its characters that are not ASCII."""
    num_misfits = text.count(_MISFIT)
    if name == "utf-8":
        num_misfits -= payload.count(_MISFIT.encode())  # written so, by whoever damaged the text before
    num_characters = len(text) - len(text.encode("ascii", "ignore"))
    if 0 < num_misfits < num_characters and text.endswith(_MISFIT):
        num_misfits -= 1  # cut off within a character
    return num_misfits, num_characters


def _decoded(payload: bytes, name: str) -> str:
    text = payload.decode(name, "replace")
    # A function for errors takes a microsecond for each: it is not asked about megabytes of another kind.
    if name in _JIS and 0 < text.count(_MISFIT) <= max(_FEW, _MISFIT_SHARE * len(text)):
        return payload.decode(name, _JIS_ERRORS)
    return text


def _with_vendors_rows(error: UnicodeError) -> tuple[str, int]:
    """Decodes what NEC and IBM added to JIS X 0208 (①, ㈱, 髙, …), which browsers read (Encoding Standard,
    index jis0208) and Python knows of in cp932 alone."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    row, cell = (byte & 0x7F for byte in (error.object[error.start : error.start + 2] + b"\0\0")[:2])
    if 0x21 <= row <= 0x7E and 0x21 <= cell <= 0x7E:
        # The same place in Shift_JIS: two rows share a lead byte (JIS X 0208:1997, appendix 1).
        lead = (row - 0x21) // 2 + (0x81 if row < 0x5F else 0xC1)
        trail = cell + (0x1F + (cell >= 0x60) if row % 2 else 0x7E)
        text = bytes((lead, trail)).decode("cp932", "ignore")
        if text:
            return text[0], error.start + 2
    return _MISFIT, error.end


codecs.register_error(_JIS_ERRORS, _with_vendors_rows)
