"""What was purged from earlier outputs stays out: documents are compared with it where their hashes come to
be."""

from __future__ import annotations

from dataclasses import dataclass

from lineage.ids import text_hash
from lineage.pages import normalise_url, page_of, with_parents
from lineage.purge.purged_sets import PURGED_RULE, PurgedSets
from stages.document import Document, Finding, Outcome, Rejection, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeFilter:
    """A step that also turns purged documents down, in its own name, so that no stage is added to lineage: by
    origin before it runs (the chain's first step), by parsed text after it (parse), by clean text after it
    (the last)."""

    step: Step
    purged: PurgedSets
    origin: bool
    parsed: bool
    clean: bool

    @property
    def stage(self) -> str:
        return self.step.stage

    def __call__(self, document: Document, /) -> Outcome:
        if self.origin and origin_in(self.purged, document):
            return self._reject(document)
        outcome = self.step(document)
        if isinstance(outcome, Rejection):
            return outcome
        hashes = self.purged.hashes
        if self.parsed and outcome.text_hash in hashes:
            return self._reject(outcome)
        if self.clean and hashes and text_hash(outcome.text) in hashes:
            return self._reject(outcome)
        return outcome

    def _reject(self, document: Document) -> Rejection:
        # Without its text, which the report would show among what the rules rejected.
        finding = Finding(stage=self.stage, rule=PURGED_RULE, rejected=True)
        return Rejection(document=document.but(text=""), finding=finding)


def origin_in(purged: PurgedSets, document: Document) -> bool:
    """By what is known before a document is parsed: id, payload, URL (that of its page, or with the
    fragment), host, domain."""
    if document.doc_id in purged.doc_ids or document.raw_hash in purged.hashes:
        return True
    if document.url is None or not (purged.urls or purged.hosts or purged.domains):
        return False
    if purged.urls and not purged.urls.isdisjoint(
        (normalise_url(document.url), normalise_url(document.url, fragments=True))
    ):
        return True
    page = page_of(document.url)
    return page is not None and (
        page.host in purged.hosts or not purged.domains.isdisjoint(with_parents(page.host))
    )
