"""The text of a PDF, by PDFium. Nothing is recognised in images, so a scan without a text layer gives none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from stages.converters.converter import Converted, RefusedError

_PASSWORD: Final = 4
_SECURITY: Final = 5
"""FPDF_ERR_PASSWORD and FPDF_ERR_SECURITY (fpdfview.h)."""
_HYPHEN: Final = re.compile("[\x02\ufffe](?:\r?\n)?")
"""Stands for a hyphen at the end of a line, where PDFium has joined the word (CPDF_TextPage::ProcessInsertObject)."""
_FULL: Final = 0.75
"""The share of a page's long lines that a line has at least where the paragraph goes on in the next one."""


def pdf_text(payload: bytes, max_pages: int, max_bytes: int) -> Converted:
    """The text of all pages. RefusedError if there are more than `max_pages`, or it has more than `max_bytes`; if the
    document asks for a password; if the document or a page of it cannot be read."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(payload)
    except pypdfium2.PdfiumError as error:
        is_locked = error.err_code in (_PASSWORD, _SECURITY)
        raise RefusedError("encrypted" if is_locked else "damaged") from error
    if len(document) > max_pages:
        raise RefusedError("too_many_pages", float(len(document)))
    pages, num_bytes = [], 0
    for text in _pages(document):
        num_bytes += len(text.encode("utf-8", "replace"))
        if num_bytes > max_bytes:
            raise RefusedError("too_large")
        pages.append(_paragraphs(text))
    title = document.get_metadata_dict().get("Title", "").strip()
    return Converted(text="\n\n".join(filter(None, pages)), title=title or None)


def _pages(document: Any) -> Iterator[str]:
    import pypdfium2

    for number in range(len(document)):
        try:
            page = document[number]
        except pypdfium2.PdfiumError as error:
            raise RefusedError("damaged", float(number + 1)) from error
        text_page = page.get_textpage()
        text, whole = text_page.get_text_bounded(), text_page.get_text_range()
        # The first misses line ends between lines that run upwards; the second is of UCS-2, and has what is cropped.
        yield whole if text.split() != whole.split() and _letters(text) == _letters(whole) else text
        text_page.close()
        page.close()


def _letters(text: str) -> str:
    return "".join(text.split())


def _paragraphs(page: str) -> str:
    """A page's text with a line for each paragraph: a PDF has lines alone, and one that is much shorter than the
    others of its page ends a paragraph."""
    lines = [line.strip() for line in _HYPHEN.sub("", page.replace("\r\n", "\n")).split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    long = lengths[len(lengths) * 9 // 10] if lengths else 0
    paragraphs, begun = [], list[str]()
    for line in lines:
        if line:
            begun.append(line)
        if begun and len(line) < _FULL * long:
            paragraphs.append(" ".join(begun))
            begun = []
    return "\n".join([*paragraphs, " ".join(begun)] if begun else paragraphs)
