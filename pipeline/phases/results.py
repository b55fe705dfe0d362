"""What a unit of each phase comes to: the content of the marker that it publishes last, as JSON.

A later call reads the results of finished units back. `from_json` takes every key of `to_json` and no other: a marker
with one too many or too few raises, as a misspelt field does at construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, Self

from lineage.index.output_index import PartFile
from lineage.store.write import TableFile
from pipeline.report.faults import FaultRow


class PhaseResult(Protocol):
    """What a phase needs of its units' results."""

    def to_json(self) -> dict[str, Any]: ...
    @classmethod
    def from_json(cls, plain: Mapping[str, Any], /) -> Self: ...


class RuleCount(NamedTuple):
    """How many documents a rule turned down, and the digest of their ids as 32 hex digits."""

    stage: str
    rule: str
    num: int
    digest: str


class UnreadableStretch(NamedTuple):
    """`length` bytes (rows of a Parquet file) from `offset` that hold no whole record, and why."""

    offset: int
    length: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPart:
    """A unit's file of clean texts: what index.json says of it, less its source and number."""

    file: str
    num_rows: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """unit.json: what came of an input file. `file` is its relative name and `url` its place; `digest` is that of all
    its documents' ids; `html_bytes` are their payloads, unpacked; `seconds` are processor seconds by stage."""

    key: str
    source: str
    file: str
    url: str
    num_bytes: int
    num_records: int
    by_type: Mapping[str, int]
    by_mime: Mapping[str, int]
    by_status: Mapping[str, int]
    unreadable: tuple[UnreadableStretch, ...]
    num_documents: int
    digest: str
    rejected: tuple[RuleCount, ...]
    num_survivors: int
    num_chars: int
    html_bytes: int
    faults: tuple[FaultRow, ...]
    seconds: Mapping[str, float]
    part: CleanPart

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["bytes"] = plain.pop("num_bytes")
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **{name: value for name, value in plain.items() if name != "bytes"},
                "num_bytes": plain["bytes"],
                "unreadable": tuple(UnreadableStretch(*stretch) for stretch in plain["unreadable"]),
                "rejected": tuple(RuleCount(*count) for count in plain["rejected"]),
                "faults": tuple(FaultRow(**row) for row in plain["faults"]),
                "part": CleanPart(**plain["part"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult:
    """run.json of a unit: its kept documents, their tokens and characters."""

    num_documents: int
    num_tokens: int
    num_chars: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult:
    """cut.json of a group of units: how many shards it gives."""

    num_shards: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """final.json: a unit's file of what later runs compare with, what comparing documents dropped, and how many rows
    its `documents` have, of which `num_kept` are kept."""

    dedup: PartFile
    dropped: tuple[RuleCount, ...]
    num_rows: int
    num_kept: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        read = {
            "dedup": PartFile(**plain["dedup"]),
            "dropped": tuple(RuleCount(*count) for count in plain["dropped"]),
        }
        return cls(**{**plain, **read})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleResult:
    """The tables that some units have rows of, which now lie by bucket."""

    tables: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**{**plain, "tables": tuple(plain["tables"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult:
    """The files of one bucket of a table."""

    files: tuple[TableFile, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        return cls(**{**plain, "files": tuple(TableFile(**file) for file in plain["files"])})
