"""The charset of bytes that nobody names: resiliparse's guess, believed only with evidence in the letters it
gives.

The detector (uchardet) always finds a charset whose frequent letters are there, however few they are: `año`
becomes Latvian, a row of dashes Japanese. Evidence is where the letters stand. Those of another script stand
beside each other and not within words of ASCII; those of another Latin alphabet stand in words, where
windows-1252, which everything else is read as, would often have a symbol (`by³a` for `była`)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from resiliparse.parse.encoding import detect_encoding

from stages.reading.charsets.labels import known_charset

_SAMPLE_BYTES: Final = 16 << 10
_BEFORE: Final = 16
_STRETCH: Final = re.compile(rb"[\x80-\xff](?:[^<>\x80-\xff]{0,32}+[\x80-\xff])*+[^<>\x80-\xff]{0,16}+")
"""Bytes beyond ASCII, those between and those behind. No charset has `<` or `>` as the second byte of a
character."""
_BEYOND_ASCII: Final = re.compile("[^\0-\x7f]")

_ALIKE: Final = (
    ("cp1250", "iso8859_2", "iso8859_16"),
    ("cp1257", "iso8859_13"),
    ("cp1251", "mac_cyrillic"),
    ("koi8_r", "koi8_u", "iso8859_7", "cp1253"),
    ("cp1255", "iso8859_8"),
    ("cp1256", "iso8859_6"),
)
"""Charsets that the detector takes for each other, since they share most letters, or letters' places."""
_LATIN: Final = frozenset({"cp1250", "iso8859_2", "cp1254", "cp1257", "cp1258"})
"""The charsets of Latin letters that browsers read undeclared pages by (HTML standard, 13.2.3.2, table of
locales)."""
_MANY_BYTES: Final = frozenset({"cp932", "euc_jp", "gb18030", "big5hkscs", "cp949"})
_BELIEVED: Final = _LATIN | _MANY_BYTES | {
    "cp1251", "koi8_r", "koi8_u", "iso8859_5", "cp866", "mac_cyrillic", "iso8859_7", "cp1253", "iso8859_8", "cp1255",
    "iso8859_6", "cp1256", "cp874",
}  # fmt: skip
_LATIN_SHARE: Final = 0.03
"""Least evidence for Latin letters for each character beyond ASCII: two `ñ` among the 130 quotation marks of
an English page are none, and the `ő` of a Hungarian page are 5% to 10%."""
_PENALTY: Final = 3
"""What a character in a wrong place weighs against one in a right place, in charsets of single bytes."""
_NEVER_TEXT: Final = frozenset({"Cc", "Cn", "Co", "So"})
_IN_WORDS: Final = "'-\xad·’ー"


def detected_charset(payload: bytes) -> str | None:
    """Python's codec for bytes that are neither ASCII nor UTF-8; None where there is no evidence for any but
    windows-1252. Judges by 16 KiB of what stands around the bytes beyond ASCII."""
    sample = _sample(payload)
    guess = known_charset(detect_encoding(sample, 0, False))
    alike = next((group for group in _ALIKE if guess in group), (guess,))
    best, most = None, 0
    # The detector's own guess first: of equal evidence it stays.
    for charset in sorted(alike, key=lambda charset: charset != guess):
        if charset in _BELIEVED:
            points, least = _evidence(sample, charset)
            if points >= least and points > most:
                best, most = charset, points
    return best


def _sample(payload: bytes) -> bytes:
    stretches: list[bytes] = []
    num_bytes = end = 0
    for match in _STRETCH.finditer(payload):
        stretches.append(payload[max(end, match.start() - _BEFORE) : match.end()])
        end = match.end()
        num_bytes += len(stretches[-1])
        if num_bytes >= _SAMPLE_BYTES:
            break
    return b"\n".join(stretches)[:_SAMPLE_BYTES]


def _evidence(sample: bytes, charset: str) -> tuple[int, float]:
    """What speaks for `charset`, less what speaks against it, and how much that must be."""
    text, in_1252 = f" {sample.decode(charset, 'replace')} ", f" {sample.decode('cp1252', 'replace')} "
    right = wrong = num_characters = 0
    for match in _BEYOND_ASCII.finditer(text):
        at = match.start()
        num_characters += 1
        # Where windows-1252 reads the same, nothing speaks for either.
        other = "" if charset in _MANY_BYTES else in_1252[at]
        if text[at] != other:
            points = _points(text[at - 1], text[at], text[at + 1], other)
            right += max(points, 0)
            wrong += points < 0
    if charset in _MANY_BYTES:
        return right - wrong, 1
    least = max(1, _LATIN_SHARE * num_characters) if charset in _LATIN else 1
    return right - _PENALTY * wrong, least


def _points(before: str, character: str, behind: str, in_1252: str) -> int:
    """What a character between two others says for the charset that it was read by: -1 that it stands in no
    text."""
    neighbours = [one for one in (before, behind) if one.isalpha()]
    if not character.isalpha():
        category = unicodedata.category(character)
        breaks_a_word = len(neighbours) == 2 and category[0] in "NPS" and character not in _IN_WORDS
        return -1 if breaks_a_word or category in _NEVER_TEXT else 0
    is_latin = _is_latin(character)
    if (character.isupper() and before.islower()) or any(_is_latin(one) != is_latin for one in neighbours):
        return -1
    if not is_latin:  # one character again and again is a ruled line
        return int(any(one != character for one in neighbours))
    if not neighbours:
        return -1
    return 2 if len(neighbours) == 2 and not in_1252.isalpha() else 1


def _is_latin(letter: str) -> bool:
    return letter < "\u0250" or "\u1e00" <= letter < "\u1f00"
