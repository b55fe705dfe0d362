"""Where personal data stands in a text: for each kind a linear pattern, then the checks that a pattern cannot
make.

Everything works on UTF-8 bytes with RE2, whose time is linear in the text whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from stages.linear import linear
from stages.pii.numbers import IBAN_LENGTHS, is_card, is_iban, is_ssn
from stages.pii.surroundings import SPACE, is_in_identifier, is_joined_before, is_joined_behind, stands_alone

Span = tuple[int, int]
Finder = Callable[[bytes], Iterator[Span]]

# Letters of two-byte scripts (Latin, Greek, Cyrillic: U+00C0 to U+053F) may stand in an address (RFC 6531);
# those of three bytes may not, since Chinese and Japanese have no space that marks where an address begins.
_WIDE = rb"[\xc3-\xd4][\x80-\xbf]"
# Without / ? = &, which RFC 5322 allows: what stands before them is nearly always a URL (`…/@handle`,
# `…?mail=`).
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
# As the password of a URL in `secrets.py`, and a user that became a placeholder before.
_IN_PASSWORD = re.compile(rb"[A-Za-z0-9+.-]://[!$-&(-.0-9;-=>@-Z\[-~]*:[!$-&(-.0-;=@-Z\[-~]*$")
_NEAR: Final = 256
_DIGIT_GROUPS = linear(rb"\d+(?:(?:-|" + SPACE + rb")\d+)*")
CARD_GATE: Final = rb"[2-6](?:(?:-|" + SPACE + rb")?\d){12}"
IBAN_GATE: Final = rb"[A-Z]{2}\d{2}(?:" + SPACE + rb")?[A-Z0-9]{4}"
"""What a text must hold to be looked at for the kind."""
_HAS_CARD = linear(CARD_GATE)
_IBAN_START = linear(rb"[A-Z]{2}\d{2}")
_IBAN_REST = {
    size: re.compile(rb"(?:(?:%b)?[A-Z0-9]){%d}" % (SPACE, size - 4)) for size in IBAN_LENGTHS.values()
}
_A_SPACE = re.compile(SPACE)
_SSN = linear(rb"\d{3}-\d{2}-\d{4}")


def find_emails(data: bytes) -> Iterator[Span]:
    """Mail addresses (dot-atoms of RFC 5322 at a host name; they begin with a letter, a digit or `_`);
    `icon@2x.png` is a file, and `:secret@` before a URL's host is a password, also `:{secret}@`."""
    if b"@" not in data:
        return
    for match in _EMAIL.finditer(data):
        start, end = match.span()
        if match[0].lower().endswith(_FILE_ENDINGS):
            continue
        if not _IN_PASSWORD.search(data[max(start - _NEAR, 0) : start]):
            yield start, end


def find_cards(data: bytes) -> Iterator[Span]:
    """Payment cards, in one piece or in the groups that are printed on them (4-4-4-4[-3], 4-6-5, 4-6-4)."""
    if not _HAS_CARD.search(data):
        return
    for run in _DIGIT_GROUPS.finditer(data):
        start, end = _standing_alone(data, *run.span())
        if end - start >= 13:
            groups = [(start + m.start(), start + m.end()) for m in re.finditer(rb"\d+", data[start:end])]
            yield from (card for card in _cards_in_groups(data, groups) if not is_in_identifier(data, *card))


def _standing_alone(data: bytes, start: int, end: int) -> Span:
    """A run of digits without what belongs to something else at its ends, up to a space: the 99 of `9.99 4111
    …`, the 2 of `… 1111 2nd`. Behind a hyphen all of it is something else, as in an identifier
    (`4f1-4111-…`)."""
    if is_joined_before(data, start, b"."):
        first = _A_SPACE.search(data, start, end)
        start = first.end() if first else end
    if is_joined_behind(data, end, b"."):
        end = max((space.start() for space in _A_SPACE.finditer(data, start, end)), default=start)
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
        printed = shape in ([4, 6, 5], [4, 6, 4]) or (
            count >= 4 and set(shape[:-1]) == {4} and shape[-1] <= 4
        )
        if count == 1 or printed:
            digits = b"".join(data[start:end] for start, end in groups[:count]).decode("ascii")
            if 13 <= len(digits) <= 19 and is_card(digits):
                return count
    return 0


def find_ibans(data: bytes) -> Iterator[Span]:
    """IBANs, in one piece or in groups with single spaces; what follows one after a space is not part of
    it."""
    for match in _IBAN_START.finditer(data):
        start = match.start()
        if is_joined_before(data, start, b""):
            continue
        size = IBAN_LENGTHS.get(match[0][:2].decode("ascii"))
        rest = size and _IBAN_REST[size].match(data, match.end())
        if not rest or is_joined_behind(data, rest.end(), b""):
            continue
        if is_iban(_A_SPACE.sub(b"", match[0] + rest[0]).decode("ascii")):
            yield start, rest.end()


def find_ssns(data: bytes) -> Iterator[Span]:
    """US social security numbers, written with hyphens (without them nine digits may be anything)."""
    for match in _SSN.finditer(data):
        start, end = match.span()
        area, group, serial = match[0].decode("ascii").split("-")
        if (
            stands_alone(data, start, end, b"-.")
            and is_ssn(area, group, serial)
            and not is_in_identifier(data, start, end)
        ):
            yield start, end
