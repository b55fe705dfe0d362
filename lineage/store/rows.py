"""A class for each table of the store: its fields are the table's columns (see `tables.TABLES`), and point
lookups give its instances. Ids and hashes are bytes, NaN is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ShardSpan(NamedTuple):
    """Tokens [start, start + num_tokens) of a shard."""

    source: str
    shard: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRow:
    """A row of `documents`: a document record, what became of it, and where it lies. `matched` is what the
    deciding rule found in it, where there are several: an item of a benchmark, as in gsm8k.jsonl:17 (file and
    line). `bucket` is the part of its source whose shards hold it, where the source is parted (by language,
    by a classifier's score)."""

    doc_id: bytes
    source: str
    url: str | None
    host: str | None
    domain: str | None
    truncated: str | None
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
    matched: str | None
    cluster_id: bytes | None
    duplicate_of: bytes | None
    similarity: float | None
    part: int | None
    part_row: int | None
    shard: int | None
    start: int | None
    num_tokens: int | None
    tokens_hash: bytes | None
    bucket: str | None

    @property
    def shard_source(self) -> str:
        """The source whose shards hold it."""
        return shard_source(self.source, self.bucket)


def shard_source(source: str, bucket: str | None) -> str:
    """What the shards of a source are called where its documents are parted: `<source>.<bucket>`."""
    return source if bucket is None else f"{source}.{bucket}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsRow:
    """What a row of `documents` has besides where the run recorded the signals of publishers
    (`column_names.RIGHTS`)."""

    doc_id: bytes
    source: str
    warc_file: str | None
    warc_offset: int | None
    signals: str | None
    training_use: str | None
    training_use_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    """A row of `url_index`: a host's document, with what a listing shows; `k` is that of the host's
    BLAKE3-128."""

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
class DomainIndexRow:
    """A row of `domain_index`: a registered domain's document; `k` is that of the domain's BLAKE3-128."""

    domain: str
    host: str
    doc_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WarcIndexRow:
    """A row of `warc_index`: place in the crawl -> document. `k` is that of the file name's BLAKE3-128,
    `doc_k` the document's."""

    warc_file: str
    warc_offset: int | None
    source: str
    doc_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashIndexRow:
    """A row of `hash_index`: `k` is that of a raw, text, clean or tokens hash or of a normalised URL's
    BLAKE3-128, `doc_k` the document's. A lookup compares the whole hash in `documents`."""

    doc_k: int


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
class CutRow(EditRow):
    """A row of `edits` where repeats were cut out of documents (`column_names.TWIN`)."""

    start: int | None
    twin: bytes | None
    twin_start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A row of `findings`: a rule that was evaluated, where the recipe says ledger = "all". `matched`: as in
    `documents`."""

    doc_id: bytes
    stage: str
    rule: str
    value: float | None
    threshold: float | None
    verdict: str
    matched: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A row of `cluster_index`: a member of a cluster; `k` is that of cluster_id."""

    cluster_id: bytes
    doc_id: bytes
    status: str
    duplicate_of: bytes | None
    similarity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedRow:
    """A row of `purged`; `source` is the one whose shards hold it."""

    purge_id: str
    doc_id: bytes
    role: str
    source: str | None
    shard: int | None
    start: int | None
    num_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A row of `steps`: `position` is the stage's place in its source's list, from 0."""

    source: str
    stage: str
    num_in: int
    num_out: int
    num_rejected: int
    digest_in: str
    digest_out: str
    digest_rejected: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRuleRow:
    """A row of `step_rules`."""

    source: str
    stage: str
    rule: str
    num: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A row of `inputs`: `by_type`, `by_mime` and `by_status` are JSON objects of counts over every record;
    `notes` is one of what was read in another way than it says of itself, or passed over
    (stages.reading.options.Note)."""

    source: str
    file: str
    bytes: int
    num_records: int
    num_documents: int
    by_type: str
    by_mime: str
    by_status: str
    notes: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRow:
    """A row of `unreadable`: a stretch of a file from which no record could be read."""

    source: str
    file: str
    offset: int
    length: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRow:
    """A row of `purges`; `match` is how the targets were named: a JSON object such as
    {"kind": "url", "values": [...]}."""

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
    """A row of `training_runs`; `plan` is the order's whole input as JSON (trainer.order.OrderPlan): with it
    exposures are computed by inversion.

    A run whose plan was edited has a row for each; the store numbers them by `fact`. Steps of an attempt that
    died may have followed an earlier one, which their stretch's `weights` tell."""

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
    """A row of `training_segments`: steps first_step to last_step, both included; `skipped_steps` is a JSON
    list.

    `last_checkpoint`: steps done at the attempt's newest checkpoint; `prefix`: what the run puts before this
    output's source names."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """A row of `cache_sweeps`: a cache folder that was cleaned for this content."""

    run: str
    host: str
    folder: str
    content_fingerprint: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """A row of `exports`: a copy of the corpus in another format.

    `version` is that of the corpus which the copy holds, `state` one of those in lineage.exports.records,
    `options` a JSON object, `manifest_hash` the BLAKE3-128 (hex) of the copy's manifest."""

    name: str
    format: str
    place: str
    version: int
    at: str
    num_documents: int
    num_tokens: int
    num_files: int
    bytes: int
    state: str
    options: str
    manifest_hash: str
    fact: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusedStepRow:
    """A row of `reused_steps`: a step of a source that was not run again, because an earlier run had run it;
    where that one lies, its name, and the version and content that it had. Ids are equal in both, so the
    tables of both join by doc_id."""

    source: str
    stage: str
    position: int
    out: str
    run: str
    version: int
    content_fingerprint: str
