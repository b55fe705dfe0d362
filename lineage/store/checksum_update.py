"""Keeping checksums.json true: at the end of a run, after a purge, and after a commit of training facts.

A writer of an OUT holds it (lineage.storage.lock) and updates the checksums before it releases the lock. A writer
killed in between leaves facts newer than their checksums; the next update takes them in, and `verify` accepts them if
they are whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
from lineage.index.output_index import INDEX_FILE, Index, read_index
from lineage.storage.folder import Folder
from lineage.store.delta import has_table, state
from lineage.store.tables import APPENDED, WRITTEN_ONCE
from lineage.store.write import FOLDER

WORK: Final = "work"
"""Where unfinished work lies: nothing in it is part of an OUT."""


def update_checksums(out: Folder, index: Index | None = None, rewritten: Collection[str] = ()) -> Checksums:
    """Publish the checksums of everything under `out` that its index does not cover.

    Before index.json is published, give the `index` that will be. Sums taken before are kept, but for the names in
    `rewritten` and for files of another size: so damage done meanwhile is not taken for the right content."""
    known = {entry.file: entry for entry in read_checksums(out).files} if out.exists(CHECKSUMS_FILE) else {}
    sums = []
    for name in files_outside_index(out, index or read_index(out)):
        before = known.get(name)
        if before is None or name in rewritten or _is_pointer(name) or before.bytes != out.size(name):
            before = _named_sum(out, name) or sum_file(out, name)
        sums.append(before)
    checksums = Checksums(files=tuple(sums), tables=tuple(table_sums(out)))
    out.publish(CHECKSUMS_FILE, encode_checksums(checksums))
    return checksums


def update_table_checksums(out: Folder, tables: Collection[str]) -> Checksums:
    """`update_checksums` after nothing but appends to `tables`: only their folders are listed and only new files are
    read, however large the OUT is. StorageError if it has no checksums yet."""
    known = read_checksums(out)
    folders = tuple(f"{FOLDER}/{name}/" for name in tables)
    sums = {entry.file: entry for entry in known.files if not entry.file.startswith(folders)}
    before = {entry.file: entry for entry in known.files if entry.file.startswith(folders)}
    for name in (name for folder in folders for name in out.names(folder.rstrip("/"))):
        entry = None if _is_pointer(name) else before.get(name)
        sums[name] = entry or _named_sum(out, name) or sum_file(out, name)
    table_sums_now = {entry.table: entry for entry in known.tables}
    table_sums_now |= {name: _table_sum(out, name) for name in tables}
    checksums = Checksums(
        files=tuple(sums[name] for name in sorted(sums)),
        tables=tuple(table_sums_now[name] for name in sorted(table_sums_now)),
    )
    out.publish(CHECKSUMS_FILE, encode_checksums(checksums))
    return checksums


def files_outside_index(out: Folder, index: Index) -> list[str]:
    """The files under `out` that `index` does not cover and checksums.json must, sorted."""
    covered = {*index.files(), INDEX_FILE, CHECKSUMS_FILE}
    return [name for name in out.names() if name not in covered and not name.startswith(f"{WORK}/")]


def table_sums(out: Folder) -> Iterator[TableSum]:
    """Every lineage table as it stands, in order of name."""
    for name in sorted({**WRITTEN_ONCE, **APPENDED}):
        if has_table(out, name):
            yield _table_sum(out, name)


def _table_sum(out: Folder, name: str) -> TableSum:
    now = state(out, name)
    return TableSum(table=name, version=now.version, num_rows=now.num_rows)


def named_hash(name: str) -> str | None:
    """The hash (hex) in the name of a table's data file, None for any other file."""
    digest = name.removesuffix(".parquet").rpartition("-")[2]
    is_data = name.startswith(f"{FOLDER}/") and name.endswith(".parquet") and "/_delta_log/" not in name
    return digest if is_data and len(digest) == 32 and set(digest) <= set("0123456789abcdef") else None


def _named_sum(out: Folder, name: str) -> FileSum | None:
    """The sum of a table's data file, taken from its name: ten billion documents are not read again for it."""
    digest = named_hash(name)
    return None if digest is None else FileSum(file=name, hash=digest, bytes=out.size(name))


def _is_pointer(name: str) -> bool:
    """Whether Delta overwrites this file in place, possibly with as many bytes."""
    return name.endswith("/_delta_log/_last_checkpoint")
