"""JSON of others, read to a depth of its own: how deep Python's reader goes depends on its caller's stack, and a
verdict must not."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 200
"""Lists and objects within each other. Python stops at about a thousand, its caller's frames included; a discussion
that holds answers within answers has a hundred."""


class TooDeepError(ValueError):
    """JSON whose lists and objects are nested deeper than MAX_DEPTH."""

    def __init__(self) -> None:
        super().__init__(f"its lists and objects are nested more than {MAX_DEPTH} deep")


def read_json(data: str | bytes) -> Any:
    """What `json.loads` gives; TooDeepError where it is nested deeper than MAX_DEPTH, whatever calls."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise TooDeepError from None
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise TooDeepError
    return value
