"""The units of an export, a function of the index alone: so the same bytes come of any number of workers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.exports.manifest import ExportedUnit
from lineage.ids import content_hash
from lineage.index.output_index import Index, PartFile, Shard
from pipeline.export.request import ExportRequest

RULES: Final = 1
"""Counts up when a format's bytes change: then a unit of an earlier release is written again, not kept."""
UNITS: Final = "work/units"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """What all units share. `links`: a shard that an export holds as it is may be another name of the OUT's
    own file."""

    out: str
    to: str
    request: ExportRequest
    vocab_size: int
    links: bool

    @property
    def token_bytes(self) -> int:
        """Bytes of a token: 2 where the vocabulary fits or uint16 was asked for, else 4."""
        fits = self.vocab_size <= 1 << 16
        return 2 if self.request.dtype == "uint16" or (self.request.dtype == "auto" and fits) else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportUnit:
    """A unit of work: consecutive parts of a source with what dedup/ says of each, or one shard. `is_last`:
    no later one of the whole export has a text."""

    source: str
    number: int
    inputs: str
    parts: tuple[tuple[PartFile, PartFile], ...] = ()
    shard: Shard | None = None
    is_last: bool = False

    @property
    def key(self) -> str:
        """Its name in the manifest."""
        return f"{self.source}/{self.number:05d}"

    @property
    def marker(self) -> str:
        """What its task publishes last. Its name holds the inputs: what was made of others is not taken for
        it."""
        return f"{UNITS}/{self.source}-{self.number:05d}-{self.inputs}.json"

    @property
    def size(self) -> float:
        """How much work it is, beside others."""
        return float(self.shard.num_tokens if self.shard else sum(part.num_rows for part, _ in self.parts))

    def name(self, extension: str, split: str = "", folder: str = "", between: str = "/") -> str:
        """The name of a file of this unit, e.g. web/train-00012.parquet; `between` source and number."""
        where = f"{folder}/" if folder else ""
        mark = f"{split}-" if split else ""
        return f"{where}{self.source}{between}{mark}{self.number:05d}{extension}"


def text_units(index: Index, request: ExportRequest) -> list[ExportUnit]:
    """Consecutive parts of a source, at most `file_documents` rows of them or one part. A purge keeps the
    rows of every part, and so the units; it may make an earlier one the last that has a text, which is
    written again then."""
    dedup = {(entry.source, entry.part): entry for entry in index.dedup}
    groups: list[list[PartFile]] = []
    for part in (entry for entry in index.documents if request.takes(entry.source)):
        last = groups[-1] if groups else []
        rows = sum(entry.num_rows for entry in last) + part.num_rows
        if last and last[0].source == part.source and rows <= request.file_documents:
            last.append(part)
        else:
            groups.append([part])
    numbers: dict[str, int] = {}
    units = []
    for group in groups:
        source = group[0].source
        numbers[source] = number = numbers.get(source, -1) + 1
        parts = tuple((part, dedup[part.source, part.part]) for part in group)
        made_from = [(entry.file, entry.hash) for pair in parts for entry in pair]
        units.append((source, number, parts, made_from))
    with_texts = [at for at, (_, _, parts, _) in enumerate(units) if any(kept.num_rows for _, kept in parts)]
    last_at = max(with_texts, default=-1)
    return [
        ExportUnit(
            source=source,
            number=number,
            parts=parts,
            inputs=_inputs(request, made_from, is_last=at == last_at),
            is_last=at == last_at,
        )
        for at, (source, number, parts, made_from) in enumerate(units)
    ]


def shard_units(index: Index, request: ExportRequest) -> list[ExportUnit]:
    """One a shard: of a source that is parted, or of a part of it."""
    source_of = index.source_of_shards
    shards = [
        shard
        for shard in index.shards
        if request.takes(shard.source) or request.takes(source_of[shard.source])
    ]
    return [
        ExportUnit(
            source=shard.source,
            number=shard.shard,
            shard=shard,
            inputs=_inputs(request, [(shard.file, shard.hash), (shard.index_file, shard.index_hash)]),
        )
        for shard in shards
    ]


def _inputs(request: ExportRequest, made_from: Sequence[tuple[str, str]], *, is_last: bool = False) -> str:
    # Only the last unit has the mark, so that another last unit leaves the others up to date.
    plain = [RULES, request.to_json(), list(made_from), *(["last"] if is_last else [])]
    return content_hash(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hex()


def sources_of(index: Index) -> set[str]:
    """Every source that an OUT has a file of."""
    return {shard.source for shard in index.shards} | {part.source for part in index.documents}


def up_to_date(
    wanted: Sequence[ExportUnit], made: Iterable[ExportedUnit], there: Collection[str]
) -> dict[str, ExportedUnit]:
    """The units of an earlier export that were made from what the wanted ones would be made from, by name, and whose
    files are all `there`."""
    inputs = {unit.key: unit.inputs for unit in wanted}
    return {
        unit.unit: unit
        for unit in made
        if inputs.get(unit.unit) == unit.inputs and all(file.file in there for file in unit.files)
    }
