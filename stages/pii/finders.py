"""Where personal data stands in a text: for each kind a linear pattern, then the checks that a pattern cannot make.

Everything works on UTF-8 bytes with RE2, whose time is linear in the text whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from stages.pii.linear import linear
from stages.pii.numbers import IBAN_LENGTHS, is_card, is_iban, is_public_ip, is_ssn

Span = tuple[int, int]
Finder = Callable[[bytes], Iterator[Span]]

# Letters of two-byte scripts (Latin, Greek, Cyrillic: U+00C0 to U+053F) may stand in an address (RFC 6531); those of
# three bytes may not, since Chinese and Japanese have no space that marks where an address begins.
_WIDE = rb"[\xc3-\xd4][\x80-\xbf]"
# Without / ? = &, which RFC 5322 allows: what stands before them is nearly always a URL (`…/@handle`, `…?mail=`).
_FIRST = rb"(?:[A-Za-z0-9_]|" + _WIDE + rb")"
_ATOM = rb"(?:[A-Za-z0-9!#$%'*+^_`{|}~-]|" + _WIDE + rb")"
_LABEL = rb"(?:[A-Za-z0-9-]|" + _WIDE + rb")+"
_EMAIL = linear(
    _FIRST
    + _ATOM
    + rb"*(?:\."
    + _ATOM
    + rb"+)*@"
    + rb"(?:"
    + _LABEL
    + rb"\.)+(?:xn--[A-Za-z0-9-]+|(?:[A-Za-z]|"
    + _WIDE
    + rb"){2,})"
)
_FILE_ENDINGS: Final = (b".png", b".jpg", b".jpeg", b".gif", b".webp", b".svg", b".avif", b".css", b".js")
_IPV4 = linear(rb"(?:\d{1,3}\.){3}\d{1,3}")
_IPV6 = linear(rb"[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?")
_DIGIT_GROUPS = linear(rb"\d+(?:[ -]\d+)*")
_CARD_GATE = linear(rb"[2-6](?:[ -]?\d){12}")
_IBAN_START = linear(rb"[A-Z]{2}\d{2}")
_IBAN_REST = {size: re.compile(rb"(?: ?[A-Z0-9]){%d}" % (size - 4)) for size in IBAN_LENGTHS.values()}
_SSN = linear(rb"\d{3}-\d{2}-\d{4}")
_COLON: Final = ord(":")
_DIGITS = frozenset(b"0123456789")
_ALPHANUMERIC = _DIGITS | frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")


def find_emails(data: bytes) -> Iterator[Span]:
    """Mail addresses (dot-atoms of RFC 5322 at a host name; they begin with a letter, a digit or `_`); `icon@2x.png` is
    a file."""
    if b"@" not in data:
        return
    for match in _EMAIL.finditer(data):
        if not match[0].lower().endswith(_FILE_ENDINGS):
            yield match.span()


def find_ips(data: bytes) -> Iterator[Span]:
    """Public IPv4 and IPv6 addresses; a longer dotted number (a version, an OID) is none."""
    for pattern, joints in ((_IPV4, b"."), (_IPV6, b":.")):
        for match in pattern.finditer(data):
            start, end = match.span()
            # IPv6 may end in two colons, and a sentence may put one or two behind it: "at 2606:4700::1111: it answers"
            while data[end - 1] == _COLON and not is_public_ip(data[start:end].decode("ascii")):
                end -= 1
            if _stands_alone(data, start, end, joints) and is_public_ip(data[start:end].decode("ascii")):
                yield start, end


def find_cards(data: bytes) -> Iterator[Span]:
    """Payment cards, in one piece or in the groups that are printed on them (4-4-4-4[-3], 4-6-5, 4-6-4)."""
    if not _CARD_GATE.search(data):
        return
    for run in _DIGIT_GROUPS.finditer(data):
        start, end = _standing_alone(data, *run.span())
        if end - start >= 13:
            groups = [(start + m.start(), start + m.end()) for m in re.finditer(rb"\d+", data[start:end])]
            yield from _cards_in_groups(data, groups)


def _standing_alone(data: bytes, start: int, end: int) -> Span:
    """A run of digits without what belongs to something else at its ends, up to a space: the 99 of `9.99 4111 …`, the
    2 of `… 1111 2nd`. Behind a hyphen all of it is something else, as in an identifier (`4f1-4111-…`)."""
    if _is_joined_before(data, start, b"."):
        start = data.find(b" ", start, end) + 1 or end
    if _is_joined_behind(data, end, b"."):
        end = max(data.rfind(b" ", start, end), start)
    return start, end


def _cards_in_groups(data: bytes, groups: list[Span]) -> Iterator[Span]:
    first = 0
    while first < len(groups):
        num_groups = _groups_of_a_card(data, groups[first : first + 5])
        if num_groups:
            yield groups[first][0], groups[first + num_groups - 1][1]
        first += max(num_groups, 1)


def _groups_of_a_card(data: bytes, groups: list[Span]) -> int:
    """How many of these groups of digits, from the first on, are a card's number; 0 if none."""
    sizes = [end - start for start, end in groups]
    for count in range(len(groups), 0, -1):
        shape = sizes[:count]
        printed = shape in ([4, 6, 5], [4, 6, 4]) or (count >= 4 and set(shape[:-1]) == {4} and shape[-1] <= 4)
        if count == 1 or printed:
            digits = b"".join(data[start:end] for start, end in groups[:count]).decode("ascii")
            if 13 <= len(digits) <= 19 and is_card(digits):
                return count
    return 0


def find_ibans(data: bytes) -> Iterator[Span]:
    """IBANs, in one piece or in groups with single spaces; what follows one after a space is not part of it."""
    for match in _IBAN_START.finditer(data):
        start = match.start()
        if _is_joined_before(data, start, b""):
            continue
        size = IBAN_LENGTHS.get(match[0][:2].decode("ascii"))
        rest = size and _IBAN_REST[size].match(data, match.end())
        if not rest or _is_joined_behind(data, rest.end(), b""):
            continue
        if is_iban((match[0] + rest[0]).replace(b" ", b"").decode("ascii")):
            yield start, rest.end()


def find_ssns(data: bytes) -> Iterator[Span]:
    """US social security numbers, written with hyphens (without them nine digits may be anything)."""
    for match in _SSN.finditer(data):
        start, end = match.span()
        area, group, serial = match[0].decode("ascii").split("-")
        if _stands_alone(data, start, end, b"-.") and is_ssn(area, group, serial):
            yield start, end


def _stands_alone(data: bytes, start: int, end: int, joints: bytes) -> bool:
    """Whether no letter or digit touches the span, nor a digit over one of the joints."""
    return not (_is_joined_before(data, start, joints) or _is_joined_behind(data, end, joints))


def _is_joined_before(data: bytes, start: int, joints: bytes) -> bool:
    before = data[max(start - 2, 0) : start]
    return bool(before) and (
        before[-1] in _ALPHANUMERIC or (before[-1] in joints and before[0] in _DIGITS and len(before) == 2)
    )


def _is_joined_behind(data: bytes, end: int, joints: bytes) -> bool:
    after = data[end : end + 2]
    return bool(after) and (
        after[0] in _ALPHANUMERIC or (after[0] in joints and after[-1] in _DIGITS and len(after) == 2)
    )
