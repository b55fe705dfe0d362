"""Parse step: a document's main text, by an extractor from HTML, by a converter from PDF, EPUB, LaTeX and wikitext,
or as it stands in plain text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from lineage.ids import content_hash
from lineage.recipe import key
from stages.composition import clean_text, most_marks
from stages.converters.converter import MAX_MARKUP, Converted, Refusal, Refused
from stages.document import Document, Finding, Outcome, Rejection, error_rule
from stages.fault import Fault
from stages.html.extraction import Extractor, Failure
from stages.html.page import Bounds, PageReader, bound_rules
from stages.reading.content_types import kind_of
from stages.reading.rows.other_fields import metadata_with
from stages.rules import Rule

STAGE = "parse"
_TIMEOUT: Final = Rule(
    stage=STAGE,
    name="parse.timeout",
    side="yes",
    help="a page that took the extractor longer than it may, twice",
)
_CRASHED: Final = Rule(
    stage=STAGE,
    name="parse.crashed",
    side="yes",
    help="a page on which the extractor took its process with it, twice",
)
_TOO_MANY_MARKS: Final = Rule(
    stage=STAGE,
    name="parse.too_many_marks",
    side="above",
    is_bound=True,
    keys=("parse.max_marks",),
    help="combining marks in a row, of a text's canonical decomposition (UAX #15, section 13)",
)
_EMPTY: Final = Rule(
    stage=STAGE,
    name="parse.empty",
    side="below",
    threshold=1.0,
    is_bound=True,
    help="0 of a page without text",
)
_ENCRYPTED: Final = Rule(
    stage=STAGE,
    name="parse.encrypted",
    side="yes",
    help="a PDF or EPUB that asks for a password or has digital rights management; decrypt it first (qpdf --decrypt)",
)
_DAMAGED: Final = Rule(
    stage=STAGE,
    name="parse.damaged",
    side="yes",
    help="a PDF, EPUB or LaTeX source that its library cannot read, or not whole; repair it first (qpdf IN.pdf OUT.pdf"
    " for a PDF) or fetch it again",
)
_TOO_MANY_PAGES: Final = Rule(
    stage=STAGE,
    name="parse.too_many_pages",
    side="above",
    is_bound=True,
    keys=("parse.max_pages",),
    help="pages of a PDF",
)
_TOO_MUCH_MARKUP: Final = Rule(
    stage=STAGE,
    name="parse.too_much_markup",
    side="above",
    is_bound=True,
    threshold=float(MAX_MARKUP),
    help="characters of wikitext, times 20 and as many more as tags, tables, templates and links are never closed; of"
    " LaTeX, times 12",
)
_TITLE_CHARS: Final = 500
_FAILURES: Final = {Failure.TIMEOUT: _TIMEOUT, Failure.CRASHED: _CRASHED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseTable:
    """`[parse]`: how text is taken from HTML, and the bounds of a page that is looked at."""

    extractor: Literal["trafilatura", "resiliparse"] = key(
        "trafilatura", help="trafilatura gives better text, resiliparse is faster"
    )
    favor: Literal["precision", "balance", "recall"] = key(
        "precision", help="trafilatura: prefer less text (precision) or more (recall)"
    )
    fast: bool = key(False, help="trafilatura: without its fallback extractors")
    timeout_seconds: float = key(
        60.0,
        above=0,
        at_most=86_400,
        help="limit on the processor seconds of a page, tried twice; a last resort",
    )
    max_tags: int = key(100_000, at_least=1, help="a page with more '<', or elements, is not parsed")
    max_depth: int = key(1_000, at_least=1, help="a page whose elements nest deeper is not parsed")
    # resiliparse's parser, which also counts the elements of pages for the other extractor, looks at all
    # earlier options of a list with each new one, in native code: 8,000 take it 0.25 s, and 90,000 do not
    # end.
    max_options: int = key(2_000, at_least=1, help="a page with more <option> in one <select> is not parsed")
    max_pages: int = key(10_000, at_least=1, help="a PDF with more pages is not read")
    max_marks: int = key(
        30,
        at_least=1,
        help="a text with more combining marks in a row is rejected (the limit of Unicode's "
        "stream-safe format)",
    )

    def bounds(self, max_document_bytes: int) -> Bounds:
        """The bounds of a page, before any clock."""
        return Bounds(
            num_bytes=max_document_bytes,
            num_tags=self.max_tags,
            depth=self.max_depth,
            num_options=self.max_options,
        )


class ParseStep:
    """Rules: `parse_rules`, in order, and `parse.error` where the extractor raised.

    Sets `text`, `charset` and `text_hash`. Texts are in Unicode's NFC, their lines end in "\\n", and they hold no NUL
    and no lone surrogate."""

    stage = STAGE

    def __init__(self, table: ParseTable, pages: PageReader, *, ledger: bool = False) -> None:
        self._pages = pages
        self._ledger = ledger
        self._max_marks = table.max_marks
        self._max_pages = table.max_pages
        self._refusals = _refusals(table, pages.bounds)
        self._too_many_marks = _TOO_MANY_MARKS.at(float(table.max_marks))
        self._extractor = Extractor(
            name=table.extractor, favor=table.favor, fast=table.fast, timeout_seconds=table.timeout_seconds
        )

    def __call__(self, document: Document, /) -> Outcome:
        findings: tuple[Finding, ...] = ()
        charset, text = document.charset, document.text
        pages: tuple[Document, ...] = (document,)
        if kind_of(document.content_type) is not None:
            converted = self._pages.converted(document, self._max_pages)
            if not isinstance(converted, Converted):
                return self._turned_down(document, charset, converted, findings)
            if converted.title is not None:
                document = document.but(
                    metadata=metadata_with(document.metadata, title=converted.title[:_TITLE_CHARS])
                )
            text, pages = converted.text, tuple(_as_page(document, page) for page in converted.pages)
        elif not document.is_html and text and not document.payload:
            pages = ()
        if pages:
            texts = []
            for each in pages:
                taken, charset, measured = self._text_of(each)
                if not isinstance(taken, str):
                    return self._turned_down(document, charset, taken, measured)
                texts.append(taken)
                findings = _greatest(findings, measured)
            text = "\n\n".join(filter(None, texts))
        text, encoded = clean_text(text)
        num_marks = float(most_marks(text, 1 if self._ledger else self._max_marks + 1))
        if self._ledger or self._too_many_marks.rejects(num_marks):
            marks = self._too_many_marks.finding(num_marks)
            if marks.rejected:
                return self._reject(document, charset, marks, findings)
            findings = (*findings, marks)
        document = document.but(text=text, text_hash=content_hash(encoded), charset=charset, decoded=None)
        if not text:
            return self._reject(document, charset, _EMPTY.finding(0.0), findings)
        return document.with_findings(*findings) if self._ledger and findings else document

    def _text_of(
        self, document: Document
    ) -> tuple[str | Finding | Failure | Fault, str | None, tuple[Finding, ...]]:
        """The text of a page or plain payload, or why there is none; its charset, and what its bounds found."""
        page = self._pages.read(document)
        findings = page.findings if self._ledger else ()
        if (too_much := page.too_much) is not None:
            return too_much, page.charset, findings[:-1]
        text = self._pages.extract(page, self._extractor) if document.is_html else page.html
        return text, page.charset, findings

    def _turned_down(
        self,
        document: Document,
        charset: str | None,
        why: Refused | Finding | Failure | Fault,
        findings: tuple[Finding, ...],
    ) -> Rejection:
        match why:
            case Refused():
                finding = self._refusals[why.refusal].finding(why.value, rejected=True)
            case Failure():
                finding = _FAILURES[why].finding(True)
            case Fault():
                finding = Finding(stage=STAGE, rule=error_rule(STAGE), rejected=True)
            case Finding():
                finding = why
        rejection = self._reject(document, charset, finding, findings)
        return replace(rejection, fault=why) if isinstance(why, Fault) else rejection

    def _reject(
        self, document: Document, charset: str | None, finding: Finding, findings: tuple[Finding, ...]
    ) -> Rejection:
        document = document.but(charset=charset, decoded=None)
        return Rejection(document=document, finding=finding, findings=findings if self._ledger else ())


def _as_page(document: Document, html: str) -> Document:
    payload = html.encode("utf-8", "replace")
    return document.but(
        payload=payload,
        num_bytes=len(payload),
        is_html=True,
        charset_hint="utf-8",
        content_encoding=None,
        decoded=None,
    )


def _greatest(one: tuple[Finding, ...], other: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Of two pages' findings by the same rules, in order, those of the greater value."""
    if not one or not other:
        return one or other
    return tuple(max(pair, key=lambda finding: finding.value or 0.0) for pair in zip(one, other, strict=True))


def _refusals(table: ParseTable, bounds: Bounds) -> dict[Refusal, Rule]:
    """The rules by which a converter turns a document down."""
    return {
        "encrypted": _ENCRYPTED,
        "damaged": _DAMAGED,
        "too_large": bound_rules(bounds).too_large,
        "too_many_pages": _TOO_MANY_PAGES.at(float(table.max_pages)),
        "too_much_markup": _TOO_MUCH_MARKUP,
    }


def parse_rules(table: ParseTable, max_document_bytes: int) -> tuple[Rule, ...]:
    """Every rule of the step, in order."""
    marks = _TOO_MANY_MARKS.at(float(table.max_marks))
    bounds = table.bounds(max_document_bytes)
    by_converters = (rule for name, rule in _refusals(table, bounds).items() if name != "too_large")
    return *bound_rules(bounds), *by_converters, _TIMEOUT, _CRASHED, marks, _EMPTY
