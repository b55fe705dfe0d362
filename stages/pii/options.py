"""`[pii]`: which kinds of personal data are looked for, and what happens to a text that holds some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import key

KINDS: Final = ("email", "phone", "ip", "credit_card", "iban", "us_ssn", "secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class PiiTable:
    """What the pii step does."""

    kinds: tuple[str, ...] = key(KINDS, choices=KINDS, help="kinds of personal data; none switches the step off")
    action: Literal["replace", "drop"] = key("replace", help="a placeholder for each find, or no such document at all")
    phone_region: str = key(
        "US", help="country (ISO 3166) whose national phone formats count; numbers with + count everywhere"
    )
