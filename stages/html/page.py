"""From a document's payload to its HTML, within bounds that depend on nothing but the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from stages.document import Document, Finding
from stages.fault import Fault
from stages.html.extraction import Extractor, Failure, extract
from stages.html.markup import depth
from stages.html.markup_bounds import markup_bounds
from stages.reading.body import BodyTooLongError, decode_body
from stages.reading.charset import decode_text

_LOOKED_AT_BY_TAG: Final = 10  # characters
Extract = Callable[[str, Extractor], str | Failure | Fault]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a page may hold before it is parsed: bytes (content encodings undone), `<` characters, nesting."""

    num_bytes: int
    num_tags: int
    depth: int


@dataclass(frozen=True, slots=True)
class Page:
    """A decoded page: `findings` are the bounds that were looked at, the first rejected one last. `html` is empty
    where a bound was passed."""

    html: str
    charset: str | None
    findings: tuple[Finding, ...]

    @property
    def too_much(self) -> Finding | None:
        """The bound that the page passes, if any."""
        return self.findings[-1] if self.findings and self.findings[-1].rejected else None


def read_page(document: Document, bounds: Bounds) -> Page:
    """The document's payload as text, its bounds checked. Findings bear the stage `parse`."""
    if document.num_bytes > bounds.num_bytes:
        return Page("", None, (_bound("parse.too_large", document.num_bytes, bounds.num_bytes),))
    try:
        body = decode_body(document.payload, document.content_encoding, bounds.num_bytes)
    except BodyTooLongError:  # how long it would be is not known: decoding stopped there
        too_large = _bound("parse.too_large", bounds.num_bytes + 1, bounds.num_bytes)
        return Page("", None, (replace(too_large, value=None),))
    text, charset = decode_text(body, document.charset_hint, is_html=document.is_html)
    if not document.is_html:
        return Page(text, charset, (_bound("parse.too_large", len(body), bounds.num_bytes),))
    findings = []
    in_utf8 = body if charset == "utf-8" else text.encode("utf-8", "replace")
    for finding in _bounds_of(text, in_utf8, len(body), bounds):
        findings.append(finding)
        if finding.rejected:
            return Page("", charset, tuple(findings))
    return Page(text, charset, tuple(findings))


def _bounds_of(html: str, in_utf8: bytes, num_bytes: int, bounds: Bounds) -> Iterator[Finding]:
    yield _bound("parse.too_large", num_bytes, bounds.num_bytes)
    tags, deepest = markup_bounds(in_utf8)
    if deepest > bounds.depth:
        # A page of too many tags is turned down in any case: no reason to go through millions of them for its name.
        deepest = depth(html if tags <= bounds.num_tags else html[: _LOOKED_AT_BY_TAG * bounds.num_tags])
    yield _bound("parse.too_deep", deepest, bounds.depth)
    yield _bound("parse.too_many_tags", tags, bounds.num_tags)


def _bound(rule: str, value: int, threshold: int) -> Finding:
    return Finding(stage="parse", rule=rule, value=float(value), threshold=float(threshold), rejected=value > threshold)


class PageReader:
    """What prefilter and parse share: reading a page, and extracting, in this process or in a child's."""

    def __init__(self, bounds: Bounds, timeout_seconds: float) -> None:
        self._bounds = bounds
        self._fast = Extractor(name="resiliparse", favor="balance", fast=True, timeout_seconds=timeout_seconds)
        self.extract: Extract = extract
        self._read: dict[int, tuple[Document, Page]] = {}
        self._fast_texts: dict[int, tuple[Document, str | None]] = {}

    def read(self, document: Document) -> Page:
        """The document's page, kept by the document's identity for the step that takes it, until `forget`."""
        found = self._read.get(id(document))
        if found is None:
            found = self._read[id(document)] = document, read_page(document, self._bounds)
        return found[1]

    def take(self, document: Document) -> Page:
        """The document's page, for the last step that asks for it."""
        page = self.read(document)
        del self._read[id(document)]
        return page

    def forget(self) -> None:
        """Let go of the pages that no step took, and of the fast texts."""
        self._read.clear()
        self._fast_texts.clear()

    def fast_text(self, document: Document) -> str | None:
        """The fast extractor's text of an HTML document, kept as its page is; None where there is none to judge by."""
        found = self._fast_texts.get(id(document))
        if found is None:
            found = self._fast_texts[id(document)] = document, self._extract_fast(document)
        return found[1]

    def _extract_fast(self, document: Document) -> str | None:
        if not document.is_html:
            return None
        page = self.read(document)
        if page.too_much is not None:
            return None
        text = self.extract(page.html, self._fast)
        return text.strip() if isinstance(text, str) else None
