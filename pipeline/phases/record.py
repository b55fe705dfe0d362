"""The lineage tables of a run: its units' final rows, bucket by bucket, one commit a table.

A run that fits goes through one process. A larger one deals its units' rows to buckets in many tasks and writes the
buckets in as many others; the files are the same.

work/deals/<table>-NNNNN.rows, NNNNN.json     the rows of some units, by bucket
work/tables/<table>-NNNNN.json                a bucket is written: its files
lineage/<table>/                              the tables
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lineage.index.output_index import Shard
from lineage.storage.folder import Folder
from lineage.store.delta import commit_tables
from lineage.store.shuffle import Deal, gather
from lineage.store.tables import WRITTEN_ONCE
from lineage.store.write import Spool, TableFile, num_buckets, shard_chunks, write_bucket
from pipeline.parquet.rows import read_rows
from pipeline.phases.phase import Phase, Run, publish_result, run_phase
from pipeline.phases.results import BucketResult, JoinResult, ShuffleResult
from pipeline.plan import Unit
from stages.steps.url import url_key

IN_PROCESS_ROWS = 1 << 20
"""Documents up to which one process writes the tables: tasks would take longer to start. The bytes do not depend on it.
It is also about how many documents a task deals."""

_DEALS = "work/deals"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJob:
    """What the tasks of a run share. `buckets` gives each table's number of buckets; `deals`, once all are dealt, the
    keys of the deals that have rows of a table."""

    out: str
    buckets: Mapping[str, int]
    deals: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsToDeal:
    """Some units, by the folders that hold their final rows."""

    number: int
    folders: tuple[str, ...]

    @property
    def marker(self) -> str:
        return f"{_DEALS}/{self.number:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketToWrite:
    """A bucket of a table; one of `placements` with the shards that are its rows."""

    table: str
    bucket: int
    shards: tuple[Shard, ...] = ()

    @property
    def marker(self) -> str:
        return f"work/tables/{self.table}-{self.bucket:05d}.json"


def write_tables(
    state: Run, joined: Sequence[JoinResult], shards: Sequence[Shard], small: Mapping[str, pa.Table]
) -> None:
    """Write and commit every table. `joined` is in plan order; `small` are the tables that fit in memory."""
    num_rows, survivors = sum(unit.num_rows for unit in joined), sum(shard.num_documents for shard in shards)
    about = dict.fromkeys(("documents", "findings", "url_index", "warc_index", "cluster_index"), num_rows)
    about |= {"edits": survivors, "placements": survivors, "hash_index": 4 * num_rows}
    chunks = _shard_chunks(shards)
    if num_rows <= IN_PROCESS_ROWS:
        started = time.perf_counter()
        with state.reporter.phase("write lineage", 1) as progress:
            commit_tables(state.out, _in_process(state, about, chunks, small))
            progress.step(1, f"{num_rows:,} documents")
        state.took("write lineage", started, f"{num_rows:,} documents")
        return
    files = {name: write_bucket(state.out, name, 0, rows) for name, rows in small.items()}
    commit_tables(state.out, files | _in_tasks(state, about, joined, chunks))


def _in_process(
    state: Run, about: Mapping[str, int], chunks: Sequence[tuple[Shard, ...]], small: Mapping[str, pa.Table]
) -> dict[str, list[TableFile]]:
    with Spool(about) as spool:
        for unit in state.plan.units:
            for name, rows in _unit_rows(state.out, unit.folder):
                if name == "documents":
                    spool.add_documents(rows, url_key)
                else:
                    spool.add(name, rows)
        for name, rows in small.items():
            spool.add(name, rows)
        for bucket, chunk in enumerate(chunks):
            for shard in chunk:
                spool.add("placements", _placements(state.out, shard), bucket)
        return spool.files(state.out)


def _in_tasks(
    state: Run, about: Mapping[str, int], joined: Sequence[JoinResult], chunks: Sequence[tuple[Shard, ...]]
) -> dict[str, list[TableFile]]:
    job = RecordJob(out=state.out.url, buckets={name: num_buckets(num) for name, num in about.items()}, deals={})
    shares = list(_shares(state.plan.units, joined))
    dealt = run_phase(
        state, Phase(name="deal facts", stage="join", task=deal_units, result=ShuffleResult, job=job, items=shares)
    )
    keys: dict[str, tuple[str, ...]] = {}
    for share, done in zip(shares, dealt, strict=True):
        for name in done.tables:
            keys[name] = (*keys.get(name, ()), f"{share.number:05d}")
    job = RecordJob(out=job.out, buckets=job.buckets, deals=keys)
    items = [BucketToWrite(table=name, bucket=bucket) for name in sorted(keys) for bucket in range(job.buckets[name])]
    items += [BucketToWrite(table="placements", bucket=at, shards=chunk) for at, chunk in enumerate(chunks)]
    written = run_phase(
        state, Phase(name="write lineage", stage="join", task=write_one, result=BucketResult, job=job, items=items)
    )
    files: dict[str, list[TableFile]] = {name: [] for name in WRITTEN_ONCE if name in about}
    for item, result in zip(items, written, strict=True):
        files[item.table] += result.files
    return files


def deal_units(job: RecordJob, item: UnitsToDeal) -> ShuffleResult:
    """Deal the final rows of some units to buckets; the tables that they have rows of."""
    out, deal = Folder(job.out), Deal(job.buckets)
    for folder in item.folders:
        for name, rows in _unit_rows(out, folder):
            if name == "documents":
                deal.add_documents(rows, url_key)
            else:
                deal.add(name, rows)
    tables = deal.publish(out.folder(_DEALS), f"{item.number:05d}")
    return publish_result(out, item.marker, ShuffleResult(tables=tuple(tables)))


def write_one(job: RecordJob, item: BucketToWrite) -> BucketResult:
    """Write one bucket of a table; its files."""
    out = Folder(job.out)
    if item.shards:
        rows = pa.concat_tables([_placements(out, shard) for shard in item.shards])
    else:
        rows = gather(out.folder(_DEALS), item.table, job.deals[item.table], item.bucket)
    files = write_bucket(out, item.table, item.bucket, rows)
    return publish_result(out, item.marker, BucketResult(files=tuple(files)))


def _unit_rows(out: Folder, folder: str) -> Iterator[tuple[str, pa.Table]]:
    yield "documents", read_rows(out, f"{folder}/final.parquet")
    yield "edits", read_rows(out, f"{folder}/final_edits.parquet")
    yield "findings", read_rows(out, f"{folder}/findings.parquet")


def _shares(units: Sequence[Unit], joined: Sequence[JoinResult]) -> Iterator[UnitsToDeal]:
    """Units in plan order, about IN_PROCESS_ROWS documents at a time."""
    folders: list[str] = []
    rows = number = 0
    for unit, result in zip(units, joined, strict=True):
        if folders and rows + result.num_rows > IN_PROCESS_ROWS:
            yield UnitsToDeal(number=number, folders=tuple(folders))
            folders, rows, number = [], 0, number + 1
        folders.append(unit.folder)
        rows += result.num_rows
    if folders:
        yield UnitsToDeal(number=number, folders=tuple(folders))


def _shard_chunks(shards: Sequence[Shard]) -> list[tuple[Shard, ...]]:
    by_place = {(shard.source, shard.shard): shard for shard in shards}
    sizes = sorted((shard.source, shard.shard, shard.num_documents) for shard in shards)
    return [tuple(by_place[place] for place in chunk) for chunk in shard_chunks(sizes)]


def _placements(out: Folder, shard: Shard) -> pa.Table:
    rows = read_rows(out, shard.index_file)
    return rows.append_column("source", pa.array([shard.source] * rows.num_rows, pa.string())).append_column(
        "shard", pa.array([shard.shard] * rows.num_rows, pa.int64())
    )
