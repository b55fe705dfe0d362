"""The parts of a certificate, as they stand in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class CheckpointRow(TypedDict):
    """The checkpoint that is certified; `files_digest`: of the record of its files' hashes."""

    name: str
    step: int
    attempt: int
    order_version: int
    plan_fingerprint: str
    files_digest: str


class PurgeReadings(TypedDict):
    """A purge, and how often the run read what it took: `applied` of these `readings` are in the weights."""

    out: str
    purge_id: str
    at: str
    num_documents: int
    documents_digest: str
    content_fingerprint_after: str | None
    readings: int
    first_step: int | None
    applied: int


class ContentRead(TypedDict):
    """What an attempt read from a step on."""

    out: str
    first_step: int
    content_fingerprint: str


class ChainLink(TypedDict):
    """An attempt on the way to the checkpoint. `recipe_changes`: what its recipe does otherwise than that of
    the attempt before it, a line each; the last five are None where no setup is recorded."""

    attempt: int
    parent: int | None
    rollback: int | None
    first_step: int
    end_step: int
    contents: list[ContentRead]
    recipe_changes: list[str] | None
    recipe_hash: str | None
    seed: int | None
    layout: Mapping[str, Any] | None
    device: str | None
    versions: Mapping[str, str] | None


class OriginRow(TypedDict):
    """Weights that a run began with (`Origin`), and how many readings of what was purged are in them: None
    where that cannot be known."""

    url: str
    digest: str
    output: str | None
    run: str | None
    step: int | None
    attempt: int | None
    readings: int | None
    why_unknown: str | None


class Gap(TypedDict):
    """Something that a certificate does not cover."""

    kind: str
    what: str
    why: str


class WeightsRow(TypedDict):
    """The digest of weights and moments (`WeightsDigest`)."""

    digest: str
    num_tensors: int
    num_elements: int
    tensors: dict[str, str]


class CommitmentRow(TypedDict):
    """The published root over all that the checkpoint has read (`trainer.evidence.commitment`)."""

    root: str
    num_leaves: int


class Records(TypedDict):
    """All but the weights: what is recorded."""

    format: str
    run: str
    output: str
    checkpoint: CheckpointRow
    documents_digest_method: str
    purges: list[PurgeReadings]
    chain: list[ChainLink]
    init_from: list[OriginRow]
    not_covered: list[Gap]
    inexact: list[str]


class CertificateRow(Records):
    """What is found of a checkpoint."""

    commitment: CommitmentRow
    weights: WeightsRow


class PublishedCertificate(CertificateRow):
    """The same as it was published, at that time (ISO-8601 in UTC)."""

    at: str
