"""The file /.well-known/tdmrep.json of the TDM Reservation Protocol, and the values of its properties.

https://www.w3.org/community/reports/tdmrep/CG-FINAL-tdmrep-20240510/ (and its repository since)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stages.nesting import read_json
from stages.rights.robots import PathPattern, compared_path
from stages.rights.signal import Meaning, Signal

RESERVATION: Final = "tdm-reservation"
POLICY: Final = "tdm-policy"
_MEANINGS: Final[dict[str, Meaning]] = {"1": "denied", "0": "allowed"}


def reservation_meaning(value: str) -> Meaning:
    """What a tdm-reservation says: 1 reserves the rights, 0 does not; any other value is a protocol error, which
    counts as unset."""
    return _MEANINGS.get(value.strip(), "malformed")


def shown_reservation(value: str, policy: str | None) -> str:
    """A reservation as it is recorded, with the URL of its policy if it has one."""
    return f"{value} {policy}" if policy else value


@dataclass(frozen=True, slots=True)
class TdmRule:
    """A rule of the file: the locations, and what is said of them."""

    location: PathPattern
    value: str
    policy: str | None

    @property
    def signal(self) -> Signal:
        """The rule as a signal."""
        return Signal(
            "tdmrep",
            "tdmrep.json",
            shown_reservation(self.value, self.policy),
            reservation_meaning(self.value),
        )


def read_tdmrep(text: str) -> tuple[TdmRule, ...] | None:
    """The rules of a file in their order; None where it is none. A rule without location or reservation is left out,
    as both are mandatory."""
    try:
        entries = read_json(text.removeprefix("\ufeff"))
    except ValueError:
        return None
    if not isinstance(entries, list):
        return None
    rules = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        location, value, policy = entry.get("location"), entry.get(RESERVATION), entry.get(POLICY)
        if isinstance(location, str) and location and value is not None:
            shown = (
                str(value)
                if isinstance(value, (str, int)) and not isinstance(value, bool)
                else json.dumps(value)
            )
            rules.append(
                TdmRule(PathPattern.of(location), shown, policy if isinstance(policy, str) else None)
            )
    return tuple(rules)


def tdm_signal(rules: Sequence[TdmRule], path: str) -> Signal | None:
    """What the first rule in sequence that matches a path says of it; None where none does."""
    path = compared_path(path)
    return next((rule.signal for rule in rules if rule.location.matches(path)), None)
