"""What a terminal, a pipe or a spreadsheet may be given: text from the open web made harmless, and signs that
its encoding has.

Page text, titles, URLs and file names can hold escape sequences that recolour, move or retitle a terminal,
and marks that turn the direction of writing. `visible` shows them as escapes. `prepare` has stdout and stderr
write what their encoding lacks as escapes too: on an ASCII terminal or under PYTHONIOENCODING=ascii nothing
may die at a check mark."""

from __future__ import annotations

import codecs
import io
import re
import sys
import unicodedata
from typing import Final

# Control, format (with what turns the direction of writing), surrogate, private, unassigned; line and
# paragraph ends.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_PLAIN: Final = {
    "✓": "+", "✗": "x", "×": "x", "·": ".", "…": "...", "→": "->", "←": "<-", "⇄": "<->", "▹": ">", "–": "-", "—": "-",
    "‘": "'", "’": "'", "“": '"', "”": '"',
}  # fmt: skip
_ERRORS: Final = "sluice-plain"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_STEERING: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def prepare() -> None:
    """Have stdout and stderr write every character: those that their encoding lacks in ASCII."""
    codecs.register_error(_ERRORS, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character) or _escaped(character) for character in lacking), error.end


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def visible(text: str, kept: str = "") -> str:
    """`text` with every character that is no sign of its own as an escape (`\\x1b`, `\\u202e`), but those in `kept`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c) not in _UNSEEN else _escaped(c) for c in text)


def short_number(value: float) -> str:
    """A measure or a threshold as people read it: 20,000,000, 0.4286."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def counted(num: int, what: str, several: str = "") -> str:
    """A number and what it counts, in one or `several`: 1 shard, 2 shards, 1 copy of it, 2 copies of it."""
    return f"{num:,} {what if num == 1 else several or what + 's'}"


def visible_lines(text: str) -> str:
    """`visible` for a text of several lines."""
    return visible(text, "\n")


def harmless_json(document: str) -> str:
    """The same JSON document with what could steer a terminal as JSON's own escapes, so that its values stay
    exact. (JSON itself escapes the control characters below U+0020.)"""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def without_formula(text: str) -> str:
    """A text that no spreadsheet carries out, with an apostrophe before what one would take for a formula:
    spreadsheets take a cell that begins so for one (OWASP, CSV Injection), the full-width signs in some
    settings too."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def speaks_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding has every character."""
    try:
        return codecs.lookup(encoding or "utf-8").name.startswith("utf-")
    except LookupError:
        return False
