"""Verify, part 1: every file is covered, whole and as it was written; every table has the rows it had."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from lineage.index.checksums import CHECKSUMS_FILE, Checksums, TableSum, hash_file, read_checksums
from lineage.index.output_index import INDEX_FILE, Index
from lineage.storage.folder import Folder
from lineage.storage.lock import LEASE_FILE
from lineage.storage.temporary import is_temporary
from lineage.store.checksum_update import WORK, named_hash
from lineage.store.delta import read_table, state
from lineage.store.log_files import is_staged
from lineage.store.tables import APPENDED
from lineage.store.write import FOLDER
from lineage.verify.problems import Problem, guarded


def check_files(out: Folder, index: Index) -> Iterator[Problem]:
    """Every file's hash but that of the shards' tokens (which are read elsewhere), what is missing, what is
    extra."""
    names = {name for name in out.names() if name not in (INDEX_FILE, CHECKSUMS_FILE, LEASE_FILE)}
    tokens = {shard.file for shard in index.shards}
    indexed = index.files()
    yield from _missing(indexed.keys() - names, INDEX_FILE)
    for name in sorted((indexed.keys() & names) - tokens):
        yield from _check_hash(out, name, indexed[name])
    yield from guarded("checksums.damaged", CHECKSUMS_FILE, _check_covered(out, names - indexed.keys()))
    yield from _leftovers(out)


def _check_covered(out: Folder, names: set[str]) -> Iterator[Problem]:
    checksums = read_checksums(out)
    sums = {entry.file: entry for entry in checksums.files}
    newer = _newer_tables(out, checksums)
    yield from _missing(sums.keys() - names, CHECKSUMS_FILE)
    damaged_logs = set()
    for name in sorted(sums.keys() & names):
        if name.endswith("/_last_checkpoint") and _table_of(name) in newer:
            continue
        for problem in _check_hash(out, name, sums[name].hash):
            damaged_logs.add(_table_of(name) if "/_delta_log/" in name else "")
            yield problem
    unfinished = sorted(name for name in names - sums.keys() if name.startswith(f"{WORK}/"))
    if unfinished:
        yield Problem(
            "work.unfinished",
            f"{WORK}/",
            f"{len(unfinished)} files of a run or purge "
            f"that did not end, the first is {unfinished[0]}; call the same command again",
        )
    for name in sorted(names - sums.keys()):
        if not name.startswith(f"{WORK}/"):
            yield from _check_extra(out, name, newer)
    for recorded in (entry for entry in checksums.tables if entry.table not in damaged_logs):
        yield from guarded("table.damaged", f"{FOLDER}/{recorded.table}", _check_table(out, recorded))


def _missing(names: set[str], by: str) -> Iterator[Problem]:
    for name in sorted(names):
        yield Problem("file.missing", name, f"{by} names it, and it is not there")


def _check_hash(out: Folder, name: str, expected: str) -> Iterator[Problem]:
    return guarded("file.unreadable", name, _compare_hash(out, name, expected))


def _compare_hash(out: Folder, name: str, expected: str) -> Iterator[Problem]:
    found = hash_file(out, name)
    if found != expected:
        yield Problem("file.hash", name, f"hash is {found}, expected {expected}")


def _newer_tables(out: Folder, checksums: Checksums) -> set[str]:
    """The tables of facts that were appended to after the checksums were taken."""
    recorded = {entry.table: entry.version for entry in checksums.tables}
    return {name for name in APPENDED if _last_commit(out, name) > recorded.get(name, -1)}


def _last_commit(out: Folder, table: str) -> int:
    names = (name.rsplit("/", 1)[-1] for name in out.names(f"{FOLDER}/{table}/_delta_log"))
    return max(
        (int(name[:20]) for name in names if name[:20].isdigit() and name.endswith(".json")), default=-1
    )


def _table_of(name: str) -> str:
    return name.removeprefix(f"{FOLDER}/").partition("/")[0]


def _check_extra(out: Folder, name: str, newer: set[str]) -> Iterator[Problem]:
    """A file that nothing covers is wrong, unless it is of facts appended since and whole, or of a commit of
    them that never came."""
    if _table_of(name) in APPENDED and is_staged(name):
        return
    digest = named_hash(name)
    if _table_of(name) in APPENDED and digest is not None:
        yield from _check_hash(out, name, digest)
    elif not (_table_of(name) in newer and "/_delta_log/" in name):
        yield Problem("file.extra", name, "neither index.json nor checksums.json covers it")


def _leftovers(out: Folder) -> Iterator[Problem]:
    """Temporary files of writers that died, which may hold texts. Those of tables may belong to a writer at
    work."""
    if out.is_remote:
        return
    for folder, _, files in os.walk(out.url):
        where = os.path.relpath(folder, out.url)
        for file in sorted(files):
            if is_temporary(f"{where}/{file}") and where.split(os.sep)[0] != FOLDER:
                yield Problem(
                    "file.leftover",
                    os.path.normpath(f"{where}/{file}"),
                    "a writer died and left it; remove it",
                )


def _check_table(out: Folder, recorded: TableSum) -> Iterator[Problem]:
    where = f"{FOLDER}/{recorded.table}"
    now = state(out, recorded.table)
    if recorded.table not in APPENDED and (now.version, now.num_rows) != (
        recorded.version,
        recorded.num_rows,
    ):
        yield Problem(
            "table.changed",
            where,
            f"version {now.version} with {now.num_rows} rows, "
            f"expected version {recorded.version} with {recorded.num_rows}",
        )
    elif now.version < recorded.version:
        yield Problem("table.changed", where, f"version {now.version}, expected {recorded.version} or later")
    elif now.version > recorded.version:
        yield from _check_newer(out, recorded)
    elif now.num_rows != recorded.num_rows:
        yield Problem("table.changed", where, f"{now.num_rows} rows, expected {recorded.num_rows}")


def _check_newer(out: Folder, recorded: TableSum) -> Iterator[Problem]:
    """Facts appended after the checksums: every row that was there before must still be, in whatever
    files."""
    where = f"{FOLDER}/{recorded.table}"
    before = _rows(read_table(out, recorded.table, recorded.version))
    if before.total() != recorded.num_rows:
        yield Problem(
            "table.changed",
            where,
            f"version {recorded.version} has {before.total()} rows, expected {recorded.num_rows}",
        )
    lost = before - _rows(read_table(out, recorded.table))
    for row, number in sorted(lost.items(), key=str)[:20]:
        yield Problem(
            "table.changed", where, f"{number} rows are gone since version {recorded.version}: {row}"
        )


def _rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
