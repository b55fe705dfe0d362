"""A text without personal data: each find becomes a placeholder that names its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stages.linear import AnyOf
from stages.pii import phones, secrets
from stages.pii.addresses import find_ips
from stages.pii.finders import CARD_GATE, IBAN_GATE, find_cards, find_emails, find_ibans, find_ssns
from stages.pii.options import KINDS
from stages.pii.regions import ELSEWHERE

ORDER: Final = ("secret", "email", "iban", "credit_card", "us_ssn", "ip", "phone")
"""Where two finds overlap, the kind that comes first here counts; within a kind the longer one from the
left."""

_NAMED: Final = {kind: (f"<{kind.upper()}>".encode("ascii"),) for kind in KINDS}
PLACEHOLDERS: Final[Mapping[str, Mapping[str, tuple[bytes, ...]]]] = {
    "named": _NAMED,
    # datatrove 0.10.1, pipeline/formatters/pii.py
    "fineweb": _NAMED
    | {
        "email": (b"email@example.com", b"firstname.lastname@example.org"),
        "ip": (
            b"22.214.171.124", b"126.96.36.199", b"188.8.131.52", b"184.108.40.206", b"220.127.116.11",
            b"18.104.22.168",
        ),
    },
}  # fmt: skip
"""What each kind becomes, by `pii.placeholders`: several by turns, from the first in each text. (datatrove
goes on where the text before ended, so that a text there hangs on those that its process saw earlier.)"""
_MAX_PASSES: Final = 20
GATES: Final = {
    "email": rb"@",
    "secret": secrets.GATE,
    "ip": rb"\d\.\d{1,3}\.\d{1,3}\.\d|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f]{0,4}:",
    "credit_card": CARD_GATE,
    "iban": IBAN_GATE,
    "us_ssn": rb"\d{3}-\d{2}-\d{4}",
    "phone": phones.GATE,
}
"""What a text must hold to be looked at for a kind: most texts hold none of it, and one pass says so."""

ANY_OF_GATES: Final = AnyOf(GATES)
_FINDERS: Final = {
    "secret": secrets.find_secrets, "email": find_emails, "iban": find_ibans, "credit_card": find_cards,
    "us_ssn": find_ssns, "ip": find_ips,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScrubbedText:
    """A text with placeholders, and how many of each kind it got; kinds without a find are absent."""

    text: str
    counts: dict[str, int]


def scrub(
    text: str, kinds: Sequence[str] = KINDS, region: str | None = ELSEWHERE, placeholders: str = "named"
) -> ScrubbedText:
    """`text` without personal data of these kinds; `region` is the country whose national phone formats count
    (None: no country's), `placeholders` the row of PLACEHOLDERS. A find that is spelt as one of its
    placeholders stays.

    Scrubbing the result again changes nothing: a placeholder can part what stood together and so bring a new
    find to light, and passes are made until one finds nothing (two for nearly every text that holds any; at
    most 20)."""
    data = text.encode("utf-8", "replace")
    counts: dict[str, int] = {}
    become = PLACEHOLDERS[placeholders]
    for _ in range(_MAX_PASSES):
        found = _find(data, kinds, region)
        spans = [(start, end, kind) for start, end, kind in found if data[start:end] not in become[kind]]
        if not spans:
            break
        pieces, position = [], 0
        for start, end, kind in spans:
            num = counts.get(kind, 0)
            pieces += [data[position:start], become[kind][num % len(become[kind])]]
            position = end
            counts[kind] = num + 1
        data = b"".join([*pieces, data[position:]])
    return ScrubbedText(data.decode("utf-8"), counts) if counts else ScrubbedText(text, counts)


def _find(data: bytes, kinds: Sequence[str], region: str | None) -> list[tuple[int, int, str]]:
    """The finds of these kinds that count, in the order of the text, without overlap.

    What comes before them in ORDER is looked for too, asked for or not: a password in front of a host is no mail
    address for being left as it is."""
    possible = ANY_OF_GATES(data)
    taken: list[tuple[int, int, str]] = []
    last = max((ORDER.index(kind) for kind in kinds if kind in possible), default=-1)
    for kind in ORDER[: last + 1]:
        if kind not in possible:
            continue
        found = phones.find_phones(data, region) if kind == "phone" else _FINDERS[kind](data)
        fresh = sorted(found, key=lambda span: (span[0], -span[1]))
        taken = _merge(taken, [(start, end, kind) for start, end in fresh])
    return [span for span in taken if span[2] in kinds]


def _merge(
    taken: list[tuple[int, int, str]], fresh: list[tuple[int, int, str]]
) -> list[tuple[int, int, str]]:
    """Both lists in order, without those of `fresh` that overlap one of `taken` or an earlier one of their
    own."""
    merged, position, ended = [], 0, 0
    for span in fresh:
        while position < len(taken) and taken[position][0] < span[1]:
            merged.append(taken[position])
            ended = max(ended, taken[position][1])
            position += 1
        if span[0] >= ended:
            merged.append(span)
            ended = span[1]
    return merged + taken[position:]
