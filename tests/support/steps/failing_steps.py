"""Steps of a user's own that raise, for tests: found by name, by workers too."""

from __future__ import annotations

import json
from dataclasses import replace

from stages.document import Document


def fail(document: Document) -> Document:
    """Raises on every document, and quotes it."""
    raise KeyError(document.text)


def fail_on_seven(document: Document) -> Document:
    """Raises on the document whose id is 7."""
    if document.record_id == "7":
        raise ValueError(f"no use for {document.text}")
    return document


def give_no_text(document: Document) -> Document:
    """Leaves in the document what no table can hold."""
    return replace(document, language=json.loads("{}"))


def run_out_of_memory(document: Document) -> Document:
    """Raises what is not about the document."""
    raise MemoryError
