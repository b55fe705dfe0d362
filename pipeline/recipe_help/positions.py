"""Where each key of a TOML text stands, which tomllib does not say.

The text must be one that tomllib reads: nothing is checked here again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Path = tuple[str | int, ...]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"[ \t]*")
_GAP: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR: Final = re.compile(r"[^,\]}\n#]*")
_STRINGS: Final = (
    # The longest opening first. A basic string may hold escaped quotes; up to two quotes may precede the
    # closing three.
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}(?!")', re.DOTALL),
    re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPosition:
    """A place in a text; both count from 1."""

    line: int
    column: int


def key_positions(text: str) -> dict[Path, TextPosition]:
    """Where each key and each table's header begins, by its path: ("source", 0, "limit"). A table that
    several headers or dotted keys make has the place of the first."""
    scan = _Scan(text)
    scan.document()
    return {path: position_of(text, offset) for path, offset in scan.found.items()}


def position_of(text: str, offset: int) -> TextPosition:
    """The place of a character."""
    line_start = text.rfind("\n", 0, offset) + 1
    return TextPosition(line=text.count("\n", 0, offset) + 1, column=offset - line_start + 1)


def dotted(path: Path) -> str:
    """A path as the recipe's reader writes it: source[0].limit."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class _Scan:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        """Entries so far of each list of tables."""

    def document(self) -> None:
        table: Path = ()
        self._skip(_GAP)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_GAP)

    def _header(self) -> Path:
        begin, is_list = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if is_list else 1
        path: Path = ()
        names = self._names()
        for name, _ in names[:-1]:
            path = self._newest((*path, name))
            self.found.setdefault(path, begin)
        path = (*path, names[-1][0])
        if is_list:
            number = self._sizes.get(path, 0)
            self._sizes[path] = number + 1
            self.found.setdefault(path, begin)
            path = (*path, number)
        self.found.setdefault(path, begin)
        self.at = self.text.index("]", self.at) + (2 if is_list else 1)
        return path

    def _newest(self, path: Path) -> Path:
        """A header's prefix that names a list of tables means the last of them."""
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _names(self) -> list[tuple[str, int]]:
        """The parts of a dotted key, and where each begins."""
        names = []
        while True:
            self._skip(_BLANK)
            begin = self.at
            if self.text[self.at] in "\"'":
                self._string()
                name = _unquoted(self.text[begin : self.at])
            else:
                self._skip(_BARE)
                name = self.text[begin : self.at]
            names.append((name, begin))
            self._skip(_BLANK)
            if self.text[self.at] != ".":
                return names
            self.at += 1

    def _pair(self, table: Path) -> None:
        path = table
        for name, begin in self._names():
            path = (*path, name)
            self.found.setdefault(path, begin)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip(_BLANK)
        opening = self.text[self.at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self._list(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._skip(_SCALAR)

    def _list(self, path: Path) -> None:
        self.at += 1
        self._skip(_GAP)
        number = 0
        while self.text[self.at] != "]":
            self.found.setdefault((*path, number), self.at)
            self._value((*path, number))
            number += 1
            self._comma()
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        self._skip(_GAP)
        while self.text[self.at] != "}":
            self._pair(path)
            self._comma()
        self.at += 1

    def _comma(self) -> None:
        self._skip(_GAP)
        if self.text[self.at] == ",":
            self.at += 1
            self._skip(_GAP)

    def _string(self) -> None:
        for pattern in _STRINGS:
            if match := pattern.match(self.text, self.at):
                self.at = match.end()
                return
        raise AssertionError(f"no string at {self.at}: the text is not TOML")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at


def _unquoted(quoted: str) -> str:
    import tomllib

    name: str = tomllib.loads(f"a = {quoted}")["a"]
    return name
