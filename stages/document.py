"""What flows through the steps: a Document goes in, a Document or a Rejection comes out.

A step is any callable `Document -> Document | Rejection` with a `stage` attribute. It is pure: it reads no
clock, writes no file, counts no metric and remembers nothing of earlier documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, Protocol

from stages.fault import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a record lies: `file` relative to its input's fixed part, byte offset and length of its member.

    For JSONL the offset and length are those of the line in the decompressed stream; for Parquet the offset
    is the row number and the length 1."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule measured: `value` against `threshold` (None where the rule has none). Never page text.
    `matched` names what the value was measured against, where there are several: an item of a benchmark, as
    in gsm8k.jsonl:17."""

    stage: str
    rule: str
    value: float | None = None
    threshold: float | None = None
    rejected: bool = False
    matched: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A kind of change that a step made to a text, and how often."""

    stage: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document record on its way.

    `payload` is what the crawler stored (an HTTP body, a text), `text` what is left of it after parse and
    each later step. Readers of plain text (WET, JSONL, Parquet) set `text` and leave `is_html` false: parse
    then only normalises it. A payload above `limits.max_document_bytes` is hashed but not held: `payload` is
    empty and `num_bytes`, the payload's true length, says so. `decoded` is what a step before parse made of
    the payload for those behind it (see `stages.html.page`); `answers` is what models that run apart from the
    other steps gave for it, by the model's name (see `stages.steps.model_step`). Neither is any part of what
    the document is. `scores` is what classifiers that turn nothing down gave for its text, as (name, score);
    `labels` what else steps found out about it that is a column of its own, as (column, text). `measured` is
    what rules of the step quality measured of its text, as (rule, value), where that is kept for a run from
    its text. `headers` are those of the response that say how the page may be used
    (`stages.reading.warc.headers.RIGHTS_FIELDS`), by lower-case name. `truncated` is why the record does not hold
    the whole payload, where it says so: a reason of WARC-Truncated, or `segment` for the first of several
    records."""

    doc_id: bytes
    source: str
    place: Place
    raw_hash: bytes
    num_bytes: int = 0
    payload: bytes = b""
    is_html: bool = False
    content_type: str = ""
    charset_hint: str | None = None
    content_encoding: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=())
    record_id: str | None = None
    url: str | None = None
    captured_at: str | None = None
    truncated: str | None = None
    metadata: str | None = None
    charset: str | None = None
    text: str = ""
    text_hash: bytes | None = None
    language: str | None = None
    language_score: float | None = None
    scores: tuple[tuple[str, float], ...] = field(default=())
    labels: tuple[tuple[str, str], ...] = field(default=())
    edits: tuple[Edit, ...] = field(default=())
    findings: tuple[Finding, ...] = field(default=())
    measured: tuple[tuple[str, float], ...] = field(default=())
    decoded: object = field(default=None, compare=False, repr=False)
    answers: Mapping[str, object] | None = field(default=None, compare=False, repr=False)

    def but(self, **changes: Any) -> Document:
        """This document with other values of these fields. As `dataclasses.replace`, which takes twice as long:
        every step makes a document anew."""
        other = object.__new__(Document)
        for set_field, value in zip(_SETTERS, _values_of(self), strict=True):
            set_field(other, value)
        for name, value in changes.items():
            object.__setattr__(other, name, value)
        return other

    def with_text(self, text: str, *edits: Edit) -> Document:
        """This document with another text and the edits that made it."""
        return self.but(text=text, edits=self.edits + edits)

    def with_findings(self, *findings: Finding) -> Document:
        """This document with more findings (kept only where the recipe asks for the whole ledger)."""
        return self.but(findings=self.findings + findings)


_FIELDS: Final = tuple(each.name for each in fields(Document))
_values_of: Final = attrgetter(*_FIELDS)
_SETTERS: Final = tuple(vars(Document)[name].__set__ for name in _FIELDS)
"""Of the slots themselves: the class sets none of its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A document that a rule rejected: the document as it was then, and the deciding finding.

    `document.findings` holds what earlier steps measured; `findings` what this step measured besides. A
    `fault` says that no rule did, but an exception (rule `<stage>.error`). `judged_text` is what the step
    looked at where that is not the document's own text: the beginning of the fast extractor's, for the
    prefilter."""

    document: Document
    finding: Finding
    findings: tuple[Finding, ...] = ()
    fault: Fault | None = None
    judged_text: str = ""


Outcome = Document | Rejection


class Step(Protocol):
    """One step of a source's list."""

    @property
    def stage(self) -> str: ...

    def __call__(self, document: Document, /) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFindings:
    """A step's findings: the first one that rejects, if any does, and the others that are kept."""

    rejected_by: Finding | None
    others: tuple[Finding, ...]

    def outcome(self, document: Document) -> Outcome:
        """The rejection of `document`, or the document with the findings that are kept."""
        if self.rejected_by is not None:
            return Rejection(document=document, finding=self.rejected_by, findings=self.others)
        return document.with_findings(*self.others) if self.others else document


def weigh(findings: Iterable[Finding], *, ledger: bool) -> StepFindings:
    """The findings by which the first that rejects decides: the one way from findings to a step's outcome.

    Without the ledger nothing after the deciding rule is evaluated (`findings` may be a generator) and no
    other finding is kept; with it every finding is."""
    others: list[Finding] = []
    rejected_by: Finding | None = None
    for finding in findings:
        if finding.rejected and rejected_by is None:
            rejected_by = finding
            if not ledger:
                break
        elif ledger:
            others.append(finding)
    return StepFindings(rejected_by=rejected_by, others=tuple(others))


def decide(document: Document, findings: Iterable[Finding], *, ledger: bool) -> Outcome:
    """The outcome for a step that leaves the text as it is (see `weigh`)."""
    return weigh(findings, ledger=ledger).outcome(document)


def reject(
    document: Document, stage: str, rule: str, value: float | None = None, threshold: float | None = None
) -> Rejection:
    """The rejection of `document` by one rule."""
    return Rejection(
        document=document,
        finding=Finding(stage=stage, rule=rule, value=value, threshold=threshold, rejected=True),
    )


def error_rule(stage: str) -> str:
    """The rule that rejects a document on which a step raised."""
    return f"{stage}.error"
