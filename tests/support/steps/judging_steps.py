"""Steps of a user's own that judge and name documents by their ids, for tests: found by name, by workers
too."""

from __future__ import annotations

from dataclasses import replace

from stages.document import Document, Finding, Outcome, Rejection


def drop_a_third(document: Document) -> Outcome:
    """Turns every third document down."""
    if document.doc_id[0] % 3:
        return document
    return Rejection(document=document, finding=Finding(stage="", rule="third", value=0.0, threshold=1.0))


def name_regions(document: Document) -> Document:
    """Gives every document a language that no recipe asks for."""
    return replace(document, language=f"{document.language}-GB")
