"""Keeping checksums.json true: at the end of a run, after a purge, and after a commit of facts.

A writer of an OUT holds it (lineage.storage.lock) and updates the checksums before it releases the lock. A
writer killed in between leaves facts newer than their checksums; the next commit to their table takes them
in, and `verify` accepts them if they are whole.

Only what a writer wrote, removed or appended to changes in checksums.json. So whatever else was damaged, lost
or put there meanwhile stays what `verify` names it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from lineage.index.checksums import (
    CHECKSUMS_FILE,
    Checksums,
    FileSum,
    TableSum,
    encode_checksums,
    read_checksums,
    sum_file,
)
from lineage.index.output_index import INDEX_FILE, Index
from lineage.storage.folder import Folder
from lineage.store.delta import state
from lineage.store.log_files import drop_staged, is_staged
from lineage.store.tables import TABLES
from lineage.store.write import FOLDER

WORK: Final = "work"
"""Where unfinished work lies: nothing in it is part of an OUT."""


def cover_output(out: Folder, index: Index, rewritten: Collection[str] = ()) -> Checksums:
    """Publish the checksums of everything under `out` that `index` does not cover, before a run publishes
    that.

    Of a call that was killed sums may be there. They are kept, but for the names in `rewritten`."""
    known = {entry.file: entry for entry in read_checksums(out).files} if out.exists(CHECKSUMS_FILE) else {}
    kept = {name: entry for name, entry in known.items() if name not in rewritten}
    found = (name for name in files_outside_index(out, index) if name not in kept)
    return _publish(out, kept | {name: _sum(out, name) for name in found}, dict(_table_sums(out)))


def update_checksums(
    out: Folder,
    written: Iterable[FileSum] = (),
    removed: Collection[str] = (),
    appended: Collection[str] = (),
) -> Checksums:
    """Publish the checksums again: without the files that the caller `removed`, with the sums of those that
    it has `written`, and with what is new in the folders of the tables that were `appended` to. Nothing else
    is listed or read, however large the OUT is. StorageError if it has no checksums yet. The caller holds the
    OUT."""
    known = read_checksums(out)
    sums = {
        entry.file: entry for entry in known.files if entry.file not in removed and not is_staged(entry.file)
    }
    sums |= {entry.file: entry for entry in written}
    tables = {entry.table: entry for entry in known.tables}
    for table in appended:
        drop_staged(out, table)
        names = out.names(f"{FOLDER}/{table}")
        new = [name for name in names if name not in sums]
        if any(".checkpoint." in name for name in new):
            # With each checkpoint of its log, and at no other time, Delta overwrites the file that names the
            # newest.
            new += [name for name in names if name.endswith("/_delta_log/_last_checkpoint")]
        sums |= {name: _sum(out, name) for name in new}
        tables[table] = _table_sum(out, table)
    return _publish(out, sums, tables)


def update_table_checksums(out: Folder, tables: Collection[str]) -> Checksums:
    """`update_checksums` after nothing but appends to `tables`."""
    return update_checksums(out, appended=tables)


def is_covered(out: Folder, tables: Collection[str]) -> bool:
    """Whether `update_table_checksums` has come after the last commit to each of these tables, and ended: the
    call that committed may have failed before it. Nothing is covered before a run has ended."""
    if not out.exists(CHECKSUMS_FILE):
        return True
    known = {entry.table: entry.version for entry in read_checksums(out).tables}
    newer = (name for name in tables if state(out, name).version > known.get(name, -1))
    return not out.is_begun(CHECKSUMS_FILE) and next(newer, None) is None


def _publish(out: Folder, sums: Mapping[str, FileSum], tables: Mapping[str, TableSum]) -> Checksums:
    checksums = Checksums(
        files=tuple(sums[name] for name in sorted(sums)),
        tables=tuple(tables[name] for name in sorted(tables)),
    )
    out.publish(CHECKSUMS_FILE, encode_checksums(checksums))
    return checksums


def files_outside_index(out: Folder, index: Index) -> list[str]:
    """The files under `out` that `index` does not cover and checksums.json must, sorted."""
    covered = {*index.files(), INDEX_FILE, CHECKSUMS_FILE}
    return [name for name in out.names() if name not in covered and not name.startswith(f"{WORK}/")]


def _table_sums(out: Folder) -> Iterator[tuple[str, TableSum]]:
    """Every lineage table as it stands, by name."""
    for name in TABLES:
        yield name, _table_sum(out, name)


def _table_sum(out: Folder, name: str) -> TableSum:
    now = state(out, name)
    return TableSum(table=name, version=now.version, num_rows=now.num_rows)


def named_hash(name: str) -> str | None:
    """The hash (hex) in the name of a table's data file, None for any other file."""
    digest = name.removesuffix(".parquet").rpartition("-")[2]
    is_data = name.startswith(f"{FOLDER}/") and name.endswith(".parquet") and "/_delta_log/" not in name
    return digest if is_data and len(digest) == 32 and set(digest) <= set("0123456789abcdef") else None


def _sum(out: Folder, name: str) -> FileSum:
    """The sum of a file; of a table's data file from its name: ten billion documents are not read again for
    it."""
    digest = named_hash(name)
    return sum_file(out, name) if digest is None else FileSum(file=name, hash=digest, bytes=out.size(name))
