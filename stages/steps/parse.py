"""Parse step: a document's main text, by an extractor from HTML, or as it stands in plain text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from lineage.ids import content_hash
from lineage.recipe import key
from stages.composition import clean_text, most_marks
from stages.document import Document, Finding, Outcome, Rejection, error_rule
from stages.html.extraction import Extractor, Failure
from stages.html.page import Bounds, PageReader, bound_rules
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
        self._too_many_marks = _TOO_MANY_MARKS.at(float(table.max_marks))
        self._extractor = Extractor(
            name=table.extractor, favor=table.favor, fast=table.fast, timeout_seconds=table.timeout_seconds
        )

    def __call__(self, document: Document, /) -> Outcome:
        findings: tuple[Finding, ...] = ()
        charset = document.charset
        if document.is_html or document.payload or not document.text:
            page = self._pages.read(document)
            charset, findings = page.charset, page.findings if self._ledger else ()
            if (too_much := page.too_much) is not None:
                return self._reject(document, charset, too_much, findings[:-1])
            text = self._pages.extract(page, self._extractor) if document.is_html else page.html
            if not isinstance(text, str):
                if isinstance(text, Failure):
                    return self._reject(document, charset, _FAILURES[text].finding(True), findings)
                error = Finding(stage=STAGE, rule=error_rule(STAGE), rejected=True)
                return replace(self._reject(document, charset, error, findings), fault=text)
        else:
            text = document.text
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

    def _reject(
        self, document: Document, charset: str | None, finding: Finding, findings: tuple[Finding, ...]
    ) -> Rejection:
        document = document.but(charset=charset, decoded=None)
        return Rejection(document=document, finding=finding, findings=findings if self._ledger else ())


def parse_rules(table: ParseTable, max_document_bytes: int) -> tuple[Rule, ...]:
    """Every rule of the step, in order."""
    marks = _TOO_MANY_MARKS.at(float(table.max_marks))
    return *bound_rules(table.bounds(max_document_bytes)), _TIMEOUT, _CRASHED, marks, _EMPTY
