"""Parse step: a document's main text, by an extractor from HTML, or as it stands in plain text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from lineage.ids import content_hash
from lineage.recipe import key
from stages.composition import most_marks, normalised_in
from stages.document import Document, Finding, Outcome, Rejection
from stages.fault import Fault
from stages.html.extraction import Extractor, Failure
from stages.html.page import Bounds, PageReader

STAGE = "parse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseTable:
    """`[parse]`: how text is taken from HTML, and the bounds of a page that is looked at."""

    extractor: Literal["trafilatura", "resiliparse"] = key("trafilatura", help="trafilatura is better, the other fast")
    favor: Literal["precision", "balance", "recall"] = key("precision", help="trafilatura: less text, or more")
    fast: bool = key(False, help="trafilatura: without its fallback extractors")
    timeout_seconds: float = key(
        60.0, above=0, at_most=86_400, help="processor seconds for a page; a backstop, tried twice"
    )
    max_tags: int = key(100_000, at_least=1, help="a page with more '<', or elements, is not parsed")
    max_depth: int = key(1_000, at_least=1, help="a page whose elements nest deeper is not parsed")
    # resiliparse's parser, which also counts the elements of pages for the other extractor, looks at all earlier
    # options of a list with each new one, in native code: 8,000 take it 0.25 s, and 90,000 do not end.
    max_options: int = key(2_000, at_least=1, help="a page with more <option> in one <select> is not parsed")
    max_marks: int = key(
        30,
        at_least=1,
        help="a text with more combining marks in a row is turned down (as Unicode's stream-safe format has it)",
    )

    def bounds(self, max_document_bytes: int) -> Bounds:
        """The bounds of a page, before any clock."""
        return Bounds(
            num_bytes=max_document_bytes, num_tags=self.max_tags, depth=self.max_depth, num_options=self.max_options
        )


class ParseStep:
    """Rules, in this order: `parse.too_large` (bytes once content encodings are undone), `parse.too_many_attributes`
    (of one tag), `parse.too_many_options` (of one `<select>`), `parse.too_deep` (the value is an upper estimate),
    `parse.too_many_tags` (or elements, where a parser opens so many again; before `too_deep`, by an upper estimate,
    where there are far too many); then `parse.timeout`, `parse.error` (the extractor raised) and `parse.crashed` (it
    took its process with it, twice); then `parse.too_many_marks` (combining marks in a row, of a text's canonical
    decomposition) and `parse.empty` (no text).

    Sets `text`, `charset` and `text_hash`. Texts are in Unicode's NFC, their lines end in "\\n", and they hold no NUL
    and no lone surrogate."""

    stage = STAGE

    def __init__(self, table: ParseTable, pages: PageReader, *, ledger: bool = False) -> None:
        self._pages = pages
        self._ledger = ledger
        self._max_marks = table.max_marks
        self._extractor = Extractor(
            name=table.extractor, favor=table.favor, fast=table.fast, timeout_seconds=table.timeout_seconds
        )

    def __call__(self, document: Document, /) -> Outcome:
        findings: tuple[Finding, ...] = ()
        if document.is_html or document.payload or not document.text:
            page = self._pages.read(document)
            document, findings = replace(document, charset=page.charset, decoded=None), page.findings
            if page.too_much is not None:
                return self._reject(document, page.too_much, findings[:-1])
            text = self._pages.extract(page.html, self._extractor) if document.is_html else page.html
            if not isinstance(text, str):
                rule = f"parse.{text.value if isinstance(text, Failure) else 'error'}"
                rejection = self._reject(document, Finding(stage=STAGE, rule=rule, rejected=True), findings)
                return replace(rejection, fault=text if isinstance(text, Fault) else None)
        else:
            text = document.text
        marks = self._marks_of(text)
        if marks.rejected:
            return self._reject(document, marks, findings)
        findings = (*findings, marks)
        text, encoded = clean_text(text)
        document = replace(document, text=text, text_hash=content_hash(encoded))
        if not text:
            empty = Finding(stage=STAGE, rule="parse.empty", value=0.0, threshold=1.0, rejected=True)
            return self._reject(document, empty, findings)
        return document.with_findings(*findings) if self._ledger and findings else document

    def _marks_of(self, text: str) -> Finding:
        """How many marks are in a row at most; without the ledger, 0 for all that is within the bound."""
        value = most_marks(text.replace("\0", ""), 1 if self._ledger else self._max_marks + 1)
        return Finding(
            stage=STAGE,
            rule="parse.too_many_marks",
            value=float(value),
            threshold=float(self._max_marks),
            rejected=value > self._max_marks,
        )

    def _reject(self, document: Document, finding: Finding, findings: tuple[Finding, ...]) -> Rejection:
        return Rejection(document=document, finding=finding, findings=findings if self._ledger else ())


def clean_text(text: str) -> tuple[str, bytes]:
    """A text as it is kept (NFC, lines end in "\\n", no NUL, no lone surrogate, no outer white space), and in UTF-8."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\0", "")  # before what follows: it may stand between a letter and its mark
    if not text.isascii():
        text = normalised_in("NFC", text)
    text = text.strip()
    try:
        return text, text.encode("utf-8")
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "replace")
        return encoded.decode("utf-8"), encoded
