"""From verdicts to shards: tokenize each unit into a sorted run, cut the runs of a group, write the shards.

work/units/<key>/tokens.bin, run.parquet       a unit's kept documents as tokens, in the order of their keyed hash
work/groups/<source>-<n>/placements.parquet    where each of them lands
shards/<source>/NNNNN.bin, .blocks, .idx.parquet
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.output_index import part_name
from lineage.storage.folder import Folder
from lineage.store import tables
from pipeline.parquet.rows import publish_marker, publish_table, read_rows
from pipeline.phases.phase import Done
from pipeline.plan import Unit
from stages.tokens.shards import (
    RUN,
    RangeReader,
    RunSlice,
    cut_group,
    place_group,
    publish_shard,
    slice_bytes,
    write_run,
)
from stages.tokens.tokenizer import Tokenizer, load_tokenizer

_READ_AHEAD_BYTES = 256 << 20

PLACEMENTS = pa.schema([
    ("file_index", pa.int32()), ("part_row", pa.int64()), ("shard", pa.int64()), ("start", pa.int64()),
    ("num_tokens", pa.int64()), ("tokens_hash", pa.binary()),
])  # fmt: skip
"""A row for each kept document of a group, in order of (file_index, part_row); `shard` counts within the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenJob:
    """What all token tasks of a run share."""

    out: str
    encoding: str
    seed: int
    shard_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The units whose documents share shards: files [n·group_files, (n+1)·group_files) of a source. `verdicts` names
    the file (tables.VERDICTS) of what comparing said of them."""

    source: str
    source_index: int
    number: int
    units: tuple[Unit, ...]
    verdicts: str

    @property
    def folder(self) -> str:
        """Where the group's files lie, relative to OUT."""
        return f"work/groups/{self.source_index}-{self.number}"

    @property
    def marker(self) -> str:
        return f"{self.folder}/cut.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOfGroup:
    """A unit, and the group's verdicts that concern it."""

    unit: Unit
    verdicts: str

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOfGroup:
    """A shard to write: the `local`-th of its group, and its number within the source."""

    group: Group
    local: int
    shard: int

    @property
    def marker(self) -> str:
        return f"{self.group.folder}/shard-{self.local:05d}.json"


@functools.lru_cache(maxsize=2)
def kept_tokenizer(encoding: str) -> Tokenizer:
    """The tokenizer that `encoding` names, loaded once in each process."""
    return load_tokenizer(encoding)


def unit_verdicts(out: Folder, verdicts: str, file_index: int) -> pa.Table:
    """The rows of tables.VERDICTS that concern one file of a group."""
    with out.open(verdicts) as file:
        return pq.read_table(file, filters=pc.field("file_index") == file_index, schema=tables.VERDICTS)


def tokenize_unit(job: TokenJob, item: UnitOfGroup, careful: bool) -> Done:
    """Write a unit's run; the numbers of its documents, tokens and characters."""
    out, unit = Folder(job.out), item.unit
    folder = unit.folder
    verdicts = unit_verdicts(out, item.verdicts, unit.file_index)
    dropped = set(verdicts.filter(pc.equal(verdicts["status"], "duplicate"))["part_row"].to_pylist())
    doc_ids: list[bytes] = []
    texts: list[str] = []
    part_rows: list[int] = []
    for part_row, (doc_id, text) in enumerate(_texts(out, part_name("documents", unit.source, unit.file_index))):
        if part_row not in dropped:
            doc_ids.append(doc_id)
            texts.append(text)
            part_rows.append(part_row)
    with out.writing(f"{folder}/tokens.bin") as tokens:
        run = write_run(doc_ids, texts, kept_tokenizer(job.encoding), job.seed, tokens)
    row_of = dict(zip(doc_ids, part_rows, strict=True))
    assert len(row_of) == len(doc_ids), "the identity stage leaves one document of each id"
    rows = pa.array([row_of[doc_id] for doc_id in run["doc_id"].to_pylist()], pa.int64())
    publish_table(out, f"{folder}/run.parquet", run.append_column("part_row", rows))
    return publish_marker(out, item.marker, {
        "num_documents": run.num_rows, "num_tokens": int(pc.sum(run["num_tokens"]).as_py() or 0),
        "num_chars": sum(map(len, texts)),
    })  # fmt: skip


def _texts(out: Folder, part: str) -> Iterator[tuple[bytes, str]]:
    with out.open(part) as file:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1024, columns=["doc_id", "text"]):
            yield from zip(batch["doc_id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def _runs(out: Folder, group: Group) -> list[pa.Table]:
    return [read_rows(out, f"{unit.folder}/run.parquet") for unit in group.units]


def cut_group_task(job: TokenJob, group: Group, careful: bool) -> Done:
    """Cut a group and publish its cuts and placements; the number of its shards."""
    out = Folder(job.out)
    runs = _runs(out, group)
    cuts = cut_group([run.select(RUN.names) for run in runs], job.shard_tokens)
    placed = place_group(runs, cuts)
    pieces = [
        pa.table({
            "file_index": pa.array(np.full(run.num_rows, unit.file_index, dtype=np.int32)),
            "part_row": run["part_row"], "shard": where["shard"], "start": where["start"],
            "num_tokens": run["num_tokens"], "tokens_hash": run["tokens_hash"],
        }, schema=PLACEMENTS).sort_by("part_row")
        for unit, run, where in zip(group.units, runs, placed, strict=True)
    ]  # fmt: skip
    out.publish(f"{group.folder}/cuts.npy", _npy(cuts))
    publish_table(out, f"{group.folder}/placements.parquet", pa.concat_tables(pieces))
    return publish_marker(out, group.marker, {"num_shards": len(cuts) - 1})


def _npy(array: npt.NDArray[np.int64]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def read_cuts(out: Folder, group: Group) -> npt.NDArray[np.int64]:
    """The cuts of a group: see stages.tokens.shards.cut_group."""
    cuts: npt.NDArray[np.int64] = np.load(io.BytesIO(out.read(f"{group.folder}/cuts.npy")), allow_pickle=False)
    return cuts


def unit_placements(out: Folder, group: Group, file_index: int) -> pa.Table:
    """The rows of PLACEMENTS of one file of a group."""
    with out.open(f"{group.folder}/placements.parquet") as file:
        return pq.read_table(file, filters=pc.field("file_index") == file_index, schema=PLACEMENTS)


def write_shard_task(job: TokenJob, item: ShardOfGroup, careful: bool) -> Done:
    """Write one shard; its entry of the index."""
    out = Folder(job.out)
    cuts = read_cuts(out, item.group)
    firsts, lasts = cuts[item.local], cuts[item.local + 1]
    chunk = max(64 << 10, _READ_AHEAD_BYTES // max(1, len(item.group.units)))
    slices = []
    for unit, run, first, last in zip(item.group.units, _runs(out, item.group), firsts, lasts, strict=True):
        if first == last:
            continue
        start, size = slice_bytes(run, int(first), int(last))
        tokens = RangeReader(out, f"{unit.folder}/tokens.bin", start, size, chunk)
        slices.append(RunSlice(rows=run.slice(int(first), int(last - first)), tokens=tokens))
    shard = publish_shard(out, item.group.source, item.shard, slices)
    return publish_marker(out, item.marker, asdict(shard))


def number_shards(groups: Sequence[Group], counts: Sequence[int]) -> list[ShardOfGroup]:
    """The shards of all groups, numbered within each source by (group, cut)."""
    next_of: dict[str, int] = {}
    shards = []
    for group, count in zip(groups, counts, strict=True):
        first = next_of.get(group.source, 0)
        shards += [ShardOfGroup(group=group, local=i, shard=first + i) for i in range(count)]
        next_of[group.source] = first + count
    return shards
