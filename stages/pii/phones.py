"""Phone numbers, by Google's rules for each country's numbering plan (the phonenumbers library)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from stages.linear import linear
from stages.pii.surroundings import is_in_identifier

_MARGIN: Final = 48  # bytes of context on each side: more than the matcher looks at
_SHORT: Final = 8  # bytes by which that may grow; more digits in a row are a match of their own
_LONGEST: Final = 4096
# Digits of the scripts that write phone numbers in their own: Arabic, Persian, Devanagari, Bengali, full
# width.
_DIGIT: Final = rb"(?:\d|\xd9[\xa0-\xa9]|\xdb[\xb0-\xb9]|\xe0[\xa5\xa7][\xa6-\xaf]|\xef\xbc[\x90-\x99])"
# The library takes up to four spaces, hyphens, points, slashes and brackets between two digits (its
# _VALID_PUNCTUATION), of which many have two or three bytes. Times, amounts and addresses have others.
_BETWEEN: Final = (
    rb"(?:[ ()./~\[\]-]|\xc2[\xa0\xad]|\xe2[\x80\x81\x88][\x80-\xbf]|\xe3[\x80\x83][\x80-\xbf]"
    rb"|\xef[\xbc\xbd][\x80-\xbf]){0,4}"
)
GATE: Final = _DIGIT + rb"(?:" + _BETWEEN + _DIGIT + rb"){6}"
"""What every phone number holds: a search for it is cheap."""

_SEVEN_DIGITS = linear(_DIGIT + rb"(?:" + _BETWEEN + _DIGIT + rb"){6,}")
# Dates, spans of years and grouped amounts are most of what holds seven digits, and the library takes long
# over each.
_NO_PHONE = linear(
    rb"\d{1,2}[./-] ?\d{1,2}[./-] ?(?:1[5-9]|20)\d\d|(?:1[5-9]|20)\d\d[./-]\d{1,2}[./-]\d{1,2}"
    rb"|(?:1[5-9]|20)\d\d ?[/-] ?(?:1[5-9]|20)\d\d|(?:1[5-9]|20)\d\d ?\xe2\x80[\x90-\x94] ?(?:1[5-9]|20)\d\d"
    rb"|\d{1,3}(?:[.,]\d{3}){2,4}(?:[.,]\d\d)?"
)
_DATE = re.compile(
    r"\W*(?:\d{1,2}[./]\d{1,2}[./](?:1[5-9]|20)\d\d|(?:19|20)\d\d-\d"
    r"|(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\d))"
)
_PLUS: Final = ("+", "＋")
_OPENING: Final = {"(": ")", "[": "]", "（": "）", "［": "］"}
_LINK: Final = r"[\W_]{0,6}(?:(?:is|no|nr|num|number|nummer|numéro|numero|número)\b[\W_]{0,4}){0,2}$"
# "phone" and "fon" also within a word (smartphone, Diensttelefon); "hotel" and "context" name no number.
_NAMED = re.compile(
    r"(?:phone|fon|\b(?:t[eé]l|call|fax|mobile?|cell|whats ?app|sms|text|gsm|handy|hotline|móvil|тел|моб|факс|τηλ)"
    r"|телефон|هاتف|تلفن|फ़ोन|फोन|โทร|电话|電話|手机|手機|传真|傳真|携帯|전화|휴대폰|핸드폰)\w*" + _LINK,
    re.IGNORECASE,
)
# Words for numbers of other kinds, which are grouped like phone numbers: of books, companies, accounts,
# goods.
_NAMED_OTHERWISE = re.compile(
    r"\b(?:isbn|issn|ismn|isrc|ean|gtin|upc|asin|sku|doi|pmid|pzn|wkn|isin|imei|iban|bic|blz|swift|kto|konto\w*|account"
    r"|acct|aba|routing|hrb|hra|ust-?id\w*|steuer\w*|vat|mwst|tax|ein|tin|siren|siret|rcs|naf|ape|tva|nip|regon|krs|pesel"
    r"|kvk|btw|abn|acn|tfn|cnpj|cpf|cif|nif|nie|cuit|rut|rfc|p\. ?iva|iva|cvr|orgnr|org|ičo|ico|dič|dic|oib|pib|инн|кпп"
    r"|огрн|бик|снилс|gstin|tracking|order|invoice|serial|patent|part|article|ticket|case|batch|lot|bestell\w*|artikel\w*"
    r"|art|kunden\w*|rechnung\w*|ref|réf|teile\w*)\b(?:-?1[03])?"
    + _LINK.removesuffix("$")
    + r"[A-Z]{0,2}[\d ./-]{0,24}$",
    re.IGNORECASE,
)


def find_phones(data: bytes, region: str | None) -> Iterator[tuple[int, int]]:
    """Byte spans of valid phone numbers: with `+` and country code, or in the national form of `region` (ISO
    3166).

    Digits in one piece without `+` are taken for a phone number only after a word such as `tel` or `call`:
    identifiers look the same (FineWeb gave plain phone patterns up for that reason). A bracket that is closed
    behind the number is none of it. Without `+`, what begins as a date or with a year and a hyphen
    (`2016-011092`), what is joined to letters (`eu-20260812-09`), and what a word calls a number of another
    kind (`ISBN 978-…`) is none."""
    for window in _windows(data):
        text = data[window.start : window.end].decode("utf-8")
        for match in _matcher()(text, region):
            number = _without_open_bracket(match.raw_string)
            begins = window.start + len(text[: match.end - len(number)].encode("utf-8"))
            ends = begins + len(number.encode("utf-8"))
            if window.counts_from <= begins < window.counts_to and _is_phone(data, begins, ends, number):
                yield begins, ends


def _without_open_bracket(number: str) -> str:
    """A find of the library, which takes up to two brackets before a number for a part of it, without those
    that are closed behind it: `(212) 736-5000` is whole, of `(212-736-5000` the first character is none of
    it."""
    while number[0] in _OPENING and number.count(number[0]) > number.count(_OPENING[number[0]]):
        number = number[1:].lstrip()
    return number


def _is_phone(data: bytes, start: int, end: int, number: str) -> bool:
    """Whether what stands around a valid number leaves it one."""
    if number.startswith(_PLUS):
        return True
    before = data[_margin_before(data, start) : start].decode("utf-8")
    if _NAMED.search(before):
        return number.isdigit() or not _DATE.match(number)
    return not (
        number.isdigit()
        or _DATE.match(number)
        or is_in_identifier(data, start, end)
        or _NAMED_OTHERWISE.search(before)
    )


def may_hold_phones(data: bytes) -> bool:
    """Whether some country could have a phone number here: digits in groups, or in one piece behind a `+` or
    a word for a phone number. Cheap, where asking each country is not."""
    for match in _SEVEN_DIGITS.finditer(data):
        before = data[_margin_before(data, match.start()) : match.start()].decode("utf-8")
        if not match[0].isdigit() or any(plus in before for plus in _PLUS) or _NAMED.search(before):
            return True
    return False


class _Window(NamedTuple):
    """A stretch of one line for the matcher to look at, of which the numbers that begin within bounds
    count."""

    start: int
    end: int
    counts_from: int
    counts_to: int


def _windows(data: bytes) -> Iterator[_Window]:
    """Stretches around every seven digits that could be one number. No number holds a line feed, so none
    reaches over a line's end. Where a line has so many that the stretch would get too long, two windows share
    the digits on both sides of their border: each sees those whole, and each number counts in one of them."""
    window: _Window | None = None
    last_start = last_end = 0  # of the digits before, with what is around them; and where they end themselves
    for match in _SEVEN_DIGITS.finditer(data):
        if _NO_PHONE.fullmatch(match[0]) and data[match.start() - 1 : match.start()] != b"+":
            continue
        start, end = _around(data, *match.span())
        if window is None or start > window.end:
            if window is not None:
                yield window
            window = _Window(start, end, start, end)
        elif end - window.start <= _LONGEST:
            window = window._replace(end=end, counts_to=end)
        else:
            yield window._replace(end=end, counts_to=last_end)
            window = _Window(last_start, end, last_end, end)
        last_start, last_end = start, match.end()
    if window is not None:
        yield window


def _around(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The span with what stands around it in its line."""
    first, last = _margin_before(data, start), _margin_behind(data, end)
    line_begins, line_ends = data.rfind(b"\n", first, start) + 1, data.find(b"\n", end, last)
    return max(first, line_begins), last if line_ends < 0 else line_ends


def _margin_before(data: bytes, position: int) -> int:
    """Where the context of what stands at `position` begins: between two characters, and in no short piece of
    digits."""
    begins = max(position - _MARGIN, 0)
    least = max(begins - _SHORT, 0)
    while begins > least and (data[begins] & 0xC0 == 0x80 or data[begins - 1 : begins + 1].isdigit()):
        begins -= 1
    return begins


def _margin_behind(data: bytes, position: int) -> int:
    ends = min(position + _MARGIN, len(data))
    most = min(ends + _SHORT, len(data))
    while ends < most and (data[ends] & 0xC0 == 0x80 or data[ends - 1 : ends + 1].isdigit()):
        ends += 1
    return ends


@cache
def _matcher() -> Any:
    from phonenumbers import Leniency, PhoneNumberMatcher

    def numbers(text: str, region: str | None) -> Any:
        return PhoneNumberMatcher(text, region, leniency=Leniency.VALID)

    return numbers
