"""The lineage store: Delta tables under `OUT/lineage/`, created once by a run and appended to exactly once
after.

Only `lineage` touches the Delta log. The protocol: every commit carries an application transaction id; the id
is looked up in a freshly opened table before each attempt, because a repeated id is refused from a stale
snapshot but accepted from a fresh one. Rows are never updated or deleted. deltalake syncs nothing that it
writes to disk: so each commit is synced here, with its folders, before the call that made it returns.

Versions: a corpus is version 1 after its run and one more after each purge, as index.json counts. `purges`
gains exactly one commit a purge, so version V of the corpus is Delta version V - 1 of `purges`; rows of
`purged` count at V if their purge does. Everything else a run wrote never changes, and training facts are
shown whole at every version."""

from __future__ import annotations

import json
import os
import random
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from lineage.ids import content_hash
from lineage.index.checksums import DamagedFileError
from lineage.storage.folder import Folder, StorageError, delta_options
from lineage.store.checked import DataFiles, LogSums
from lineage.store.log_files import drop_cut_files, drop_staged, sync_log

if TYPE_CHECKING:
    import pyarrow as pa

    from lineage.store.write import TableFile

RUN_TRANSACTION: Final = "run"
"""The application transaction id of a run's own commits."""

FIRST_VERSION: Final = 1
"""The version of a corpus that nothing was purged from."""

_ATTEMPTS: Final = 100
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "10",
    # History is evidence: old versions stay readable, and no commit file is ever cleaned up.
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}
_FILES_WORTH_A_CHECKPOINT: Final = 256

FILES_WORTH_GATHERING = 64
"""From how many files on the facts of training are written again as one."""

_FENCE: Final = "rewrite-fence"


class StoreError(ValueError):
    """The store is missing, damaged or asked for what it does not have; the message says which and what to
    do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table as it stands: its Delta version, its rows, and its files within the table's folder, sorted."""

    version: int
    num_rows: int
    files: tuple[str, ...]


def table_uri(out: Folder, name: str) -> str:
    """Where table `name` of the run at `out` lies."""
    return out.at(f"lineage/{name}")


ADVICE: Final = "Make the same call again where the store failed, else run sluice verify"
"""What to do about a file that cannot be read."""


def plain_reason(error: Exception | str) -> str:
    """deltalake's message in one line: it colours its errors and draws them as a tree."""
    return " ".join(re.sub("\x1b\\[[0-9;]*m|↳|├─>|╰─>|│", " ", str(error)).split())


@contextmanager
def _naming_the_table(uri: str) -> Iterator[None]:
    """deltalake's failures to write as a StorageError in one line that names the table, where its own names
    no place. A commit that lost a race is left as it is: its caller tries again."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise StorageError(f"the lineage table at {uri} cannot be written: {plain_reason(error)}") from error


def open_table(out: Folder, name: str, version: int | None = None, sums: LogSums | None = None) -> DeltaTable:
    """Table `name`, freshly opened, at a Delta version or the latest; StoreError if it is not there, or if
    its log is not as checksums.json says. A caller that opens many tables reads `sums` once for all."""
    uri = table_uri(out, name)
    try:
        (sums or log_sums(out)).check(name, version)
        return DeltaTable(uri, version=version, storage_options=delta_options(uri))
    except TableNotFoundError as error:
        raise StoreError(
            f"no lineage table {name!r} at {uri}: give the output folder of a finished run (sluice run"
            f" RECIPE)"
        ) from error
    except DamagedFileError as error:
        raise StoreError(str(error)) from error
    except (DeltaError, OSError) as error:
        if out.is_remote:
            out.exists("index.json")  # where it is the store that fails, this says so
        at = "" if version is None else f" at version {version}"
        raise StoreError(
            f"the lineage table at {uri} cannot be opened{at}: {plain_reason(error)}. Run sluice verify"
        ) from error


def log_sums(out: Folder) -> LogSums:
    """What checksums.json holds of the tables' logs; StoreError if it is damaged."""
    try:
        return LogSums(out)
    except DamagedFileError as error:
        raise StoreError(str(error)) from error


def commit_tables(
    out: Folder,
    files: Mapping[str, Sequence[TableFile]],
    only: Collection[str] = (),
    added: Sequence[str] = (),
    *,
    has_cuts: bool = False,
) -> None:
    """Make the written files the tables of the run at `out`, every table in one commit, tables without files
    too. With `only`, no other tables. `added` are the columns that `documents` has besides; `has_cuts`:
    whether `edits` is tables.CUTS.

    Calling it again, after a kill or at once from two processes, changes nothing; StoreError if a table is
    there already with other files."""
    from lineage.store.tables import CUTS, SCHEMAS, WRITTEN_ONCE, with_added

    out.sync()  # the files are on the disk before a commit names them
    own = {
        "documents": with_added(SCHEMAS["documents"], added),
        "edits": CUTS if has_cuts else SCHEMAS["edits"],
    }
    for name, schema in {**SCHEMAS, **own}.items():
        if only and name not in only:
            continue
        given = files.get(name, ()) if name in WRITTEN_ONCE else ()
        if not create_table(out, name, schema, given) and name in WRITTEN_ONCE:
            _check_same_files(out, name, given)
        sync_log(out, name, 0)
    out.sync()


def create_table(out: Folder, name: str, schema: pa.Schema, files: Sequence[TableFile]) -> bool:
    """Create the table with its files in one commit; False if it is there already. The caller syncs its
    log."""
    uri = table_uri(out, name)
    options = delta_options(uri)
    if not out.is_remote:
        os.makedirs(uri, exist_ok=True)
        drop_staged(out, name)
        drop_cut_files(out, name, log_sums(out).names(name))
    with _naming_the_table(uri):
        if DeltaTable.is_deltatable(uri, options):
            return False
        try:
            create_table_with_add_actions(
                uri,
                Schema.from_arrow(schema),
                _adds(files),
                configuration=_configuration(name),
                storage_options=options,
                commit_properties=CommitProperties(app_transactions=[Transaction(RUN_TRANSACTION, 1)]),
            )
        except DeltaError:
            if DeltaTable.is_deltatable(uri, options):
                return False
            raise
        if len(files) > _FILES_WORTH_A_CHECKPOINT:
            DeltaTable(uri, storage_options=options).create_checkpoint()
    return True


def _configuration(name: str) -> dict[str, str]:
    """The table's properties. Which columns have statistics must be declared: deltalake's Arrow datasets take
    a column that is not declared to have them, and has none, for one that no filter can match, and answer
    with no rows."""
    from lineage.store.tables import TABLES

    if pruned_by := TABLES[name].pruned_by:
        return {**_CONFIGURATION, "delta.dataSkippingStatsColumns": ",".join(pruned_by)}
    return {**_CONFIGURATION, "delta.dataSkippingNumIndexedCols": "0"}


def _check_same_files(out: Folder, name: str, files: Sequence[TableFile]) -> None:
    there, given = set(state(out, name).files), {file.path for file in files}
    if there != given:
        raise StoreError(
            f"the lineage table {name!r} at {out.url} was written by another run: it has {len(there - given)}"
            f" files "
            f"that this run did not write and lacks {len(given - there)}. Give the run a new output folder"
        )


def append(out: Folder, name: str, rows: pa.Table, transaction_id: str) -> bool:
    """Append `rows` to an appended table exactly once under `transaction_id`; False if they are there
    already.

    Safe under races and kills: a second call with the same id, at once or later, appends nothing. StoreError
    if no commit succeeds in many attempts."""
    from lineage.store.tables import SCHEMAS
    from lineage.store.write import publish_rows, table_folder

    schema = SCHEMAS[name]
    rows = rows.select(schema.names).cast(schema)
    sums = log_sums(out)
    drop_cut_files(out, name, sums.names(name))
    table = open_table(out, name, sums=sums)
    # The name holds the transaction id: so no other transaction can refer to a file that is removed below.
    prefix = f"fact-{content_hash(transaction_id.encode()).hex()[:16]}"
    if table.transaction_version(transaction_id) is not None:
        _sync_commits(out, name, table.version() - 1)  # the call that committed may have died before
        _drop_others(out, name, prefix, _paths(table), sums)
        return False
    file = publish_rows(out, name, prefix, rows)
    out.sync()
    for attempt in range(_ATTEMPTS):
        # Opened anew before each attempt: Delta refuses a transaction id that was committed after the
        # snapshot, and takes one that the snapshot already holds. So the id is looked up in the snapshot that
        # the commit starts from.
        table = open_table(out, name)
        before = table.version()
        if table.transaction_version(transaction_id) is not None:
            _sync_commits(out, name, before - 1)
            if file.path not in _paths(table):
                table_folder(out, name).remove(file.path)
            return False
        try:
            commit_file(table, name, file, transaction_id)
        except CommitFailedError:
            time.sleep(random.uniform(0, min(1.0, 0.01 * 2 ** min(attempt, 7))))
        else:
            _sync_commits(out, name, before)
            _drop_others(out, name, prefix, [file.path], sums)
            _gather(out, name)
            return True
    raise StoreError(
        f"{table_uri(out, name)}: {_ATTEMPTS} commits lost the race; is another writer stuck? Try again"
    )


def commit_file(table: DeltaTable, name: str, file: TableFile, transaction_id: str) -> None:
    """Append a written file in one commit; CommitFailedError if it lost a race. The caller syncs the log."""
    from lineage.store.tables import SCHEMAS

    with _naming_the_table(table.table_uri):
        table.create_write_transaction(
            _adds([file]),
            "append",
            Schema.from_arrow(SCHEMAS[name]),
            commit_properties=CommitProperties(app_transactions=[Transaction(transaction_id, 1)]),
        )


def _sync_commits(out: Folder, name: str, first: int) -> None:
    """Return when the table's log is on the disk, from version `first` on."""
    sync_log(out, name, first)
    out.sync()


def _gather(out: Folder, name: str) -> None:
    """Write many small files of facts again as one: a long run commits thousands, and every trace reads them.

    One commit removes and adds, in place of deltalake's `compact`, of which two at once double rows. The
    fence makes rewriters collide; the loser, to another rewriter or to an append, leaves it to a later
    append."""
    from lineage.store.tables import SCHEMAS, TABLES
    from lineage.store.write import publish_rows, table_folder

    table = open_table(out, name)
    if not TABLES[name].is_gathered or len(table.file_uris()) < FILES_WORTH_GATHERING:
        return
    actions = table.get_add_actions(flatten=True)
    olds = [
        (path.as_py(), size.as_py())
        for path, size in zip(actions["path"], actions["size_bytes"], strict=True)
    ]
    rows = read_table(out, name, table.version())
    # Two rewriters of one snapshot would each add all rows. Both claim the next number of one application
    # transaction, which Delta takes for a conflict: so one commits. Without retries, because the loser loses
    # nothing by giving up.
    number = (table.transaction_version(_FENCE) or 0) + 1
    fence = Transaction(_FENCE, number)
    # A name of its own: the loser's file can be removed without touching another rewriter's. With the number,
    # so that who commits it knows what rewriters left that died before.
    prefix = f"facts-{number:08d}"
    file = publish_rows(out, name, f"{prefix}-{uuid.uuid4().hex[:16]}", rows)
    out.sync()
    now = time.time_ns() // 1_000_000
    try:
        with _naming_the_table(table_uri(out, name)):
            table.create_write_transaction(
                [*(RemoveAction(path, True, now, size, {}) for path, size in olds), *_adds([file])],
                "append",
                Schema.from_arrow(SCHEMAS[name]),
                commit_properties=CommitProperties(max_commit_retries=0, app_transactions=[fence]),
            )
    except CommitFailedError:
        table_folder(out, name).remove(file.path)
    else:
        _sync_commits(out, name, table.version() - 1)
        _drop_others(out, name, prefix, [file.path], log_sums(out))


def _drop_others(out: Folder, name: str, prefix: str, committed: Collection[str], sums: LogSums) -> None:
    """Remove what calls that failed or died left of files with this prefix, one of which is `committed`: of
    no other can a commit come. One that was gathered since is in earlier versions of the table, and stays; so
    does one that was summed meanwhile."""
    from lineage.store.write import table_folder

    folder = table_folder(out, name)
    # Of every fact: one that a newer took the place of before its commit is appended by no later call.
    folder.drop_dead("fact")
    if not out.is_remote and any(path.startswith(prefix) for path in committed):
        for path in os.listdir(folder.url):
            is_other = path.startswith(f"{prefix}-") and path not in committed
            if is_other and not sums.has(f"lineage/{name}/{path}"):
                folder.remove(path)


def append_run(out: Folder, row: pa.Table) -> bool:
    """Record a training run: one row of `training_runs`, again whenever its plan was edited (same run and
    output, another plan_fingerprint than its newest row has). False if that row says it already; StoreError
    if the name belongs to another output.

    The n-th fact of a run is one transaction: of two that claim a name at once, one wins and the other
    compares."""
    import pyarrow as pa

    assert row.num_rows == 1, f"append_run takes one row, not {row.num_rows}"
    given = row.to_pylist()[0]
    run = given["run"]
    while True:
        known = [fact for fact in read_table(out, "training_runs").to_pylist() if fact["run"] == run]
        for fact in known:
            if fact["output"] != given["output"]:
                raise StoreError(
                    f"run {run!r} is recorded in {out.url} with the output {fact['output']!r}, "
                    f"not {given['output']!r}: give this run another run.name"
                )
        newest = max(known, key=lambda fact: fact["fact"] or 0, default=None)
        if newest is not None and newest["plan_fingerprint"] == given["plan_fingerprint"]:
            return False
        numbered = row.drop_columns([name for name in ("fact",) if name in row.column_names])
        numbered = numbered.append_column("fact", pa.array([len(known)], pa.int64()))
        if append(out, "training_runs", numbered, f"run:{run}:{len(known)}"):
            return True


def state(out: Folder, name: str) -> TableState:
    """How table `name` stands: what checksums.json records."""
    table = open_table(out, name)
    actions = table.get_add_actions(flatten=True)
    num_rows = sum(value.as_py() for value in actions["num_records"])
    return TableState(version=table.version(), num_rows=num_rows, files=tuple(sorted(_paths(table))))


def arrow_dataset(out: Folder, name: str, version: int | None = None, sums: LogSums | None = None) -> Any:
    """The table as an Arrow dataset. What its readers read is checked: a damaged file is an error that names
    it, not a wrong answer."""
    import pyarrow.dataset as ds
    from pyarrow import fs

    from lineage.store.arrow_table import CheckedDataset

    local = None if out.is_remote else fs.SubTreeFileSystem(table_uri(out, name), fs.LocalFileSystem())
    table = open_table(out, name, version, sums)
    plain = table.to_pyarrow_dataset(filesystem=local)
    # Buffered ahead, a file's columns lie in memory until its last row is read; an object store is slow without it.
    options = ds.ParquetFragmentScanOptions(pre_buffer=out.is_remote, page_checksum_verification=True)
    checked = ds.ParquetFileFormat(default_fragment_scan_options=options)
    fragments = [
        checked.make_fragment(
            piece.path, filesystem=piece.filesystem, partition_expression=piece.partition_expression
        )
        for piece in plain.get_fragments()
    ]
    files = DataFiles(out.folder(f"lineage/{name}"))
    return CheckedDataset(fragments, plain.schema, checked).checked_by(files, num_rows(table))


def num_rows(table: DeltaTable) -> dict[str, int]:
    """The rows of each file of a table, by its path within the table's folder."""
    actions = table.get_add_actions(flatten=True)
    return {
        path.as_py(): number.as_py()
        for path, number in zip(actions["path"], actions["num_records"], strict=True)
    }


def read_table(out: Folder, name: str, version: int | None = None, sums: LogSums | None = None) -> pa.Table:
    """The whole table as Arrow, in no particular order: for tables that fit in memory. A caller that reads
    many reads `sums` once for all."""
    import pyarrow as pa

    from lineage.store.tables import SCHEMAS, conform

    schema = SCHEMAS[name]
    dataset = arrow_dataset(out, name, version, sums)
    try:
        return conform(dataset.to_table(columns=schema.names), schema)
    except DamagedFileError as error:
        raise StoreError(str(error)) from error
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"a file of {table_uri(out, name)} cannot be read: {plain_reason(error)}. {ADVICE}"
        ) from error


def corpus_version(out: Folder) -> int:
    """The corpus's version now: 1 after the run, and one more for each purge that is complete."""
    return FIRST_VERSION + int(open_table(out, "purges").version())


def check_version(out: Folder, version: int) -> None:
    """StoreError unless the corpus has had `version`."""
    latest = corpus_version(out)
    if not FIRST_VERSION <= version <= latest:
        raise StoreError(
            f"version {version}: this corpus has versions {FIRST_VERSION} to {latest}, one more a purge"
        )


def read_purges(out: Folder, version: int) -> pa.Table:
    """The purges that made `version` of the corpus; StoreError if the corpus never had that version."""
    check_version(out, version)
    return read_table(out, "purges", version - FIRST_VERSION)


def _paths(table: DeltaTable) -> list[str]:
    return [value.as_py() for value in table.get_add_actions(flatten=True)["path"]]


def _adds(files: Sequence[TableFile]) -> list[AddAction]:
    now = time.time_ns() // 1_000_000
    return [
        AddAction(file.path, file.size, {}, now, True, json.dumps(json.loads(file.stats))) for file in files
    ]
