"""What a person has written, as a takedown by mail: the ids and URLs in it, and the lines without any."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from lineage.pages import names_something

_NAME: Final = re.compile(
    # Brackets and double quotes enclose a URL and stand in none as they are; a list may have no spaces.
    r'https?://(?:(?![,;|]https?://)[^\s<>"“”„«»])+'
    r"|(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z])",
    re.IGNORECASE,
)
_ID: Final = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
_BULLET: Final = re.compile(r"(?:[>|*•·‣▪–—+\-\s]|\(?(?:\d{1,3}|[a-z])[.)]\s)*", re.IGNORECASE)
"""What quotes or lists a line: `> `, `- `, `3. `, `b) `."""
_BEHIND: Final = ".,;:!?'’‘`*_…|\\"
"""What ends a sentence or sets a word off; the last of a URL is seldom one of them."""
_PAIRS: Final = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenName:
    """An id (in lower case) or a URL as it is likely meant. `written` is what stands there; `longer` are
    further ways to read it, the longest first, for a URL that does end with a full stop."""

    kind: Literal["doc", "url"]
    value: str
    written: str
    longer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesInText:
    """The names in a text, each once, in order; the lines that have none, blank ones left out."""

    names: tuple[WrittenName, ...]
    without: tuple[str, ...]


def read_written(text: str) -> NamesInText:
    """The names in a text: every `http(s)://…` and every 32 hex digits, whatever stands around them, and the
    lines that are a URL without its scheme, or a name such as a URN, as a whole. Linear in the text."""
    names: dict[tuple[str, str], WrittenName] = {}
    without = []
    for line in map(str.strip, text.splitlines()):
        found = list(_names_in(line))
        for name in found:
            names.setdefault((name.kind, name.value), name)
        if line and not found:
            without.append(line)
    return NamesInText(names=tuple(names.values()), without=tuple(without))


def several_names(wanted: str) -> NamesInText | None:
    """The ids and URLs in what was looked for; None where they are not several. Lines that are pasted into a
    search have spaces for their ends, so that each word is read as a line. A word alone is a host, or no
    name."""
    written = read_written("\n".join(wanted.split()))
    names = tuple(name for name in written.names if name.kind == "doc" or "/" in name.value)
    return replace(written, names=names) if len(names) > 1 else None


def _names_in(line: str) -> Iterator[WrittenName]:
    bullet = _BULLET.match(line)
    whole = line[bullet.end() if bullet else 0 :]
    found = [_enclosed(line, name) for name in _NAME.finditer(line)]
    for word in found:
        if _ID.fullmatch(word):
            yield WrittenName(kind="doc", value=word.lower(), written=word)
            continue
        # A URL that was recorded with spaces in it is pasted as a line.
        readings = [whole, word] if len(found) == 1 and whole.startswith(word) else [word]
        meant = _meant(word)
        longer = tuple(reading for reading in dict.fromkeys(readings) if reading != meant)
        yield WrittenName(kind="url", value=meant, written=word, longer=longer)
    if not found:
        meant = _meant(whole.strip("<>\"“”„«»'’‘`*_([{"))
        if meant and not re.search(r"\s", meant) and names_something(meant):
            yield WrittenName(kind="url", value=meant, written=line)


def _enclosed(line: str, name: re.Match[str]) -> str:
    """A name without the bracket, and what comes behind it, that closes one which stands right before it.
    What has another URL behind it is left as it is."""
    before, word = line[max(0, name.start() - 1) : name.start()], name[0]
    close = next((close for close, opens in _PAIRS.items() if before == opens), None)
    depth = 0
    for at, character in enumerate(word if close is not None else ""):
        if character == close:
            if not depth:
                return word if "://" in word[at:] else word[:at]
            depth -= 1
        elif character == before:
            depth += 1
    return word


def _meant(word: str) -> str:
    """A URL without the punctuation behind it. A bracket stays that opens within it."""
    surplus = {close: word.count(close) - word.count(opens) for close, opens in _PAIRS.items()}
    end = len(word)
    while end and (word[end - 1] in _BEHIND or surplus.get(word[end - 1], 0) > 0):
        end -= 1
        if word[end] in surplus:
            surplus[word[end]] -= 1
    return word[:end]
