"""Lone surrogates, which JSON may hold and UTF-8 does not have."""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """A text with U+FFFD for each lone surrogate."""
    return _SURROGATE.sub("\ufffd", text)
