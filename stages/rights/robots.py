"""robots.txt as RFC 9309 has it, with the rules Content-Usage (draft-ietf-aipref-attach) and Content-Signal.

`relevant_part` cuts a file down to what can matter for some product tokens; `read_robots` reads a whole file or such
a part alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from stages.rights.preferences import content_signal_meaning, usage_meaning
from stages.rights.signal import Signal

MOST_BYTES: Final = 500 << 10
"""What a parser must read of a file (RFC 9309, 2.5); what lies behind is not looked at."""

_LINE_ENDS = re.compile(r"\r\n?|\n")
_TOKEN = re.compile(r"\*(?=\s|$)|[^\s/*,;()]+")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_BLANK = re.compile(r"[ \t]+")
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))
_ANY: Final = "*"

_PATHS: Final = ("allow", "disallow")
_PREFERENCES: Final = ("content-usage", "content-signal")
_LABELS: Final = ("user-agent", *_PATHS, *_PREFERENCES)


def normal_path(path: str) -> str:
    """A path with its query as paths are compared (RFC 9309, 2.2.2): octets above ASCII are escaped, those that need
    no escape are not, hexadecimal digits are capitals."""
    if path.isascii() and "%" not in path and " " not in path:
        return path
    return _ESCAPE.sub(_normal_escape, quote(path, safe=_ASCII, errors="surrogatepass"))


def compared_path(path: str) -> str:
    """A page's path as patterns are held against it: in these `%2A` and `%24` stand for the characters themselves."""
    return normal_path(path).replace(_ANY, "%2A").replace("$", "%24")


def _normal_escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A path of a rule: `*` stands for any characters, `$` at its end for the end (RFC 9309, 2.2.3). `length` counts
    its octets, by which the most specific rule is chosen."""

    pieces: tuple[str, ...]
    is_whole: bool
    length: int

    @classmethod
    def of(cls, path: str) -> PathPattern:
        """The pattern that is written so."""
        path = normal_path(path)
        is_whole = path.endswith("$")
        pieces = (path[:-1] if is_whole else path).replace("$", "%24").split(_ANY)
        return cls(tuple(pieces), is_whole, len(path))

    def matches(self, path: str) -> bool:
        """Whether a path, as `compared_path` gives it, matches. Linear in the path for each piece of the pattern."""
        first, *others = self.pieces
        if not path.startswith(first):
            return False
        at = len(first)
        if not others:
            return not self.is_whole or at == len(path)
        *middle, last = others
        for piece in middle:
            found = path.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        if self.is_whole:
            return path.endswith(last) and len(path) - len(last) >= at
        return path.find(last, at) >= 0


@dataclass(frozen=True, slots=True)
class _Rule:
    """A line of a group: its label, the path that it is for, and the text that is recorded of it."""

    label: str
    pattern: PathPattern
    shown: str
    signal: Signal | None = None


@dataclass(slots=True)
class _Group:
    """The rules for the crawlers of some product tokens."""

    rules: list[_Rule] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)

    def add(self, rule: _Rule) -> None:
        """One more rule."""
        self.rules.append(rule)
        self.labels.add(rule.label)

    def allows(self, path: str) -> tuple[bool, str]:
        """Whether the path may be crawled, and the rule that says so: the longest that matches; of equal ones Allow
        (RFC 9309, 2.2.2)."""
        best, allows, shown = -1, True, ""
        for rule in self.rules:
            if rule.label not in _PATHS or rule.pattern.length < best:
                continue
            does_allow = rule.label == "allow"
            if (rule.pattern.length > best or (does_allow and not allows)) and rule.pattern.matches(path):
                best, allows, shown = rule.pattern.length, does_allow, rule.shown
        return allows, shown

    def longest(self, label: str, path: str) -> list[Signal]:
        """What the rules with this label say whose path matches and is the longest that does."""
        if label not in self.labels:
            return []
        found = [rule for rule in self.rules if rule.label == label and rule.pattern.matches(path)]
        most = max((rule.pattern.length for rule in found), default=0)
        return [rule.signal for rule in found if rule.pattern.length == most and rule.signal is not None]


class Robots:
    """The groups of a file. `outside` are Content-Signal lines before any group, which some sites write."""

    def __init__(self, groups: dict[str, _Group], outside: _Group) -> None:
        self._groups, self._outside = groups, outside

    def signals(self, path: str, agents: Sequence[str]) -> Iterator[Signal]:
        """What the file says of a path (with its query) to the crawlers of these product tokens, each signal once.

        Content-Usage counts in the group of each token, or that of `*` where none names it, unless the group
        disallows the path: then it has no preference. A disallowed path is a signal in a group that names the token;
        `*` among the tokens makes the group for all such a one. Content-Signal counts also where the path is
        disallowed, or outside of any group."""
        path = compared_path(path)
        found: dict[Signal, None] = {}
        for signal in self._outside.longest("content-signal", path):
            found[signal] = None
        allowed: dict[int, tuple[bool, str]] = {}
        for agent in agents:
            named = self._groups.get(agent.lower())
            group = named or self._groups.get(_ANY)
            if group is None:
                continue
            is_new = id(group) not in allowed
            allows, shown = allowed[id(group)] = group.allows(path) if is_new else allowed[id(group)]
            if not allows and named is not None:
                found[Signal("robots", "robots.txt", f"{agent}: {shown}", "denied")] = None
            for label in (_PREFERENCES if allows else ("content-signal",)) if is_new else ():
                for signal in group.longest(label, path):
                    found[signal] = None
        yield from found


def _signal_of(label: str, shown: str, value: str) -> Signal:
    if label == "content-usage":
        # A path alone says nothing, though an empty dictionary would parse.
        return Signal("content_usage", "robots.txt", shown, usage_meaning(value) if value else "malformed")
    return Signal("content_signal", "robots.txt", shown, content_signal_meaning(value))


def read_robots(text: str) -> Robots:
    """The groups of a robots.txt. Nothing in it is an error: a line that is no rule is passed over, and groups for
    one product token are one."""
    groups: dict[str, _Group] = {}
    outside = _Group()
    current: list[_Group] = [outside]
    is_naming = False
    for label, value in _lines(text):
        if label == "user-agent":
            token = _TOKEN.match(value)
            if not is_naming:
                current, is_naming = [], True
            if token is not None:
                current.append(groups.setdefault(token[0].lower(), _Group()))
            continue
        is_naming = False
        rule = _rule(label, value)
        for group in current if rule is not None else ():
            group.add(rule)  # type: ignore[arg-type]
    return Robots(groups, outside)


def _rule(label: str, value: str) -> _Rule | None:
    if label in _PATHS:
        # An empty path is no rule: `Disallow:` alone disallows nothing.
        shown = f"{label.capitalize()}: {value}"
        return _Rule(label, PathPattern.of(value), shown) if value else None
    path, preference = "", value
    if value.startswith("/"):
        path, *rest = _BLANK.split(value, maxsplit=1)
        preference = rest[0] if rest else ""
    return _Rule(label, PathPattern.of(path), value, _signal_of(label, value, preference))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """The labels, in lower case, and values of the lines that RFC 9309 or the drafts define."""
    for line in _LINE_ENDS.split(text.removeprefix("\ufeff")):
        label, colon, value = line.partition("#")[0].partition(":")
        label = label.strip(" \t").lower()
        if colon and label in _LABELS:
            yield label, value.strip(" \t")


def relevant_part(text: str, agents: Iterable[str]) -> str:
    """The part of a robots.txt in which `Robots.signals` for these product tokens finds all that it finds in the
    whole; "" for most files. Groups that name one of them, that for all where it states a preference (or `*` is
    among them), and Content-Signal lines outside of groups."""
    wanted = {agent.lower() for agent in agents}
    parts: list[str] = []
    names: list[str] = []
    rules: list[str] = []
    has_preference: set[str] = set()
    groups: list[tuple[list[str], list[str]]] = []
    for label, value in _lines(text):
        if label == "user-agent":
            if rules:
                groups.append((names, rules))
                names, rules = [], []
            token = _TOKEN.match(value)
            names.append("" if token is None else token[0].lower())
            continue
        if not names and not groups:
            if label == "content-signal":
                parts.append(f"{label}: {value}")
            continue
        rules.append(f"{label}: {value}")
        if label in _PREFERENCES:
            has_preference.update(names)
    groups.append((names, rules))
    kept = wanted | ({_ANY} & has_preference)
    # A named group without any rule hides the group for all, so it stays.
    for of_group, lines in groups:
        if tokens := [name for name in of_group if name in kept]:
            parts += [*(f"user-agent: {name}" for name in tokens), *lines]
    return "\n".join(parts)
