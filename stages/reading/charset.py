"""Bytes to text: byte-order mark, HTTP header, <meta>, strict UTF-8, then a detector, in this fixed order.

A charset that is named counts if it is known and the bytes fit it: a few misfits are replaced by U+FFFD, more of them
mean that the name lies, and the next source is asked. Only charsets of the web are known, by all their labels
(https://encoding.spec.whatwg.org, section 4.2) and Python's, each read as the superset that browsers read it as;
Python's other codecs (`punycode`, `utf-7`, …) are never reached.
"""

from __future__ import annotations

import codecs
import encodings.aliases
import re
from collections.abc import Iterator
from typing import Final

import cchardet
import webencodings

_META_BYTES: Final = 4096
"""Browsers look for <meta charset> in the first 1,024 bytes (HTML standard, 13.2.3.2), real pages have it later."""
_DETECTOR_BYTES: Final = 1 << 20
_MISFIT_SHARE: Final = 0.1
"""Largest share of U+FFFD among the characters that are not ASCII."""

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
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_READ_AS: Final = {
    "ascii": "cp1252", "latin_1": "cp1252", "iso8859_1": "cp1252", "iso8859_9": "cp1254", "iso8859_11": "cp874",
    "tis_620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949",
    "big5": "big5hkscs", "utf_16": "utf-16-le",
}  # fmt: skip
"""Python's codecs that browsers read as a superset of them."""
_CODECS: Final = (
    "utf-8", "utf-16-le", "utf-16-be", "gb18030", "big5hkscs", "cp932", "euc_jp", "iso2022_jp", "cp949", "cp866",
    "cp874", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "koi8_r",
    "koi8_u", "mac_roman", "mac_cyrillic", "iso8859_2", "iso8859_3", "iso8859_4", "iso8859_5", "iso8859_6",
    "iso8859_7", "iso8859_8", "iso8859_10", "iso8859_13", "iso8859_14", "iso8859_15", "iso8859_16",
)  # fmt: skip
_MORE_LABELS: Final = {
    "iso_8859_8_i": "iso8859_8", "windows_31j": "cp932", "windows_874": "cp874", "gb_2312_80": "gb18030",
    "unicode": "utf-16-le", "ms932": "cp932",
    # Its upper half is private characters, which no page that names it in itself means (HTML standard, 13.2.3.2).
    "user_defined": "cp1252",
}  # fmt: skip


def _labels() -> dict[str, str]:
    """Every label known, with `_` for what is no letter or digit, to a codec. Labels never reach `codecs.lookup`,
    which keeps each unknown one for ever."""
    codec_of = {_label(codec): codec for codec in _CODECS} | _READ_AS
    labels = {alias: codec_of[module] for alias, module in encodings.aliases.aliases.items() if module in codec_of}
    labels |= codec_of | _MORE_LABELS
    of_the_web = {_label(label): labels.get(_label(name)) for label, name in webencodings.LABELS.items()}
    return labels | {label: codec for label, codec in of_the_web.items() if codec}


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").removeprefix("x_")


def decode_text(payload: bytes, hint: str | None = None, *, is_html: bool = True) -> tuple[str, str]:
    """The text of `payload` and the name of the charset that was used (Python's name for it).

    `hint` is the charset of the HTTP header, as it was given. Never raises: what fits nothing is read as UTF-8 with
    U+FFFD for the rest. A byte-order mark is not part of the text."""
    for name in _candidates(payload, hint, is_html):
        text = _fit(payload, name)
        if text is not None:
            return text.removeprefix("\ufeff"), name
    return payload.decode("utf-8", "replace").removeprefix("\ufeff"), "utf-8"


def known_charset(name: str | None) -> str | None:
    """Python's codec for what browsers read `name` as; None if it is no charset of the web."""
    return _LABELS.get(_label(name)) if name else None


_LABELS: Final = _labels()


def _candidates(payload: bytes, hint: str | None, is_html: bool) -> Iterator[str]:
    # Before the header, as browsers do (Encoding Standard, "decode"): `utf-16` there tells no order of bytes.
    yield from (name for mark, name in _MARKS if payload.startswith(mark))
    named = known_charset(hint)
    if named:
        yield named
    named = _declared_charset(payload[:_META_BYTES]) if is_html else None
    if named:
        # Bytes in which a <meta> can be read are not UTF-16 (HTML standard, 13.2.3.3).
        yield "utf-8" if named.startswith("utf-16") else named
    if _is_utf8(payload):
        yield "utf-8"
    detected = known_charset(cchardet.detect(payload[:_DETECTOR_BYTES])["encoding"])
    if detected:
        yield detected


def _declared_charset(head: bytes) -> str | None:
    """The known charset that a page's first bytes name in a <meta>, or else in an XML declaration (HTML standard,
    13.2.3.2, "prescan a byte stream to determine its encoding"). Comments and other elements' attributes name none."""
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
    """The attributes of the tag whose name ends at `at`, the first of a name, and where they end. A tag that is cut off
    has none."""
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


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _fit(payload: bytes, name: str) -> str | None:
    """`payload` read as `name`, or None if it does not fit."""
    if name.startswith("utf-16") and b"\0" not in payload and not payload.startswith(_UTF16_MARKS):
        return None
    try:
        return payload.decode(name)
    except UnicodeDecodeError:
        text = payload.decode(name, "replace")
    num_misfits, num_ascii = text.count("\ufffd"), len(text.encode("ascii", "ignore"))
    return text if num_misfits <= _MISFIT_SHARE * (len(text) - num_ascii) else None
