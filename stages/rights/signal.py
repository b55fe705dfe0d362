"""A signal of a page about its use for training, and the kinds of signals, each described once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Use = Literal["allowed", "denied", "unknown"]
Meaning = Literal["allowed", "denied", "unknown", "malformed"]
Where = Literal["header", "html", "robots.txt", "tdmrep.json"]

MOST_CHARS: Final = 200
"""Of a value as it is recorded; longer ones are cut there."""


class Signal(NamedTuple):
    """A signal as found: its kind (`KINDS`), where it stood, its text, and what that means for training."""

    kind: str
    where: Where
    value: str
    meaning: Meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of signal: the source of its rules, and whether it decides about the use for training. One that does
    not (`noindex` is about search, `noimageai` about images) can be denied by name all the same; a licence cannot,
    as what it permits is for people to read."""

    help: str
    decides: bool = True
    can_be_denied: bool = True


KINDS: Final[Mapping[str, Kind]] = {
    "content_usage": Kind(
        help="AIPREF's Content-Usage, header or robots.txt (draft-ietf-aipref-attach, -vocab): train-ai=n"
    ),
    "tdmrep": Kind(
        help="the TDM Reservation Protocol, file, header or meta (W3C community group report): tdm-reservation 1"
    ),
    "content_signal": Kind(help="Content-Signal, header or robots.txt (contentsignals.org): ai-train=no"),
    "robots": Kind(
        help="a group of robots.txt (RFC 9309) that names one of rights.agents and disallows the page"
    ),
    "noai": Kind(help="noai in X-Robots-Tag or meta robots"),
    "noimageai": Kind(help="noimageai in X-Robots-Tag or meta robots; images only", decides=False),
    "noindex": Kind(help="noindex or none in X-Robots-Tag or meta robots; search only", decides=False),
    "license": Kind(
        help="a licence: rel=license in links and the Link header, Creative Commons URLs, license of JSON-LD",
        decides=False,
        can_be_denied=False,
    ),
}
"""Every kind. Their order decides which one is named where several deny."""


def combined(meanings: Iterable[Meaning]) -> Use:
    """Several statements as one: any that denies wins, then any that allows (draft-ietf-aipref-vocab, "Combining
    Preferences"). A malformed one says nothing."""
    found = set(meanings)
    return "denied" if "denied" in found else "allowed" if "allowed" in found else "unknown"
