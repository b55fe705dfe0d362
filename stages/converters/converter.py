"""What a payload of another kind than HTML and text is converted to, or why it gives nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stages.reading.content_types import kind_of, namespaces_of

MAX_MARKUP: Final = 50_000_000
"""Of characters times what each may cost. Each tag, table, template and link of wikitext that is never closed has its
tokenizer look at the text up to the end, in native code: 7,200 tags in 36,000 characters take it 37 s, so this many
some 15 s. LaTeX, of which each character counts twelve times, takes as long."""

Refusal = Literal["encrypted", "damaged", "too_large", "too_many_pages", "too_much_markup"]
"""The end of the name of the rule of the step parse that turns the document down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converter:
    """How a payload is converted. `content_type` has parameters where its kind needs them; `max_bytes` bounds what
    the payload unfolds to, and `max_pages` the pages of a PDF; `timeout_seconds` is processor time."""

    content_type: str
    max_bytes: int
    max_pages: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A text, or pages of HTML of which an extractor takes the text; and the title that the document gives itself."""

    text: str = ""
    title: str | None = None
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why nothing was converted, and what was measured, if anything: the number of pages, of bytes."""

    refusal: Refusal
    value: float | None = None


class RefusedError(Exception):
    """A converter's reason to give nothing of a payload."""

    def __init__(self, refusal: Refusal, value: float | None = None) -> None:
        super().__init__(refusal)
        self.refused = Refused(refusal=refusal, value=value)


def convert(payload: bytes, converter: Converter) -> Converted | Refused:
    """What a payload is converted to. What its library raises besides is an error of the library's."""
    try:
        match kind_of(converter.content_type):
            case "application/pdf":
                from stages.converters.pdf import pdf_text

                return pdf_text(payload, converter.max_pages, converter.max_bytes)
            case "application/epub+zip":
                from stages.converters.epub import epub_pages

                return epub_pages(payload, converter.max_bytes)
            case "application/x-tex":
                from stages.converters.latex import latex_text

                return latex_text(payload, converter.max_bytes)
            case "text/x-wiki":
                from stages.converters.wikitext import wiki_text

                return wiki_text(payload, *namespaces_of(converter.content_type))
        raise AssertionError(converter.content_type)
    except RefusedError as error:
        return error.refused
