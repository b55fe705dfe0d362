"""What datatrove's filters say of a text as FineWeb-2's pipeline calls them, from FineWeb-2's own
configuration."""

from __future__ import annotations

from benchmarks.peers.recipes import judged_by_datatrove
from stages.quality.fineweb2.configurations import configuration_of

RULES = ("gopher_repetition", "fineweb", "gopher_quality")
"""In FineWeb-2's order."""


def fineweb2_verdict(text: str, language: str) -> str | None:
    """The rule, by our name, for which FineWeb-2 turns a text down; None where it passes."""
    assert configuration_of(language) is not None
    return judged_by_datatrove("fineweb2", text, language).rule
