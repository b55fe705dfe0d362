"""From a document's payload to its HTML, within bounds that depend on nothing but the page."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

from stages.converters.converter import Converted, Converter, Refused
from stages.document import Document, Finding
from stages.fault import Fault
from stages.html.extraction import Extractor, Failure
from stages.html.extraction_child import IsolatedExtraction, converted_in_child, extract_or_isolate
from stages.html.markup import depth_where_above, num_elements
from stages.html.markup_bounds import markup_bounds
from stages.html.maths import with_maths
from stages.reading.charsets.charset import decode_text
from stages.reading.warc.body import BodyTooLongError, decode_body
from stages.rules import Rule

_LOOKED_AT_BY_TAG: Final = 10  # characters
MAX_ATTRIBUTES: Final = 1_000
"""Of one tag. Both extractors compare each attribute with all before it, in native code that no clock
reaches: 40,000 take resiliparse 10 s, and 1,000 in every tag of a page of 16 MiB no longer than other pages
of that size."""
_TREE_OF: Final = 4
"""How many times `Bounds.num_tags` elements a page may have by the estimate for its tree to be made and
counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a page may hold before it is parsed: bytes (content encodings undone), `<` characters (or
    elements, where a parser opens so many again that there are more of these), nesting, and the options of
    one `<select>`."""

    num_bytes: int
    num_tags: int
    depth: int
    num_options: int


_TOO_LARGE: Final = Rule(
    stage="parse",
    name="parse.too_large",
    side="above",
    is_bound=True,
    keys=("limits.max_document_bytes",),
    help="bytes once content encodings are undone",
)
_TOO_MANY_ATTRIBUTES: Final = Rule(
    stage="parse",
    name="parse.too_many_attributes",
    side="above",
    is_bound=True,
    threshold=float(MAX_ATTRIBUTES),
    help="attributes of one tag",
)
_TOO_MANY_OPTIONS: Final = Rule(
    stage="parse",
    name="parse.too_many_options",
    side="above",
    is_bound=True,
    keys=("parse.max_options",),
    help="options of one `<select>`",
)
_TOO_DEEP: Final = Rule(
    stage="parse",
    name="parse.too_deep",
    side="above",
    is_bound=True,
    keys=("parse.max_depth",),
    help="how deep elements nest: an upper estimate, or counted, in a beginning of the page if that is too"
    " deep",
)
_TOO_MANY_TAGS: Final = Rule(
    stage="parse",
    name="parse.too_many_tags",
    side="above",
    is_bound=True,
    keys=("parse.max_tags",),
    help="`<` characters, or elements where a parser opens so many again; looked at before depth where there"
    " are far too many",
)


class BoundRules(NamedTuple):
    """The rules of the stage `parse` about what a page may hold, in order."""

    too_large: Rule
    too_many_attributes: Rule
    too_many_options: Rule
    too_deep: Rule
    too_many_tags: Rule


@cache
def bound_rules(bounds: Bounds) -> BoundRules:
    """The rules with their thresholds."""
    return BoundRules(
        too_large=_TOO_LARGE.at(float(bounds.num_bytes)),
        too_many_attributes=_TOO_MANY_ATTRIBUTES,
        too_many_options=_TOO_MANY_OPTIONS.at(float(bounds.num_options)),
        too_deep=_TOO_DEEP.at(float(bounds.depth)),
        too_many_tags=_TOO_MANY_TAGS.at(float(bounds.num_tags)),
    )


Measured = tuple[Rule, float | None]
"""A rule and the value that it was held against."""


@dataclass(frozen=True, slots=True)
class FastText:
    """The fast extractor's text of a page; None where there is none to judge by."""

    text: str | None


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A decoded page: `measured` are the bounds that were looked at, the first rejected one last, each with
    its value (None: it is passed by what was not measured to the end). `html` is empty where a bound was
    passed; its formulas and raised digits are text (`stages.html.maths`), for every extractor alike.
    `num_tags` counts its `<`, as they were before that; `head` is where in it a stretch begins and ends that is
    in its head alone, if one is known. `fast` is there once it was asked for."""

    html: str
    charset: str | None
    measured: tuple[Measured, ...]
    num_tags: int = 0
    head: tuple[int, int] = (0, 0)
    fast: FastText | None = None

    @property
    def without_head(self) -> str:
        """The page without that stretch, a quarter of it: to parse it takes more than to leave it out."""
        begin, end = self.head
        return self.html[:begin] + self.html[end:]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the bounds found; made when it is asked for, which is seldom without a ledger."""
        return tuple(rule.finding(value, rejected=value is None or None) for rule, value in self.measured)

    @property
    def too_much(self) -> Finding | None:
        """The bound that the page passes, if any."""
        return self.findings[-1] if self.measured and _is_passed(*self.measured[-1]) else None


def _is_passed(rule: Rule, value: float | None) -> bool:
    return value is None or rule.rejects(value)


def read_page(document: Document, bounds: Bounds) -> HtmlPage:
    """The document's payload as text, its bounds checked. Findings bear the stage `parse`."""
    rules = bound_rules(bounds)
    if document.num_bytes > bounds.num_bytes:
        return HtmlPage("", None, ((rules.too_large, float(document.num_bytes)),))
    try:
        body = decode_body(document.payload, document.content_encoding, bounds.num_bytes)
    except BodyTooLongError:  # how long it would be is not known: decoding stopped there
        return HtmlPage("", None, ((rules.too_large, None),))
    text, charset = decode_text(body, document.charset_hint, is_html=document.is_html)
    if not document.is_html:
        return HtmlPage(text, charset, ((rules.too_large, float(len(body))),))
    measured: list[Measured] = [(rules.too_large, float(len(body)))]
    if _is_passed(*measured[0]):
        return HtmlPage("", charset, tuple(measured))
    head: list[tuple[int, int]] = []
    encoded = body.removeprefix(codecs.BOM_UTF8) if charset == "utf-8" else text.encode("utf-8", "replace")
    markup = markup_bounds(encoded, head)
    for one in _bounds_of(text, markup, bounds, rules):
        measured.append(one)
        if _is_passed(*one):
            return HtmlPage("", charset, tuple(measured))
    num_tags, *_, may_hold_maths = markup
    if may_hold_maths:
        return HtmlPage(with_maths(text), charset, tuple(measured), num_tags)
    # Where bytes fit no charset, another number of characters may be counted than was read.
    is_known = head and text.find("\ufffd", 0, head[0][1]) < 0
    return HtmlPage(text, charset, tuple(measured), num_tags, head[0] if is_known else (0, 0))


def _bounds_of(
    html: str, markup: tuple[int, int, int, int, int, bool], bounds: Bounds, rules: BoundRules
) -> Iterator[Measured]:
    """The bounds behind the first one; `markup` is what `markup_bounds` says of the page."""
    num_tags, deepest, num_reopened, num_attributes, num_options, _ = markup
    # First, and without a tree: 600 open elements before 10,000 paragraphs, 86 kB in all, make one of 2 GB.
    yield rules.too_many_attributes, float(num_attributes)
    yield rules.too_many_options, float(num_options)
    if num_reopened and num_tags + num_reopened > _TREE_OF * bounds.num_tags:
        yield rules.too_many_tags, float(num_tags + num_reopened)
        return
    if deepest > bounds.depth:
        # A page of too many tags is rejected in any case: no reason to go through millions of them for its
        # name.
        looked_at = html if num_tags <= bounds.num_tags else html[: _LOOKED_AT_BY_TAG * bounds.num_tags]
        deepest = depth_where_above(looked_at, bounds.depth)
    yield rules.too_deep, float(deepest)
    if num_tags <= bounds.num_tags < num_tags + num_reopened:
        num_tags = max(num_tags, num_elements(html))
    yield rules.too_many_tags, float(num_tags)


@dataclass(frozen=True, slots=True)
class _DecodedPage:
    """A page that a document carries along, and what it was read from: a step of the user's may change
    that."""

    payload: bytes
    read_as: tuple[object, ...]
    page: HtmlPage

    def is_of(self, document: Document) -> bool:
        """Whether the page is still the document's."""
        return self.payload is document.payload and self.read_as == _read_as(document)


def _read_as(document: Document) -> tuple[object, ...]:
    return document.num_bytes, document.content_encoding, document.charset_hint, document.is_html


class PageReader:
    """What prefilter and parse share: reading a page, and extracting, in this process or in a child's. What
    one of them makes of a page goes along with the document (`Document.decoded`) to the other; nothing is
    kept here."""

    def __init__(self, bounds: Bounds, timeout_seconds: float) -> None:
        self.bounds = bounds
        self._fast = Extractor(
            name="resiliparse", favor="balance", fast=True, timeout_seconds=timeout_seconds
        )
        self.isolation: IsolatedExtraction | None = None
        """The child in which every page is extracted, where there is one."""

    def read(self, document: Document) -> HtmlPage:
        """The document's page: the one that it carries, or else read now."""
        decoded = document.decoded
        if isinstance(decoded, _DecodedPage) and decoded.is_of(document):
            return decoded.page
        return read_page(document, self.bounds)

    def with_page(self, document: Document) -> tuple[Document, str]:
        """The document with its page, and the page's HTML, which is empty where it passes a bound."""
        decoded = document.decoded
        if isinstance(decoded, _DecodedPage) and decoded.is_of(document):
            return document, decoded.page.html
        page = read_page(document, self.bounds)
        return document.but(decoded=_DecodedPage(document.payload, _read_as(document), page)), page.html

    def extract(self, page: HtmlPage, extractor: Extractor) -> str | Failure | Fault:
        """The main text of a page within its bounds, or why there is none."""
        html = page.html if extractor.needs_head(page.num_tags) else page.without_head
        if self.isolation is not None:
            return self.isolation(html, extractor)
        return extract_or_isolate(html, page.num_tags, extractor)

    def converted(self, document: Document, max_pages: int) -> Converted | Refused | Failure | Fault:
        """What a payload that is neither HTML nor plain text is converted to, or why there is nothing."""
        converter = Converter(
            content_type=document.content_type,
            max_bytes=self.bounds.num_bytes,
            max_pages=max_pages,
            timeout_seconds=self._fast.timeout_seconds,
        )
        if document.num_bytes > self.bounds.num_bytes:
            return Refused(refusal="too_large", value=float(document.num_bytes))
        try:
            payload = decode_body(document.payload, document.content_encoding, self.bounds.num_bytes)
        except BodyTooLongError:
            return Refused(refusal="too_large")
        return (converted_in_child if self.isolation is None else self.isolation.converted)(
            payload, converter
        )

    def with_fast_text(self, document: Document) -> Document:
        """The document with its page and the fast extractor's text of it; as it is, where it is no HTML."""
        if not document.is_html:
            return document
        page = self.read(document)
        if page.fast is None:
            page = replace(page, fast=FastText(self._extract_fast(page)))
        return document.but(decoded=_DecodedPage(document.payload, _read_as(document), page))

    def _extract_fast(self, page: HtmlPage) -> str | None:
        if page.too_much is not None:
            return None
        text = self.extract(page, self._fast)
        return text.strip() if isinstance(text, str) else None
