"""What a tokenizer's affix patterns find at an edge of a string or inside it, told from the few characters
there.

spaCy asks regular expressions for the prefix and the suffix of a string, and for the infixes between. Each is
an alternation of some hundred short sequences of character sets with looks to either side. Here such an
expression is taken apart once, by the parser of Python's own `re`, and evaluated on a *window*: the one to
three characters at the place in question. The answer is certain or it is `UNSURE`; nothing is guessed, and
then the expression itself is searched."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from re import _compiler as compiler  # type: ignore[attr-defined]  # of Python 3.11 to 3.13
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, cast

UNSURE: Final = -1
"""The answer where the window does not tell."""
NOTHING: Final = "\n"
"""In a window: the string ends here. Strings between white space hold no line feed."""
_MAX_CHARS: Final = 65_536


class _UnknownError(Exception):
    """An expression holds what this module does not evaluate."""


_Holds = Callable[[str], object]
"""A character set: tells by a true value whether a character is in it."""
_Item = tuple[str, Any]
_BEGIN: Final[_Item] = ("begin", None)
_END: Final[_Item] = ("end", None)
_MORE: Final[_Item] = ("more", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LookAround:
    """What must stand (or, `negated`, must not stand) beside a place: character sets from the place
    outward."""

    sets: tuple[_Holds, ...]
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    """One way for an expression to match: a set for each character, with looks before them and after them.

    One that `goes_on` has more characters, which are not described: after these, or, of a suffix, before
    them."""

    chars: tuple[_Holds, ...]
    behind: tuple[_LookAround, ...] = ()
    ahead: tuple[_LookAround, ...] = ()
    goes_on: bool = False


class Affixes:
    """One tokenizer's three expressions: `prefix` is searched at the begin of a string, `suffix` at its end,
    `infix` everywhere. Of one that is None, or that this module does not know, every answer is UNSURE."""

    def __init__(
        self, *, prefix: re.Pattern[str] | None, suffix: re.Pattern[str] | None, infix: re.Pattern[str] | None
    ) -> None:
        self._prefixes = _ByEdge(_sequences(prefix, begin=True), 0)
        self._suffixes = _ByEdge(_sequences(suffix, end=True), -1)
        self._infixes = _ByEdge(_sequences(infix), 0)

    def prefix(self, window: str) -> int:
        """Length of the prefix of a string that begins with `window` (0: none), or UNSURE."""
        for sequence in self._prefixes.of(window[0]):
            found = _matches(sequence, window, 0)
            if found is not False:
                return len(sequence.chars) if found else UNSURE
        return 0

    def suffix(self, window: str) -> int:
        """Length of the suffix of a string that ends with `window` (0: none), or UNSURE.

        A search finds the leftmost match, so of those that end the string the longest."""
        longest, possible = 0, 0.0
        for sequence in self._suffixes.of(window[-1]):
            length = len(sequence.chars)
            found = _matches(sequence, window, len(window) - length)
            if found:
                longest = max(longest, length)
            elif found is None:
                possible = math.inf if sequence.goes_on else max(possible, length)
        return longest if longest >= possible else UNSURE

    def infix(self, window: str) -> int:
        """1 where the character of `window` is an infix of one character, 0 where no infix begins with it, or
        UNSURE. The window is the character alone, or with its neighbours."""
        place = len(window) // 2
        for sequence in self._infixes.of(window[place]):
            found = _matches(sequence, window, place)
            if found is not False:
                return 1 if found and len(sequence.chars) == 1 else UNSURE
        return 0


class _ByEdge:
    """Sequences by the character at their first or last place, worked out when it is asked for."""

    def __init__(self, sequences: Iterable[_Sequence], place: int) -> None:
        self._sequences = tuple(sequences)
        self._place = place
        self._known: dict[str, tuple[_Sequence, ...]] = {}

    def of(self, char: str) -> tuple[_Sequence, ...]:
        """Those that may have `char` there, in order."""
        if char not in self._known:
            if len(self._known) >= _MAX_CHARS:
                self._known.clear()
            self._known[char] = tuple(
                sequence
                for sequence in self._sequences
                if not sequence.chars or _hold(sequence.chars[self._place :][:1], char, 0, 1)
            )
        return self._known[char]


def _matches(sequence: _Sequence, window: str, start: int) -> bool | None:
    """Whether a sequence matches from `start` of a window on; None where what lies beside the window
    decides."""
    found = _hold(sequence.chars, window, start, 1)
    if found is False:
        return False
    known = found is True and not sequence.goes_on
    for looks, place, step in (
        (sequence.behind, start - 1, -1),
        (sequence.ahead, start + len(sequence.chars), 1),
    ):
        for look in looks:
            found = _hold(look.sets, window, place, step)
            if found is look.negated:
                return False
            known = known and found is not None
    return True if known else None


def _hold(sets: Sequence[_Holds], window: str, place: int, step: int) -> bool | None:
    """Whether the characters from `place` on, in the direction of `step`, are of these sets."""
    known = True
    for holds in sets:
        if not 0 <= place < len(window):
            known = False
        elif window[place] == NOTHING or not holds(window[place]):
            return False
        place += step
    return True if known else None


_ANYTHING: Final = _Sequence(chars=(), goes_on=True)
"""What is known of an expression that is not known."""


def _sequences(pattern: re.Pattern[str] | None, *, begin: bool = False, end: bool = False) -> list[_Sequence]:
    """Every way for an expression to match, in the order in which `re` tries them. Each must hold the anchor
    asked for, or the place of its match would not be the edge."""
    if pattern is None or pattern.flags & ~re.UNICODE:
        return [_ANYTHING]
    try:
        ways = _ways(parser.parse(pattern.pattern, pattern.flags), leftward=end)
        if any((begin and way[:1] != [_BEGIN]) or (end and way[-1:] != [_END]) for way in ways):
            return [_ANYTHING]
        return [_sequence(way[begin : len(way) - end]) for way in ways]
    except _UnknownError:
        return [_ANYTHING]


def _sequence(items: Sequence[_Item]) -> _Sequence:
    described = [item for item in items if item != _MORE]
    parts = {
        wanted: [value for kind, value in described if kind == wanted]
        for wanted in ("behind", "char", "ahead")
    }
    if [kind for kind, _ in described] != [kind for kind, values in parts.items() for _ in values]:
        raise _UnknownError("a look or an anchor in the middle")
    return _Sequence(
        chars=tuple(parts["char"]),
        behind=tuple(parts["behind"]),
        ahead=tuple(parts["ahead"]),
        goes_on=len(described) < len(items),
    )


def _ways(parsed: Any, *, leftward: bool) -> list[list[_Item]]:
    """The ways for a parsed expression to match, each a list of characters, looks and anchors; beyond
    `_MORE`, in the direction of reading, nothing is described."""
    ways: list[list[_Item]] = [[]]
    for operation, value in reversed(parsed) if leftward else parsed:
        options = _options(operation, value, leftward=leftward)
        ways = [_joined(way, option, leftward=leftward) for way, option in product(ways, options)]
    return ways


def _joined(way: list[_Item], option: list[_Item], *, leftward: bool) -> list[_Item]:
    if _MORE in way:
        return way
    return option + way if leftward else way + option


def _options(operation: Any, value: Any, *, leftward: bool) -> list[list[_Item]]:
    """The ways for one operation of `re` to match."""
    match operation:
        case sre.LITERAL | sre.NOT_LITERAL | sre.IN | sre.ANY:
            return [[("char", _set_of(operation, value))]]
        case sre.BRANCH:
            return [way for branch in value[1] for way in _ways(branch, leftward=leftward)]
        case sre.SUBPATTERN:
            _, add_flags, del_flags, inner = value
            if add_flags or del_flags:
                raise _UnknownError(f"flags {add_flags}, {del_flags} within a pattern")
            return _ways(inner, leftward=leftward)
        case sre.MAX_REPEAT:
            least, most, inner = value
            once = _ways(inner, leftward=leftward)
            parts = [
                [list(chain.from_iterable(ways)) for ways in product(once, repeat=n)]
                for n in (least, least + 1)
            ]
            if most > least + 1:  # one more, and what is not described after it
                parts[1] = [_joined(part, [_MORE], leftward=leftward) for part in parts[1]]
            return parts[0] if most == least else parts[1] + parts[0]
        case sre.AT if value in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return [[_BEGIN]]
        case sre.AT if value in (sre.AT_END, sre.AT_END_STRING):
            return [[_END]]
        case sre.ASSERT | sre.ASSERT_NOT:
            return _looks(value[0], value[1], negated=operation is sre.ASSERT_NOT)
        case _:
            raise _UnknownError(operation)


def _looks(direction: int, inner: Any, *, negated: bool) -> list[list[_Item]]:
    """A look aside; one of several alternatives is as many ways, or, negated, as many looks that must all
    fail."""
    found = []
    for way in _ways(inner, leftward=False):
        if any(kind != "char" for kind, _ in way):
            raise _UnknownError("a look at more than characters")
        sets = tuple(holds for _, holds in way)
        outward = sets if direction > 0 else sets[::-1]
        found.append(("ahead" if direction > 0 else "behind", _LookAround(sets=outward, negated=negated)))
    return [found] if negated else [[look] for look in found]


def _set_of(operation: Any, value: Any) -> _Holds:
    """A character set of `re` as a function, compiled by `re`: some have a thousand ranges."""
    parsed = parser.SubPattern(parser.State(), [(operation, value)])
    return cast(_Holds, compiler.compile(parsed, re.UNICODE).match)


def characters_needed(pattern: re.Pattern[str]) -> frozenset[str]:
    """Characters of which each match of an expression holds at least one of each."""
    if pattern.flags & re.IGNORECASE:
        return frozenset()
    return frozenset(_needed(parser.parse(pattern.pattern, pattern.flags)))


def _needed(parsed: Any) -> set[str]:
    needed: set[str] = set()
    for operation, value in parsed:
        if operation is sre.LITERAL:
            needed.add(chr(value))
        elif operation is sre.SUBPATTERN:
            needed |= _needed(value[3])
        elif operation is sre.BRANCH:
            needed |= set.intersection(*map(_needed, value[1]))
        elif operation in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] > 0:
            needed |= _needed(value[2])
    return needed
