"""Check digits and ranges: which digits are a payment card, an IBAN, a US social security number, a public
address."""

from __future__ import annotations

import ipaddress
from typing import Final

_DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
"""A digit doubled and its digits added: Luhn's step (US patent 2,950,048; ISO/IEC 7812-1 annex B)."""

_ISSUERS: Final = (
    # (first digits from, to, lengths): ISO/IEC 7812 issuer ranges as the card networks publish them
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),  # Mastercard
    ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)),  # American Express
    ("37", "37", (15,)),  # American Express
    ("6011", "6011", (16, 19)),  # Discover
    ("644", "659", (16, 19)),  # Discover
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
    ("300", "305", (14, 16, 19)),  # Diners Club
    ("3095", "3095", (14, 16, 19)),  # Diners Club
    ("36", "36", (14, 16, 19)),  # Diners Club
    ("38", "39", (14, 16, 19)),  # Diners Club
    ("3528", "3589", (16, 19)),  # JCB
    ("5018", "5018", (16, 19)),  # Maestro
    ("5020", "5020", (16, 19)),  # Maestro
    ("5038", "5038", (16, 19)),  # Maestro
    ("6304", "6304", (16, 19)),  # Maestro
    ("6759", "6763", (16, 19)),  # Maestro
)

IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20,
    "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24,
    "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
    "YE": 30,
}  # fmt: skip
"""Characters of an IBAN by country: the IBAN registry of SWIFT (ISO 13616-2), release 99."""

_GLOBAL_UNICAST_6: Final = ipaddress.ip_network(
    "2000::/3"
)  # the only IPv6 space that is assigned (IANA, RFC 4291)


def luhn_holds(digits: str) -> bool:
    """Whether the last digit is the Luhn check digit of those before it."""
    total = sum(int(digit) for digit in digits[-1::-2]) + sum(
        _DOUBLED[int(digit)] for digit in digits[-2::-2]
    )
    return total % 10 == 0


def is_card(digits: str) -> bool:
    """Whether digits are a payment card's number: an issuer's range and length, and Luhn."""
    in_range = any(
        first <= digits[: len(first)] <= last and len(digits) in lengths for first, last, lengths in _ISSUERS
    )
    return in_range and luhn_holds(digits)


def is_iban(compact: str) -> bool:
    """Whether upper-case letters and digits without spaces are an IBAN: its country's length, and 1 modulo
    97."""
    if len(compact) != IBAN_LENGTHS.get(compact[:2]):
        return False
    turned = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in turned)) % 97 == 1


def is_ssn(area: str, group: str, serial: str) -> bool:
    """Whether the Social Security Administration can have issued the number (20 CFR 422.103; no 000, 666,
    9xx)."""
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000"


def is_public_ip(text: str) -> bool:
    """Whether an address is one that belongs to somebody: neither private, reserved, multicast nor
    documentation."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST_6:
        return False
    return address.is_global and not address.is_multicast
