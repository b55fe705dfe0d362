"""From a document's payload to its HTML, within bounds that depend on nothing but the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from stages.document import Document, Finding
from stages.fault import Fault
from stages.html.extraction import Extractor, Failure
from stages.html.extraction_child import extract_or_isolate
from stages.html.markup import depth, num_elements
from stages.html.markup_bounds import markup_bounds
from stages.reading.body import BodyTooLongError, decode_body
from stages.reading.charset import decode_text

_LOOKED_AT_BY_TAG: Final = 10  # characters
MAX_ATTRIBUTES: Final = 1_000
"""Of one tag. Both extractors compare each attribute with all before it, in native code that no clock reaches: 40,000
take resiliparse 10 s, and 1,000 in every tag of a page of 16 MiB no longer than other pages of that size."""
_TREE_OF: Final = 4
"""How many times `Bounds.num_tags` elements a page may have by the estimate for its tree to be made and counted."""
Extract = Callable[[str, Extractor], str | Failure | Fault]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a page may hold before it is parsed: bytes (content encodings undone), `<` characters (or elements,
    where a parser opens so many again that there are more of these), nesting, and the options of one `<select>`."""

    num_bytes: int
    num_tags: int
    depth: int
    num_options: int


@dataclass(frozen=True, slots=True)
class FastText:
    """The fast extractor's text of a page; None where there is none to judge by."""

    text: str | None


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A decoded page: `findings` are the bounds that were looked at, the first rejected one last. `html` is empty
    where a bound was passed. `fast` is there once it was asked for."""

    html: str
    charset: str | None
    findings: tuple[Finding, ...]
    fast: FastText | None = None

    @property
    def too_much(self) -> Finding | None:
        """The bound that the page passes, if any."""
        return self.findings[-1] if self.findings and self.findings[-1].rejected else None


def read_page(document: Document, bounds: Bounds) -> HtmlPage:
    """The document's payload as text, its bounds checked. Findings bear the stage `parse`."""
    if document.num_bytes > bounds.num_bytes:
        return HtmlPage("", None, (_bound("parse.too_large", document.num_bytes, bounds.num_bytes),))
    try:
        body = decode_body(document.payload, document.content_encoding, bounds.num_bytes)
    except BodyTooLongError:  # how long it would be is not known: decoding stopped there
        too_large = _bound("parse.too_large", bounds.num_bytes + 1, bounds.num_bytes)
        return HtmlPage("", None, (replace(too_large, value=None),))
    text, charset = decode_text(body, document.charset_hint, is_html=document.is_html)
    if not document.is_html:
        return HtmlPage(text, charset, (_bound("parse.too_large", len(body), bounds.num_bytes),))
    findings = []
    in_utf8 = body if charset == "utf-8" else text.encode("utf-8", "replace")
    for finding in _bounds_of(text, in_utf8, len(body), bounds):
        findings.append(finding)
        if finding.rejected:
            return HtmlPage("", charset, tuple(findings))
    return HtmlPage(text, charset, tuple(findings))


def _bounds_of(html: str, in_utf8: bytes, num_bytes: int, bounds: Bounds) -> Iterator[Finding]:
    yield _bound("parse.too_large", num_bytes, bounds.num_bytes)
    num_tags, deepest, num_reopened, num_attributes, num_options = markup_bounds(in_utf8)
    # First, and without a tree: 600 open elements before 10,000 paragraphs, 86 kB in all, make one of 2 GB.
    yield _bound("parse.too_many_attributes", num_attributes, MAX_ATTRIBUTES)
    yield _bound("parse.too_many_options", num_options, bounds.num_options)
    if num_reopened and num_tags + num_reopened > _TREE_OF * bounds.num_tags:
        yield _bound("parse.too_many_tags", num_tags + num_reopened, bounds.num_tags)
        return
    if deepest > bounds.depth:
        # A page of too many tags is turned down in any case: no reason to go through millions of them for its name.
        deepest = depth(html if num_tags <= bounds.num_tags else html[: _LOOKED_AT_BY_TAG * bounds.num_tags])
    yield _bound("parse.too_deep", deepest, bounds.depth)
    if num_tags <= bounds.num_tags < num_tags + num_reopened:
        num_tags = max(num_tags, num_elements(html))
    yield _bound("parse.too_many_tags", num_tags, bounds.num_tags)


def _bound(rule: str, value: int, threshold: int) -> Finding:
    return Finding(stage="parse", rule=rule, value=float(value), threshold=float(threshold), rejected=value > threshold)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A page that a document carries along, and what it was read from: a step of the user's may change that."""

    payload: bytes
    read_as: tuple[object, ...]
    page: HtmlPage

    def is_of(self, document: Document) -> bool:
        """Whether the page is still the document's."""
        return self.payload is document.payload and self.read_as == _read_as(document)


def _read_as(document: Document) -> tuple[object, ...]:
    return document.num_bytes, document.content_encoding, document.charset_hint, document.is_html


class PageReader:
    """What prefilter and parse share: reading a page, and extracting, in this process or in a child's. What one of them
    makes of a page goes along with the document (`Document.decoded`) to the other; nothing is kept here."""

    def __init__(self, bounds: Bounds, timeout_seconds: float) -> None:
        self._bounds = bounds
        self._fast = Extractor(name="resiliparse", favor="balance", fast=True, timeout_seconds=timeout_seconds)
        self.extract: Extract = extract_or_isolate

    def read(self, document: Document) -> HtmlPage:
        """The document's page: the one that it carries, or else read now."""
        decoded = document.decoded
        if isinstance(decoded, _Decoded) and decoded.is_of(document):
            return decoded.page
        return read_page(document, self._bounds)

    def with_fast_text(self, document: Document) -> Document:
        """The document with its page and the fast extractor's text of it; as it is, where it is no HTML."""
        if not document.is_html:
            return document
        page = self.read(document)
        if page.fast is None:
            page = replace(page, fast=FastText(self._extract_fast(page)))
        return replace(document, decoded=_Decoded(document.payload, _read_as(document), page))

    def _extract_fast(self, page: HtmlPage) -> str | None:
        if page.too_much is not None:
            return None
        text = self.extract(page.html, self._fast)
        return text.strip() if isinstance(text, str) else None
