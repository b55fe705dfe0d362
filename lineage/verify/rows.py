"""Rows as the checks read them: a tuple for each kind, whose fields are columns of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import pyarrow as pa

Row = TypeVar("Row", bound=tuple[object, ...])


def rows_of(table: pa.Table, shape: type[Row]) -> Iterator[Row]:
    """The rows of a table that has the fields of `shape`, a NamedTuple, among its columns."""
    columns = [table[name].to_pylist() for name in shape._fields]  # type: ignore[attr-defined]
    return map(shape._make, zip(*columns, strict=True))  # type: ignore[attr-defined]


class CheckedDocument(NamedTuple):
    """What is checked of a row of `documents`."""

    doc_id: bytes
    source: str
    url: str | None
    text_hash: bytes | None
    clean_hash: bytes | None
    status: str
    stage: str | None
    rule: str | None
    cluster_id: bytes | None
    duplicate_of: bytes | None
    part: int | None
    part_row: int | None
    shard: int | None
    start: int | None
    num_tokens: int | None
    tokens_hash: bytes | None
    bucket: str | None


class Duplicate(NamedTuple):
    """A duplicate and the document that it repeats."""

    doc_id: bytes
    source: str
    url: str | None
    clean_hash: bytes | None
    stage: str
    similarity: float | None
    threshold: float | None
    duplicate_of: bytes
    cluster_id: bytes | None
    part: int
    part_row: int


class PairRequest(NamedTuple):
    """One side of a pair by Jaccard, whose text is asked for: `part` is the ordinal of its part in the index; `k`
    that of the part, so that one pass over the parts answers all. `doc_id` is the duplicate, `other` what it
    repeats."""

    k: int
    part: int
    part_row: int
    doc_id: bytes
    other: bytes
    similarity: float | None
    threshold: float | None


class PairSide(NamedTuple):
    """One side of a pair with its text; `k` is that of the pair."""

    k: int
    doc_id: bytes
    other: bytes
    similarity: float | None
    threshold: float | None
    text: str | None


class PartText(NamedTuple):
    """A row of a part without its text: `clean_hash` null where the text is, `bare` where the metadata is null."""

    doc_id: bytes
    source: str
    part: int
    part_row: int
    clean_hash: bytes | None
    bare: bool


class Placement(NamedTuple):
    """A row of `placements`."""

    doc_id: bytes
    source: str
    shard: int
    start: int
    num_tokens: int
    tokens_hash: bytes


class DedupRow(NamedTuple):
    """A row of dedup/ without its signature."""

    doc_id: bytes
    source: str
    part: int
    part_row: int
    clean_hash: bytes


class EditCount(NamedTuple):
    """A row of `edits` without its number."""

    doc_id: bytes
    stage: str
    kind: str


class ParsedText(NamedTuple):
    """A row of parsed texts without its text: `text_hash` null where the text is, `bare` where the metadata is
    null."""

    doc_id: bytes
    source: str
    text_hash: bytes | None
    bare: bool


class TokenizedDocument(NamedTuple):
    """A kept document and the tokens of its shard."""

    doc_id: bytes
    source: str
    part: int
    part_row: int
    shard: int
    start: int
    num_tokens: int
    tokens_hash: bytes
    bucket: str | None
