"""A document's history as the library gives it: with the ids that SQL gives, in hex."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from lineage.ids import ID_BYTES, parse_id
from lineage.trace.document_history import DocumentHistory, PurgeOfDocument, StageDecision
from lineage.trace.exposure import Exposure

DocId = str | bytes
"""A document's id as the library takes it: 32 hex digits, as it gives it, or the 16 bytes of documents/."""


def id_of(doc_id: DocId) -> bytes:
    """The 16 bytes of an id; ValueError for what is none."""
    if isinstance(doc_id, str):
        return parse_id(doc_id)
    if len(doc_id) != ID_BYTES:
        raise ValueError(
            f"{doc_id!r} is not an id: expected {ID_BYTES} bytes, or {2 * ID_BYTES} hexadecimal digits"
        )
    return doc_id


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known of one document: the columns of the view documents of `sluice lineage`; every step's
    decision in order; `members`, the documents of its cluster of duplicates, itself included (none where it is alone);
    the training rows that held tokens of it; how it was purged, if it was. An epoch of training reads it `repeats`
    times. Its shard is one of `source`, or of `source.bucket` where the source is parted."""

    doc_id: str
    source: str
    url: str | None
    host: str | None
    record_id: str | None
    captured_at: str | None
    warc_file: str | None
    warc_offset: int | None
    warc_length: int | None
    language: str | None
    language_score: float | None
    num_chars: int | None
    status: str
    stage: str | None
    rule: str | None
    value: float | None
    threshold: float | None
    matched: str | None
    duplicate_of: str | None
    similarity: float | None
    bucket: str | None
    shard: int | None
    start: int | None
    num_tokens: int | None
    raw_hash: str | None
    text_hash: str | None
    clean_hash: str | None
    tokens_hash: str | None
    decisions: tuple[StageDecision, ...]
    members: tuple[str, ...]
    exposures: tuple[Exposure, ...]
    purged: PurgeOfDocument | None
    repeats: int


def history_of(found: DocumentHistory) -> History:
    """What the store's history of a document is to who reads it."""
    row: dict[str, Any] = {
        name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(found.row).items()
    }
    return History(
        **{field.name: row[field.name] for field in fields(History) if field.name in row},
        decisions=found.decisions,
        members=() if found.cluster is None else tuple(member.hex() for member in found.cluster.members),
        exposures=found.exposures,
        purged=found.purged,
        repeats=found.repeats,
    )
