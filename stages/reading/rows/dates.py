"""The date that a row's field holds: a text, a number, or a date of Parquet."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Final

from stages.reading.warc.head import iso_date

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = range(315_532_800, 4_102_444_800)
"""Unix times that are dates: 1980 to 2099. Below it a number is a year, a count or an empty value; past it an
id."""
_UNITS: Final = (1, 10**3, 10**6, 10**9)
"""Of a Unix time to a second: seconds, milliseconds, microseconds, nanoseconds. The ranges that they give do
not meet, and none of them meets that of the digits below."""
_DIGITS: Final = re.compile(r"(1[4-9]\d\d|20\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?")
"""A calendar date in digits, or one with its time as WARC file names and CDX files have it. Years from 1400
on."""
_NUMBER: Final = re.compile(r"\d{8,19}(?:\.\d{0,12})?|\d(?:\.\d{1,18})?[eE]\+?\d{1,2}")
_ZONE: Final = r"(?:\s+(?:[+-]\d{4}|GMT|UTC?|Z|[ECMP][SD]T))?"
_TIME: Final = r"\s+\d\d?:\d\d(?::\d\d)?"
_INTERNET: Final = re.compile(
    # RFC 2822 (section 3.3), and RFC 850's form of it, which HTTP takes too (RFC 9110, section 5.6.7)
    rf"(?:[a-z]{{3,9}},?\s+)?\d{{1,2}}[ -][a-z]{{3}}[ -](?:\d{{4}}|\d\d){_TIME}{_ZONE}(?:\s*\([^()]*\))?"
    # asctime, with a zone before the year as well
    rf"|[a-z]{{3}}\s+[a-z]{{3}}\s+\d{{1,2}}{_TIME}{_ZONE}\s+\d{{4}}",
    re.IGNORECASE | re.ASCII,
)
_IN_WORDS: Final = re.compile(r"\s(?:UTC|GMT)$")
_MOST_CHARS: Final = 100
"""Of a text that can be a date."""


def date_of(value: Any) -> str | None:
    """The date as ISO 8601 in UTC, whole seconds unless it gives fractions; None if it is none.

    Dates are texts in ISO 8601, RFC 2822 or one of HTTP's forms; eight digits (a day) and fourteen; Unix times
    from 1980 to 2099 in seconds, milliseconds, microseconds or nanoseconds. Digits may be a number or a text.
    Without a zone they are in UTC."""
    if isinstance(value, date):
        return iso_date(value.isoformat())
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _of_number(value)
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return _of_number(Decimal(text))
    return iso_date(_IN_WORDS.sub("Z", text)) or _of_internet(text)


def _of_number(value: int | float | Decimal) -> str | None:
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        return None
    if number == number.to_integral_value() and (digits := _DIGITS.fullmatch(f"{number:.0f}")):
        year, month, day, hour, minute, second = digits.groups()
        return iso_date(f"{year}-{month}-{day}" + (f"T{hour}:{minute}:{second}Z" if hour else ""))
    for unit in _UNITS:
        if int(number) // unit in _SECONDS:
            moment = _EPOCH + timedelta(microseconds=int(number * 10**6 / unit))
            return iso_date(moment.isoformat())
    return None


def _of_internet(text: str) -> str | None:
    if not _INTERNET.fullmatch(text):
        return None
    try:
        return iso_date(parsedate_to_datetime(text).isoformat())
    except ValueError:
        return None
