"""What was purged from earlier outputs stays out: documents are compared with it where their hashes come to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from lineage.ids import text_hash
from stages.document import Document, Finding, Outcome, Rejection, Step
from stages.steps.url import normalise_url, url_host

RULE = "purged"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedContent:
    """Ids, hashes (16 bytes each), normalised URLs and hosts of what was purged. Picklable."""

    doc_ids: frozenset[bytes] = field(default=frozenset())
    raw_hashes: frozenset[bytes] = field(default=frozenset())
    text_hashes: frozenset[bytes] = field(default=frozenset())
    clean_hashes: frozenset[bytes] = field(default=frozenset())
    urls: frozenset[str] = field(default=frozenset())
    hosts: frozenset[str] = field(default=frozenset())

    def hold_origin(self, document: Document) -> bool:
        """By what is known before a document is parsed: id, payload, URL, host."""
        return (
            document.doc_id in self.doc_ids
            or document.raw_hash in self.raw_hashes
            or (bool(self.urls) and document.url is not None and normalise_url(document.url) in self.urls)
            or (bool(self.hosts) and url_host(document.url) in self.hosts)
        )

    def hold_text(self, document: Document) -> bool:
        """By the text as it was parsed."""
        return document.text_hash in self.text_hashes

    def hold_clean_text(self, document: Document) -> bool:
        """By the text as it is after the last step."""
        return bool(self.clean_hashes) and text_hash(document.text) in self.clean_hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeFilterStep:
    """A step that also turns purged documents down, in its own name, so that no stage is added to lineage: by origin
    before it runs (the chain's first step), by parsed text after it (parse), by clean text after it (the last)."""

    step: Step
    purged: PurgedContent
    origin: bool
    parsed: bool
    clean: bool

    @property
    def stage(self) -> str:
        return self.step.stage

    def __call__(self, document: Document, /) -> Outcome:
        if self.origin and self.purged.hold_origin(document):
            return self._reject(document)
        outcome = self.step(document)
        if isinstance(outcome, Rejection):
            return outcome
        if (self.parsed and self.purged.hold_text(outcome)) or (self.clean and self.purged.hold_clean_text(outcome)):
            return self._reject(outcome)
        return outcome

    def _reject(self, document: Document) -> Rejection:
        return Rejection(document=document, finding=Finding(stage=self.stage, rule=RULE, rejected=True))
