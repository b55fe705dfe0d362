"""The lineage tables of a run: its units' final rows, bucket by bucket, one commit a table.

A run that fits goes through one process. A larger one shuffles its units' rows to buckets in many tasks and
writes the buckets in as many others; the files are the same.

work/shuffle/<table>-NNNNN.rows, NNNNN.json     the rows of some units, by bucket
work/tables/<table>-NNNNN.json                  a bucket is written: its files
lineage/<table>/                                the tables
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lineage.index.output_index import Shard
from lineage.storage.folder import Folder
from lineage.store.delta import commit_tables
from lineage.store.shuffle import Shuffle, gather, publish_index
from lineage.store.tables import SCHEMAS, WRITTEN_ONCE
from lineage.store.write import (
    TableFile,
    add_documents,
    add_rows,
    num_buckets,
    placement_buckets,
    table_pieces,
    write_bucket,
    write_tables,
)
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.plan import Unit
from pipeline.recipe.tables import columns_of_documents
from pipeline.results.rows import read_rows
from pipeline.results.unit_results import BucketResult, JoinResult, ShuffleResult
from pipeline.terminal import counted
from pipeline.units.files import ROW

IN_PROCESS_ROWS = 1 << 20
"""Documents up to which one process writes the tables: tasks would take longer to start. The bytes do not
depend on it. It is also about how many documents a task shuffles."""

_SHUFFLE = "work/shuffle"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJob:
    """What the tasks of a run share. `buckets` gives each table's number of buckets; `shares`, once all are
    shuffled, the keys of the shares that have rows of a table."""

    out: str
    buckets: Mapping[str, int]
    shares: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsToShuffle:
    """Some units, by the folders that hold their final rows."""

    number: int
    folders: tuple[str, ...]

    @property
    def marker(self) -> str:
        return f"{_SHUFFLE}/{self.number:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketToWrite:
    """A bucket of a table; one of `placements` with the shards that are its rows."""

    table: str
    bucket: int
    shards: tuple[Shard, ...] = ()

    @property
    def marker(self) -> str:
        return f"work/tables/{self.table}-{self.bucket:05d}.json"


def write_lineage(
    state: RunState, joined: Sequence[JoinResult], shards: Sequence[Shard], small: Mapping[str, pa.Table]
) -> None:
    """Write and commit every table. `joined` is in plan order; `small` are the tables that fit in memory."""
    num_rows, survivors = sum(unit.num_rows for unit in joined), sum(unit.num_kept for unit in joined)
    about = dict.fromkeys(
        ("documents", "findings", "url_index", "domain_index", "warc_index", "cluster_index"), num_rows
    )
    about |= {"edits": survivors, "placements": survivors, "hash_index": 4 * num_rows}
    by_place = {(shard.source, shard.shard): shard for shard in shards}
    sizes = sorted((shard.source, shard.shard, shard.num_documents) for shard in shards)
    buckets = [tuple(by_place[place] for place in bucket) for bucket in placement_buckets(sizes)]
    added, has_cuts = columns_of_documents(state.plan.recipe), state.recipe.dedup.inside.is_on
    if num_rows <= IN_PROCESS_ROWS:
        started = time.perf_counter()
        with state.reporter.phase("write lineage", 1) as progress:
            files = _in_process(state, about, buckets, small)
            state.held.check()
            commit_tables(state.out, files, added=added, has_cuts=has_cuts)
            progress.step(1, counted(num_rows, "document"))
        state.took("write lineage", started, counted(num_rows, "document"))
        return
    files = {name: write_bucket(state.out, name, 0, (rows,)) for name, rows in small.items()}
    files |= _in_tasks(state, about, joined, buckets)
    state.held.check()
    commit_tables(state.out, files, added=added, has_cuts=has_cuts)


def _in_process(
    state: RunState,
    about: Mapping[str, int],
    buckets: Sequence[tuple[Shard, ...]],
    small: Mapping[str, pa.Table],
) -> dict[str, list[TableFile]]:
    with Shuffle(table_pieces(about)) as shuffle:
        for unit in state.plan.units:
            _add_unit(shuffle, state.out, unit.folder)
        for name, rows in small.items():
            add_rows(shuffle, name, rows)
        files = write_tables(state.out, shuffle)
    for number, bucket in enumerate(buckets):
        files["placements"] += _write_placements(state.out, number, bucket)
    return files


def _in_tasks(
    state: RunState,
    about: Mapping[str, int],
    joined: Sequence[JoinResult],
    buckets: Sequence[tuple[Shard, ...]],
) -> dict[str, list[TableFile]]:
    job = RecordJob(
        out=state.out.url, buckets={name: num_buckets(num) for name, num in about.items()}, shares={}
    )
    shares = list(_shares(state.plan.units, joined))
    shuffled = run_phase(
        state,
        Phase(
            name="shuffle facts",
            operator="shuffle_facts",
            kind="join",
            task=shuffle_units,
            result=ShuffleResult,
            job=job,
            units=shares,
        ),
    )
    keys: dict[str, tuple[str, ...]] = {}
    for share, done in zip(shares, shuffled, strict=True):
        for name in done.tables:
            keys[name] = (*keys.get(name, ()), f"{share.number:05d}")
    for name, of_table in keys.items():
        publish_index(state.out.folder(_SHUFFLE), name, of_table, job.buckets[name])
    job = RecordJob(out=job.out, buckets=job.buckets, shares=keys)
    items = [
        BucketToWrite(table=name, bucket=bucket)
        for name in sorted(keys)
        for bucket in range(job.buckets[name])
    ]
    items += [
        BucketToWrite(table="placements", bucket=at, shards=bucket) for at, bucket in enumerate(buckets)
    ]
    written = run_phase(
        state,
        Phase(
            name="write lineage",
            operator="write_lineage",
            kind="join",
            task=write_one,
            result=BucketResult,
            job=job,
            units=items,
        ),
    )
    files: dict[str, list[TableFile]] = {name: [] for name in WRITTEN_ONCE if name in about}
    for item, result in zip(items, written, strict=True):
        files[item.table] += result.files
    return files


def shuffle_units(job: RecordJob, item: UnitsToShuffle) -> ShuffleResult:
    """Publish the final rows of some units by bucket; the tables that they have rows of."""
    out = Folder(job.out)
    with Shuffle(job.buckets) as shuffle:
        for folder in item.folders:
            _add_unit(shuffle, out, folder)
        tables = shuffle.publish(out.folder(_SHUFFLE), f"{item.number:05d}")
    return publish_result(out, item.marker, ShuffleResult(tables=tuple(tables)))


def write_one(job: RecordJob, item: BucketToWrite) -> BucketResult:
    """Write one bucket of a table; its files."""
    out = Folder(job.out)
    if item.shards:
        files = _write_placements(out, item.bucket, item.shards)
    else:
        rows = gather(
            out.folder(_SHUFFLE), item.table, job.shares[item.table], item.bucket, SCHEMAS[item.table]
        )
        files = write_bucket(out, item.table, item.bucket, (rows,))
    return publish_result(out, item.marker, BucketResult(files=tuple(files)))


def _add_unit(shuffle: Shuffle, out: Folder, folder: str) -> None:
    add_documents(shuffle, read_rows(out, f"{folder}/final.parquet"))
    add_rows(shuffle, "edits", read_rows(out, f"{folder}/final_edits.parquet"))
    findings = read_rows(out, f"{folder}/findings.parquet")
    add_rows(shuffle, "findings", findings.drop_columns([ROW]))


def _shares(units: Sequence[Unit], joined: Sequence[JoinResult]) -> Iterator[UnitsToShuffle]:
    """Units in plan order, about IN_PROCESS_ROWS documents at a time."""
    folders: list[str] = []
    rows = number = 0
    for unit, result in zip(units, joined, strict=True):
        if folders and rows + result.num_rows > IN_PROCESS_ROWS:
            yield UnitsToShuffle(number=number, folders=tuple(folders))
            folders, rows, number = [], 0, number + 1
        folders.append(unit.folder)
        rows += result.num_rows
    if folders:
        yield UnitsToShuffle(number=number, folders=tuple(folders))


def _write_placements(out: Folder, bucket: int, shards: Sequence[Shard]) -> list[TableFile]:
    """Write a bucket of `placements`, a shard at a time: they come in the order of the table."""
    return write_bucket(out, "placements", bucket, (_placements(out, shard) for shard in shards))


def _placements(out: Folder, shard: Shard) -> pa.Table:
    rows = read_rows(out, shard.index_file)
    return rows.append_column("source", pa.array([shard.source] * rows.num_rows, pa.string())).append_column(
        "shard", pa.array([shard.shard] * rows.num_rows, pa.int64())
    )
