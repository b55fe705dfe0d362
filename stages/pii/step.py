"""The pii step: personal data out of a text, or a text with personal data out of the run."""

from __future__ import annotations

from typing import Final

from lineage.pages import page_of
from stages.document import Document, Edit, Outcome, decide
from stages.pii.options import PiiTable
from stages.pii.regions import AUTO, region_of
from stages.pii.scrub import ORDER, scrub
from stages.rules import Rule

STAGE = "pii"
_DROPPED: Final = Rule(
    stage=STAGE,
    name="pii.dropped",
    side="above",
    threshold=0.0,
    is_bound=True,
    help="pieces of personal data in the text",
)


class PiiStep:
    """With `replace` the text gets placeholders, and an Edit a kind says how many (`email`, `phone`, …); with
    `drop` its rule turns the document down."""

    stage = STAGE

    def __init__(self, table: PiiTable, *, ledger: bool = False) -> None:
        self._table = table
        self._ledger = ledger

    def __call__(self, document: Document, /) -> Outcome:
        region: str | None = self._table.phone_region
        if region == AUTO:
            page = page_of(document.url)
            region = region_of(document.language, None if page is None else page.host)
        scrubbed = scrub(document.text, self._table.kinds, region, self._table.placeholders)
        if self._table.action == "drop":
            num_finds = sum(scrubbed.counts.values())
            return decide(document, [_DROPPED.finding(float(num_finds))], ledger=self._ledger)
        if not scrubbed.counts:
            return document
        edits = (
            Edit(stage=STAGE, kind=kind, count=scrubbed.counts[kind])
            for kind in ORDER
            if kind in scrubbed.counts
        )
        return document.with_text(scrubbed.text, *edits)


def pii_rules(table: PiiTable) -> tuple[Rule, ...]:
    """Every rule of the step."""
    return (_DROPPED,) if table.action == "drop" else ()
