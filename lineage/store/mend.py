"""Commits that a power cut took from the lineage store, made again from the files that they named.

checksums.json says which version each table had, and each data file's name holds the hash of its bytes. So a
commit that is empty or gone is made again from the data files that no commit names:

- the first commit of a table: from the files that checksums.json covers (none of a table that facts are
  appended to);
- an appended fact: from its file, under the transaction id that its name holds the hash of, where its rows
  say it. The others (of cache sweeps and reused steps) get one of their own. Appended once more under the id
  that they had, they would be the same file, which a table has once.

What was lost with its data file cannot be made again: StoreError names the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lineage.ids import content_hash
from lineage.index.checksums import CHECKSUMS_FILE, Checksums, TableSum, read_checksums
from lineage.storage.folder import Folder
from lineage.store.checked import check_whole
from lineage.store.checksum_update import named_hash, update_checksums
from lineage.store.delta import StoreError, commit_file, create_table, table_uri
from lineage.store.log_files import (
    commit_name,
    cut_files,
    drop_cut_files,
    drop_staged,
    log_folder,
    sync_log,
    versions,
)
from lineage.store.tables import APPENDED, SCHEMAS, TABLES, WRITTEN_ONCE
from lineage.store.write import TableFile, schema_of, table_file

_FACT: Final = "fact-"


def mend_tables(out: Folder) -> tuple[str, ...]:
    """Make the lost commits of a finished OUT again, and cover them in checksums.json; the tables that had
    lost one. The caller holds the OUT. Nothing to do in an object store, where what was answered is
    durable."""
    if out.is_remote or not out.exists(CHECKSUMS_FILE):
        return ()
    for name in TABLES:
        drop_staged(out, name)
    sums = read_checksums(out)
    lost = {entry.table: names for entry in sums.tables if (names := _lost_files(out, sums, entry))}
    if not lost:
        return ()
    # Uncovered first: a log whose commit is not the one that is covered cannot be opened. The versions stay,
    # so that a call that dies here is gone on with.
    update_checksums(out, removed={name for names in lost.values() for name in names})
    for entry in sums.tables:
        if entry.table in lost:
            drop_cut_files(out, entry.table)
            _make_again(out, sums, entry)
            sync_log(out, entry.table, 0)
    out.sync()
    update_checksums(out, appended=tuple(lost))
    return tuple(lost)


def _lost_files(out: Folder, sums: Checksums, table: TableSum) -> set[str]:
    """The files of a table's log that are cut, gone or not covered, of those that checksums.json must
    cover."""
    there = versions(out, table.table)
    covered = {entry.file for entry in sums.files if entry.file.startswith(f"{log_folder(table.table)}/")}
    needed = {commit_name(table.table, version) for version in range(table.version + 1)}
    standing = {commit_name(table.table, version) for version in there}
    return {*cut_files(out, table.table), *(needed - standing), *(needed - covered)}


def _make_again(out: Folder, sums: Checksums, table: TableSum) -> None:
    name = table.table
    uri = table_uri(out, name)
    if not versions(out, name):
        files = list(_first_files(out, sums, name)) if name in WRITTEN_ONCE else []
        schema = SCHEMAS[name]
        for file in files:
            schema = schema_of(name, pq.read_schema(out.at(f"lineage/{name}/{file.path}")).empty_table())
        create_table(out, name, schema, files)
    missing = table.version - versions(out, name)[-1]
    for _, file, transaction in sorted(_facts(out, name), key=lambda fact: fact[0])[:missing]:
        commit_file(DeltaTable(uri), name, file, transaction)
    opened = DeltaTable(uri)
    num_rows = sum(value.as_py() for value in opened.get_add_actions(flatten=True)["num_records"])
    if num_rows < table.num_rows:
        raise StoreError(
            f"the lineage table at {uri} has lost a commit and the file of its rows ({num_rows} of"
            f" {table.num_rows} rows are left): restore {uri} from a copy, then make the same call again"
        )


def _first_files(out: Folder, sums: Checksums, name: str) -> Iterator[TableFile]:
    """The files of a table that its run wrote, as checksums.json covers them."""
    folder = out.folder(f"lineage/{name}")
    for entry in sums.files:
        if entry.file.startswith(f"lineage/{name}/") and named_hash(entry.file) is not None:
            path = entry.file.removeprefix(f"lineage/{name}/")
            check_whole(folder, path)
            yield table_file(name, path, folder.read(path))


def _facts(out: Folder, name: str) -> Iterator[tuple[str, TableFile, str]]:
    """The files of facts that no commit names, each with its order and its transaction id."""
    if name not in APPENDED:
        return
    folder = out.folder(f"lineage/{name}")
    known = set(DeltaTable(folder.url).get_add_actions(flatten=True)["path"].to_pylist())
    for path in folder.names():
        if not path.startswith(_FACT) or path in known:
            continue
        check_whole(folder, path)
        data = folder.read(path)
        row = pq.read_table(pa.BufferReader(data)).slice(0, 1).to_pylist()[0]
        transaction = _transaction(name, row)
        if content_hash(transaction.encode()).hex()[:16] != path.removeprefix(_FACT).partition("-")[0]:
            transaction = f"again:{path}"
        # Only the order of purges means something: the version of the corpus counts them.
        yield (row["at"] if name == "purges" else path), table_file(name, path, data), transaction


def _transaction(name: str, row: Mapping[str, Any]) -> str:
    """The id of the transaction that appended a fact, as its writer made it; "" where the row does not say
    it."""
    match name:
        case "purged" | "purges":
            return f"purge:{row['purge_id']}"
        case "exports":
            return f"export:{row['name']}:{row['fact']}"
        case "training_runs":
            return f"run:{row['run']}:{row['fact']}"
        case "training_segments":
            return f"{row['run']}:{name}:{row['fact']}"
    return ""
