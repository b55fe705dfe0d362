"""What a unit of each phase comes to: the content of the marker that it publishes last, as JSON.

A later call reads the results of finished units back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lineage.index.output_index import PartFile
from lineage.json_record import JsonRecord, json_name, left_out_at
from lineage.store.write import TableFile
from pipeline.results.faults import FaultRow
from stages.reading.options import Border


class RuleCount(NamedTuple):
    """How many documents a rule rejected, and the digest of their ids as 32 hex digits."""

    stage: str
    rule: str
    num: int
    digest: str


class UnreadableStretch(NamedTuple):
    """`length` bytes (rows of a Parquet file) from `offset` that hold no whole record, why, and about how
    many records are lost with them.

    `num_bytes` is what it is of the file as it lies: 0 for what may be one bad record. Where the file
    `breaks_off`, nobody knows how much is missing, and all bytes of the file are meant. `file` is the file's
    relative name where the unit reads several."""

    offset: int
    length: int
    error: str
    num_records: int = 1
    num_bytes: int = 0
    breaks_off: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPart:
    """A unit's file of clean texts: what index.json says of it, less its source and number."""

    file: str
    num_rows: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFile:
    """A unit's parsed texts, or the facts that go with them: file, rows, BLAKE3-128 in hex, and bytes."""

    file: str
    num_rows: int
    hash: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile(JsonRecord):
    """What was read of one input file, as the table `inputs` has it."""

    url: str
    num_bytes: int = json_name("bytes")
    num_records: int
    num_documents: int
    by_type: Mapping[str, int]
    by_mime: Mapping[str, int]
    by_status: Mapping[str, int]
    notes: Mapping[str, int]


class RawStretch(NamedTuple):
    """An unreadable stretch as the reader gave it (`stages.reading.options.Unreadable`)."""

    offset: int
    length: int
    error: str
    num_records: int | None
    num_bytes: int | None
    breaks_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanResult:
    """What the reading of a span says besides, for the file that it is put together to: fields of
    `stages.reading.options.InputCounts` and of `pipeline.units.tally.UnitTally`; `purged` in hex."""

    began: Border | None
    ended: Border | None
    end: int | None
    by_row: bool
    num_documents: int
    num_unreadable: int
    num_unfolded: int
    most_excess: int
    unreadable: tuple[RawStretch, ...]
    longest: int
    extent: int
    purged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult(JsonRecord):
    """unit.json: what came of an input file, or of several small ones. `file` is its relative name and `url`
    its place, of several the first one's; `files` are then all of them. `digest` is that of all its
    documents' ids; `html_bytes` are their payloads, unpacked; `seconds` are processor seconds by stage;
    `texts` and `facts` are what run.keep_text keeps. `num_without_page` are documents whose URL names no
    page, `num_without_date` survivors without a time of capture; `odd_date` is the first that is no date of
    those that `notes` counts. Of a unit that is a span of a file there is `span`."""

    key: str
    source: str
    file: str
    url: str
    num_bytes: int = json_name("bytes")
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
    texts: UnitFile | None = None
    facts: UnitFile | None = None
    num_without_page: int = 0
    num_without_date: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)
    odd_date: str | None = None
    files: tuple[InputFile, ...] = left_out_at(())
    span: SpanResult | None = left_out_at(None)  # noqa: RUF009  # as it is for every other type

    @property
    def num_files(self) -> int:
        """Input files of the unit."""
        return len(self.files) or 1

    @property
    def input_files(self) -> tuple[InputFile, ...]:
        """What was read of each input file."""
        return self.files or (
            InputFile(
                url=self.url,
                num_bytes=self.num_bytes,
                num_records=self.num_records,
                num_documents=self.num_documents,
                by_type=self.by_type,
                by_mime=self.by_mime,
                by_status=self.by_status,
                notes=self.notes,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortenedResult(JsonRecord):
    """shortened.json of a unit: its texts without the repeats inside them, how many of its documents were
    cut, the number of cuts, and their characters."""

    part: CleanPart
    num_documents: int
    num_cuts: int
    num_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult(JsonRecord):
    """run.json of a unit: its kept documents, their tokens and characters."""

    num_documents: int
    num_tokens: int
    num_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSize(JsonRecord):
    """What a part of a source holds."""

    source: str
    bucket: str
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCuts(JsonRecord):
    """Where a [[bucket]] cuts a column."""

    name: str
    column: str
    cuts: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatSize(JsonRecord):
    """What [repeat] says of a row of its table, or of a bucket: the source of the shards, the name of the
    [repeat.language.NAME] where it is a row of one, the row's first cluster size or bucket, how often its
    documents are read, how many they are with their tokens, and how many of them an epoch reads, one as often
    as it is read."""

    source: str
    language: str | None = left_out_at(None)
    first: int
    times: float
    num_documents: int
    num_tokens: int
    num_readings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize(JsonRecord):
    """What a part of a unit holds; `bucket` and `repeats` are those of `pipeline.phases.groups.SourcePart`."""

    bucket: str | None
    repeats: int | None
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult(JsonRecord):
    """parted.json of a unit: its parts."""

    parts: tuple[PartSize, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResult(JsonRecord):
    """cut.json of a group of units: how many shards it gives."""

    num_shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult(JsonRecord):
    """final.json: a unit's file of what later runs compare with, what comparing documents dropped, and how
    many rows its `documents` have, of which `num_kept` are kept."""

    dedup: PartFile
    dropped: tuple[RuleCount, ...]
    num_rows: int
    num_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleResult(JsonRecord):
    """The tables that some units have rows of, which now lie by bucket."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketResult(JsonRecord):
    """The files of one bucket of a table."""

    files: tuple[TableFile, ...]
