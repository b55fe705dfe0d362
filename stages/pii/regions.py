"""Which country's national phone formats count in a document: the one that its host names, else its
language's."""

from __future__ import annotations

from functools import cache
from typing import Final

AUTO: Final = "auto"
"""`pii.phone_region`: each document by its own host and language."""
ELSEWHERE: Final = "US"
"""Where neither host nor language says anything: what English texts below generic domains get, by CLDR's
choice."""

# Country codes that are sold as words ("my own TV"), so that they name no country: the list of Google Search
# Central, "Managing multi-regional sites", generic country code top-level domains; .eu is none of ISO 3166.
_SOLD_AS_WORDS: Final = frozenset("ad ai as bz cc cd co dj fm io la me ms nu sc sr su tk tv ws".split())  # noqa: SIM905
# Top-level domains by another name than the country's in ISO 3166, and those that one country keeps to itself
# (RFC 1591, section 2; RFC 2146 for gov).
_OTHER_NAMES: Final = {"uk": "GB", "edu": "US", "gov": "US", "mil": "US"}


def region_of(language: str | None, host: str | None) -> str | None:
    """The country (ISO 3166) of a document: by its host's country code, else the likeliest of its language
    (Unicode CLDR, likely subtags), else ELSEWHERE; None for a language that no country has phone numbers for
    (Esperanto): there only the international form counts."""
    ending = (host or "").rpartition(".")[2].lower()
    if ending not in _SOLD_AS_WORDS:
        named = _OTHER_NAMES.get(ending, ending.upper())
        if named in _regions():
            return named
    return _likeliest(language) if language else ELSEWHERE


@cache
def _likeliest(language: str) -> str | None:
    from babel.core import get_global

    subtags = get_global("likely_subtags")
    label = language.replace("-", "_")
    likely = subtags.get(label) or subtags.get(label.partition("_")[0].lower()) or ""
    region = likely.rpartition("_")[2]
    return region if region in _regions() else None


@cache
def _regions() -> frozenset[str]:
    from phonenumbers import SUPPORTED_REGIONS

    return frozenset(SUPPORTED_REGIONS)


def regions_in_use(phone_region: str) -> tuple[str | None, ...]:
    """The countries by which a document may be judged under this key of the recipe."""
    return (None, *sorted(_regions())) if phone_region == AUTO else (phone_region,)
