"""RE2 on bytes: patterns whose time is linear in the text, whatever the text is."""

from __future__ import annotations

from typing import Any, Final

import re2

_MEMORY: Final = 32 << 20  # an automaton that outgrows its memory is still linear, but several times slower


def options() -> Any:
    """RE2's options for bytes: no decoding, nothing on stderr."""
    chosen = re2.Options()
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.log_errors = False
    chosen.max_mem = _MEMORY
    return chosen


def linear(pattern: bytes) -> Any:
    """A compiled pattern; its class names and ranges mean bytes."""
    return re2.compile(pattern, options())


class AnyOf:
    """Several patterns in one pass: which of them occur. They must be small: RE2 says "none" where the
    automaton of all does not fit its memory at all (one that outgrows it on the way is begun anew, and
    answers rightly)."""

    def __init__(self, patterns: dict[str, bytes]) -> None:
        self._names = tuple(patterns)
        self._set = re2.Set.SearchSet(options())
        for pattern in patterns.values():
            self._set.Add(pattern)
        self._set.Compile()

    def __call__(self, data: bytes) -> frozenset[str]:
        """The names of the patterns that occur in `data`."""
        return frozenset(self._names[index] for index in self._set.Match(data) or ())
