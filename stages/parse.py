"""Parse step: a document's main text, by an extractor from HTML, or as it stands in plain text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import Literal

from lineage.ids import content_hash
from lineage.recipe import key
from stages.document import Document, Finding, Outcome, Rejection
from stages.extraction import Extractor, Failure, extract
from stages.markup import depth, depth_bound, num_tags

STAGE = "parse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseTable:
    """`[parse]`: how text is taken from HTML, and the bounds of a page that is looked at."""

    extractor: Literal["trafilatura", "resiliparse"] = key("trafilatura", help="trafilatura is better, the other fast")
    favor: Literal["precision", "balance", "recall"] = key("precision", help="trafilatura: less text, or more")
    fast: bool = key(False, help="trafilatura: without its fallback extractors")
    timeout_seconds: float = key(60.0, above=0, help="processor seconds for a page; a backstop, tried twice")
    max_tags: int = key(200_000, at_least=1, help="a page with more '<' is not parsed")
    max_depth: int = key(1_000, at_least=1, help="a page whose elements nest deeper is not parsed")


class ParseStep:
    """Rules, in this order: `parse.too_large` (bytes once content encodings are undone), `parse.too_many_tags`,
    `parse.too_deep`, then `parse.timeout`, `parse.error` (the extractor raised) and `parse.empty` (no text).

    Sets `text`, `charset` and `text_hash`. Texts are in Unicode's NFC, their lines end in "\\n", and they hold no NUL
    and no lone surrogate."""

    stage = STAGE

    def __init__(self, table: ParseTable, max_document_bytes: int, *, ledger: bool = False) -> None:
        self._table = table
        self._max_bytes = max_document_bytes
        self._ledger = ledger
        self._extractor = Extractor(
            name=table.extractor, favor=table.favor, fast=table.fast, timeout_seconds=table.timeout_seconds
        )

    def __call__(self, document: Document, /) -> Outcome:
        if document.is_html:
            html = document.payload.decode("utf-8", "replace")
            for finding in self._bounds(html, document.payload):
                if finding.rejected:
                    return Rejection(document=document, finding=finding)
            text = extract(html, self._extractor)
            if isinstance(text, Failure):
                return Rejection(
                    document=document, finding=Finding(stage=STAGE, rule=f"parse.{text.value}", rejected=True)
                )
        else:
            text = document.text or document.payload.decode("utf-8", "replace")
        text, encoded = clean_text(text)
        parsed = replace(document, text=text, text_hash=content_hash(encoded), charset="utf-8")
        if not text:
            finding = Finding(stage=STAGE, rule="parse.empty", value=0.0, threshold=1.0, rejected=True)
            return Rejection(document=parsed, finding=finding)
        return parsed

    def _bounds(self, html: str, payload: bytes) -> list[Finding]:
        tags = num_tags(html)
        deep = depth_bound(payload)
        if deep > self._table.max_depth:
            deep = depth(payload)
        return [
            Finding(
                stage=STAGE,
                rule="parse.too_many_tags",
                value=float(tags),
                threshold=float(self._table.max_tags),
                rejected=tags > self._table.max_tags,
            ),
            Finding(
                stage=STAGE,
                rule="parse.too_deep",
                value=float(deep),
                threshold=float(self._table.max_depth),
                rejected=deep > self._table.max_depth,
            ),
        ]


def clean_text(text: str) -> tuple[str, bytes]:
    """A text as it is kept (NFC, lines end in "\\n", no NUL, no lone surrogate, no outer white space), and in UTF-8."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = unicodedata.normalize("NFC", text.replace("\0", "")).strip()
    try:
        return text, text.encode("utf-8")
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "replace")
        return encoded.decode("utf-8"), encoded
