"""Patch of how trafilatura 2.3.1 composes its text (NFC): to the same characters, but in linear time also
where many combining marks are out of order."""

from __future__ import annotations

from stages.composition import normalised_in
from stages.html.trafilatura_patches.faults import own_fault


def patch_composing() -> None:
    """Patch this process's trafilatura."""
    import trafilatura.core

    trafilatura.core.normalize_unicode = _composed


@own_fault
def _composed(text: str) -> str:
    return normalised_in("NFC", text)
