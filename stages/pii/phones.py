"""Phone numbers, by Google's rules for each country's numbering plan (the phonenumbers library)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from stages.pii.linear import linear

_MARGIN: Final = 48  # bytes of context on each side: more than the matcher looks at
_LONGEST: Final = 4096
_SEVEN_DIGITS = linear(rb"\d(?:[^0-9A-Za-z\n]{0,6}\d){6,}")  # between two digits up to six bytes: "\u202f(0) "
# Dates, spans of years and grouped amounts are most of what holds seven digits, and the library takes long over each.
_NO_PHONE = linear(
    rb"\d{1,2}[./-] ?\d{1,2}[./-] ?(?:1[5-9]|20)\d\d|(?:1[5-9]|20)\d\d[./-]\d{1,2}[./-]\d{1,2}"
    rb"|(?:1[5-9]|20)\d\d ?[/-] ?(?:1[5-9]|20)\d\d|(?:1[5-9]|20)\d\d ?\xe2\x80[\x90-\x94] ?(?:1[5-9]|20)\d\d"
    rb"|\d{1,3}(?:[.,]\d{3}){2,4}(?:[.,]\d\d)?"
)
_DATE = re.compile(r"\W*(?:\d{1,2}[./]\d{1,2}[./](?:1[5-9]|20)\d\d|(?:19|20)\d\d-\d)")
_NAMED = re.compile(r"(?:tel|phone|fon|call|fax|mobile?|cell|whats ?app|sms|text)\w*[\s.:#)-]{0,6}$", re.IGNORECASE)


def find_phones(data: bytes, region: str) -> Iterator[tuple[int, int]]:
    """Byte spans of valid phone numbers: with `+` and country code, or in the national form of `region` (ISO 3166).

    Digits in one piece without `+` are taken for a phone number only after a word such as `tel` or `call`: identifiers
    look the same (FineWeb gave plain phone patterns up for that reason). What begins as a date or with a year and a
    hyphen (`2016-011092`) is none."""
    for start, end in _windows(data):
        window = data[start:end].decode("utf-8", "ignore")
        for match in _matcher()(window, region):
            if _DATE.match(match.raw_string):
                continue
            if match.raw_string.isdigit() and not _NAMED.search(window[: match.start]):
                continue
            first = start + len(window[: match.start].encode("utf-8"))
            yield first, first + len(match.raw_string.encode("utf-8"))


def _windows(data: bytes) -> Iterator[tuple[int, int]]:
    """Stretches around every seven digits that could be one number, without overlap and each on whole characters."""
    begun, ended = -1, -1
    for match in _SEVEN_DIGITS.finditer(data):
        if _NO_PHONE.fullmatch(match[0]) and data[match.start() - 1 : match.start()] != b"+":
            continue
        start, end = max(match.start() - _MARGIN, 0), min(match.end() + _MARGIN, len(data))
        if begun >= 0 and start <= ended and end - begun <= _LONGEST:
            ended = end
            continue
        if begun >= 0:
            yield _on_characters(data, begun, ended)
        begun, ended = max(start, ended), end
    if begun >= 0:
        yield _on_characters(data, begun, ended)


def _on_characters(data: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and data[start] & 0xC0 == 0x80:
        start += 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return start, end


@cache
def _matcher() -> Any:
    from phonenumbers import Leniency, PhoneNumberMatcher

    def numbers(text: str, region: str) -> Any:
        return PhoneNumberMatcher(text, region, leniency=Leniency.VALID)

    return numbers
