"""The content types of payloads that the step parse converts to a text or a page."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Final

EPUB: Final = "application/epub+zip"
LATEX: Final = "application/x-tex"
"""A LaTeX source, or a tar archive of those of one paper."""
PDF: Final = "application/pdf"
WIKITEXT: Final = "text/x-wiki"
_LIBRARIES: Final = {
    LATEX: ("LaTeX sources", "pylatexenc"),
    PDF: ("PDF documents", "pypdfium2"),
    WIKITEXT: ("MediaWiki dumps", "mwparserfromhell"),
}
TYPES_OF: Final = {"epub": EPUB, "latex": LATEX, "pdf": PDF, "wikipedia": WIKITEXT}
"""By the format of files."""
_OF_TYPE: Final = frozenset(";=,")


def kind_of(content_type: str) -> str | None:
    """Which of these a payload of this type is; None for any other. Wikitext on a web page is a plain text."""
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    return kind if kind in (EPUB, LATEX, PDF) or (kind == WIKITEXT and "media=" in parameters) else None


def why_not_converted(kind: str) -> str | None:
    """Which library documents of this kind need that is not installed, and how to install it; None if all are."""
    what, library = _LIBRARIES.get(kind, ("", ""))
    if not library or importlib.util.find_spec(library) is not None:
        return None
    return f"{what} need {library}: in Sluice's checkout, pip install '.[documents]'"


def wikitext_type(media: Iterable[str], categories: Iterable[str]) -> str:
    """The content type of wikitext, with what its wiki calls the namespaces of files and of categories."""
    shown = (
        ",".join(sorted(name for name in names if not _OF_TYPE & {*name})) for names in (media, categories)
    )
    return f"{WIKITEXT}; media={next(shown)}; categories={next(shown)}"


def namespaces_of(content_type: str) -> tuple[frozenset[str], frozenset[str]]:
    """These names again: of files and of categories."""
    parameters = (each.partition("=") for each in content_type.split(";")[1:])
    named = {key.strip(): frozenset(names.split(",")) for key, _, names in parameters}
    return named.get("media", frozenset()), named.get("categories", frozenset())
