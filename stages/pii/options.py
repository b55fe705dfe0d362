"""`[pii]`: which kinds of personal data are looked for, and what happens to a text that holds some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError, key
from stages.pii.regions import AUTO

KINDS: Final = ("email", "phone", "ip", "credit_card", "iban", "us_ssn", "secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class PiiTable:
    """What the pii step does."""

    kinds: tuple[str, ...] = key(
        KINDS, choices=KINDS, help="kinds of personal data; none switches the step off"
    )
    action: Literal["replace", "drop"] = key(
        "replace", help="replace each find by a placeholder, or drop the document"
    )
    placeholders: Literal["named", "fineweb"] = key(
        "named",
        help="named: <EMAIL>, <IP> and so on; fineweb: FineWeb's fixed texts in rotation "
        "(email@example.com, firstname.lastname@example.org, and six unused IP addresses)",
    )
    phone_region: str = key(
        AUTO,
        help='country (ISO 3166) of the national phone formats to find, or "auto": that of the '
        "document's host, else of its language; numbers with + are found everywhere",
    )


def check_phone_region(table: PiiTable) -> None:
    """RecipeError unless `phone_region` is "auto" or a country whose national numbers can be told: with any
    other text the library finds none of them, and says nothing."""
    region = table.phone_region
    if region == AUTO:  # it needs no list, and the library a moment to be imported
        return
    from phonenumbers import SUPPORTED_REGIONS

    if region not in SUPPORTED_REGIONS:
        meant = AUTO if region.strip().lower() == AUTO else region.strip().upper()
        hint = f"; did you mean {meant!r}?" if meant in (AUTO, *SUPPORTED_REGIONS) else ""
        raise RecipeError(
            f"pii.phone_region = {region!r}: expected 'auto' or a country's two capital letters (ISO 3166),"
            f" such as 'US', 'GB' or 'DE'{hint}",
            "pii.phone_region",
        )
