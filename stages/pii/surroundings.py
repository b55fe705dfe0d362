"""What stands around digits: whether they are a number of their own, or part of a longer one or of an
identifier."""

from __future__ import annotations

import re
from typing import Final

FILE_ENDING: Final = (
    r"(?:7z|apk|bak|bin|bz2|cab|conf|cfg|csv|css|dat|deb|diff|dll|dmg|docx?|exe|gif|gz|html?|img|iso|jar|jpe?g|js|json"
    r"|log|md|mp[34]|msi|nupkg|patch|pdf|pkg|png|pptx?|py|rar|rpm|sh|so|sql|svg|tar|tgz|txt|vsix|webp|whl|xlsx?|xml|xpi|xz"
    r"|ya?ml|zip|zst)\b"
)
"""How a file's name ends, behind its point."""

SPACE: Final = rb" |\xc2\xa0|\xe2\x80[\x87\x89\xaf]"
"""A space between two groups of a number, as a pattern: also those that keep its line whole or are narrow (U+00A0,
U+2007, U+2009, U+202F)."""
_NEAR: Final = 48  # bytes: longer than the joined words of identifiers
_DIGITS: Final = frozenset(b"0123456789")
_ALPHANUMERIC: Final = _DIGITS | frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
# Letters of the scripts that part words by spaces. Chinese and Japanese do not: 电话-010 is no identifier.
_LETTER: Final = r"A-Za-z\u00c0-\u052f"
_JOINED_BEFORE = re.compile(rf"(?:[{_LETTER}][{_LETTER}\d]*(?:[-_/.][{_LETTER}\d]+)*[-_/.]+|_)$")
_JOINED_BEHIND = re.compile(rf"_|-\d*[{_LETTER}]|\.{FILE_ENDING}", re.IGNORECASE)
# A word that says what the digits are, and is no part of them: `Visa-4111…`, `Nr.030 90`.
_NAMING_WORD = re.compile(
    rf"(?<![{_LETTER}\d])(?:amex|cards?|cc|mastercard|no|nr|num|number|ssn|visa)[-_/.]+$", re.IGNORECASE
)


def text_before(data: bytes, start: int, num_bytes: int = _NEAR) -> str:
    """What stands before `start`, at most so many bytes of it; a character that is cut there is left out."""
    return data[max(start - num_bytes, 0) : start].decode("utf-8", "ignore")


def text_behind(data: bytes, end: int, num_bytes: int = _NEAR) -> str:
    """What stands behind `end`, likewise."""
    return data[end : end + num_bytes].decode("utf-8", "ignore")


def is_in_identifier(data: bytes, start: int, end: int) -> bool:
    """Whether hyphens, underscores, slashes or points join the digits to letters, as in
    `hosted-eu-20260812-09`, `order_4111…` and `2026-08-12.pdf`."""
    before = text_before(data, start)
    if _JOINED_BEFORE.search(before) and not _NAMING_WORD.search(before):
        return True
    return _JOINED_BEHIND.match(text_behind(data, end)) is not None


def stands_alone(data: bytes, start: int, end: int, joints: bytes) -> bool:
    """Whether no letter or digit touches the span, nor a digit over one of the joints."""
    return not (is_joined_before(data, start, joints) or is_joined_behind(data, end, joints))


def is_joined_before(data: bytes, start: int, joints: bytes) -> bool:
    """Whether a letter or digit touches the span from before, or a digit over one of the joints."""
    before = data[max(start - 2, 0) : start]
    return bool(before) and (
        before[-1] in _ALPHANUMERIC or (before[-1] in joints and before[0] in _DIGITS and len(before) == 2)
    )


def is_joined_behind(data: bytes, end: int, joints: bytes) -> bool:
    """The same from behind."""
    after = data[end : end + 2]
    return bool(after) and (
        after[0] in _ALPHANUMERIC or (after[0] in joints and after[-1] in _DIGITS and len(after) == 2)
    )
