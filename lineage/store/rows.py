"""Rows of the store's tables as point lookups give them; ids and hashes are bytes, NaN is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Tokens [start, start + num_tokens) of a shard."""

    source: str
    shard: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRow:
    """A row of `documents`; ids and hashes are bytes."""

    doc_id: bytes
    source: str
    url: str | None
    host: str | None
    warc_file: str | None
    warc_offset: int | None
    warc_length: int | None
    record_id: str | None
    captured_at: str | None
    charset: str | None
    raw_hash: bytes | None
    text_hash: bytes | None
    clean_hash: bytes | None
    num_chars: int | None
    language: str | None
    language_score: float | None
    status: str
    stage: str | None
    rule: str | None
    value: float | None
    threshold: float | None
    cluster_id: bytes | None
    duplicate_of: bytes | None
    similarity: float | None
    part: int | None
    part_row: int | None
    shard: int | None
    start: int | None
    num_tokens: int | None
    tokens_hash: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    """A row of `url_index`: what a listing of a host shows."""

    host: str
    url: str
    doc_id: bytes
    source: str
    status: str
    stage: str | None
    rule: str | None
    warc_file: str | None
    warc_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRow:
    """A row of `placements`: tokens [start, start + num_tokens) of a shard."""

    doc_id: bytes
    source: str
    shard: int
    start: int
    num_tokens: int
    tokens_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRow:
    """A row of `edits`."""

    doc_id: bytes
    stage: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A row of `findings`."""

    doc_id: bytes
    stage: str
    rule: str
    value: float | None
    threshold: float | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A row of `cluster_index`."""

    cluster_id: bytes
    doc_id: bytes
    status: str
    duplicate_of: bytes | None
    similarity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedRow:
    """A row of `purged`."""

    purge_id: str
    doc_id: bytes
    role: str
    source: str | None
    shard: int | None
    start: int | None
    num_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A row of `steps`, as far as a document's history needs it."""

    source: str
    stage: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRow:
    """A row of `purges`."""

    purge_id: str
    at: str
    by: str
    reason: str
    match: str
    num_documents: int
    num_tokens: int
    content_fingerprint_before: str
    content_fingerprint_after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A row of `training_runs`; `plan` is the order's input as JSON, `fact` its number among the run's rows."""

    run: str
    output: str
    plan_fingerprint: str
    order_version: int
    seed: int
    seq_len: int
    global_batch: int
    plan: str
    fact: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """A row of `training_segments`: steps first_step to last_step, both included; `skipped_steps` is a JSON list."""

    run: str
    attempt: int
    parent_attempt: int | None
    content_fingerprint: str | None
    weights: str | None
    first_sequence: int | None
    first_step: int
    last_step: int | None
    skipped_steps: str | None
    fact: int | None
    last_checkpoint: int | None
    prefix: str | None
