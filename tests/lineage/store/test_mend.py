"""Commits that a power cut took are made again from the files that they named, by the same call."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lineage.storage.folder import Folder
from lineage.store.checksum_update import update_table_checksums
from lineage.store.delta import StoreError, append, open_table, read_table
from lineage.store.log_files import commit_name, log_folder, versions
from lineage.store.mend import mend_tables
from lineage.store.tables import SCHEMAS, TABLES
from tests.support.outputs.purging import assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import SmallOut

Lose = Callable[[str], None]


def empty(path: str) -> None:
    os.truncate(path, 0)


def halve(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


@pytest.mark.parametrize("lose", [empty, halve, os.unlink], ids=["empty", "cut", "gone"])
def test_every_first_commit_is_made_again(template: SmallOut, out: Folder, lose: Lose) -> None:
    before = {name: _sorted(read_table(template.folder, name)) for name in TABLES}
    for name in TABLES:
        lose(out.at(commit_name(name, 0)))
    with pytest.raises(StoreError):
        open_table(out, "documents")
    assert set(mend_tables(out)) == set(TABLES)
    assert {name: _sorted(read_table(out, name)) for name in TABLES} == before
    assert_whole(out)
    assert mend_tables(out) == ()


def test_a_commit_that_was_staged_and_never_came_is_no_part_of_an_output(
    template: SmallOut, out: Folder
) -> None:
    """deltalake leaves what it staged where the disk failed under it."""
    staged = f"{commit_name('cache_sweeps', 1)}#1"
    out.write(staged, b"")
    assert_whole(out)
    purge(out, by_doc(template.named["original"]))
    row = dict.fromkeys(SCHEMAS["cache_sweeps"].names, "a")
    assert append(out, "cache_sweeps", pa.Table.from_pylist([row], SCHEMAS["cache_sweeps"]), "one")
    update_table_checksums(out, ["cache_sweeps"])
    assert not out.exists(staged) and "#" not in out.read("checksums.json").decode()
    assert_whole(out)


@pytest.mark.parametrize("lose", [empty, os.unlink], ids=["empty", "gone"])
def test_a_purge_whose_commits_were_lost_after_it_returned_is_made_whole_by_the_same_call(
    template: SmallOut, out: Folder, lose: Lose
) -> None:
    match = by_doc(template.named["original"])
    applied = purge(out, match)
    rows = {name: _sorted(read_table(out, name)) for name in ("purged", "purges")}
    for name in rows:
        lose(out.at(commit_name(name, 1)))
    again = purge(out, match)
    assert again.purge_id is None and len(again.plan.already) == applied.plan.num_documents
    assert {name: _sorted(read_table(out, name)) for name in rows} == rows
    assert_whole(out)


def test_several_purges_are_made_again_in_their_order(template: SmallOut, out: Folder) -> None:
    for name in ("original", "first"):
        purge(out, by_doc(template.named[name]))
    in_order = [_sorted(read_table(out, "purges", version)) for version in range(3)]
    for version in (1, 2):
        empty(out.at(commit_name("purges", version)))
    assert mend_tables(out) == ("purges",)
    assert [_sorted(read_table(out, "purges", version)) for version in range(3)] == in_order
    assert_whole(out)


def test_a_commit_whose_file_was_lost_too_is_refused_naming_the_table(
    template: SmallOut, out: Folder
) -> None:
    match = by_doc(template.named["original"])
    purge(out, match)
    empty(out.at(commit_name("purges", 1)))
    [fact] = Path(out.at("lineage/purges")).glob("fact-*.parquet")
    fact.unlink()
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"lineage/purges has lost a commit .*restore .*lineage/purges from a copy"
        ):
            purge(out, match)


def test_facts_whose_rows_do_not_say_their_transaction_are_made_again_once(out: Folder) -> None:
    rows = _sweep(0)
    append(out, "cache_sweeps", rows, "run:cache_sweeps:7")
    update_table_checksums(out, ("cache_sweeps",))
    os.unlink(out.at(commit_name("cache_sweeps", 1)))
    assert mend_tables(out) == ("cache_sweeps",)
    append(out, "cache_sweeps", rows, "run:cache_sweeps:7")
    update_table_checksums(out, ("cache_sweeps",))
    assert read_table(out, "cache_sweeps").num_rows == 1
    assert_whole(out)


def test_a_cut_commit_that_nothing_covers_never_was(out: Folder) -> None:
    rows = _sweep(0)
    append(out, "cache_sweeps", rows, "one")
    empty(out.at(commit_name("cache_sweeps", 1)))
    assert append(out, "cache_sweeps", rows, "one")
    update_table_checksums(out, ("cache_sweeps",))
    assert read_table(out, "cache_sweeps").num_rows == 1
    assert_whole(out)


def test_checkpoints_that_were_lost_are_left_out(out: Folder) -> None:
    for number in range(12):
        append(out, "exports", _export(number), f"export:one:{number}")
    update_table_checksums(out, ("exports",))
    log = Path(out.at(log_folder("exports")))
    checkpoints = [path.name for path in log.iterdir() if path.name.endswith(".checkpoint.parquet")]
    assert checkpoints
    for name in (*checkpoints, "_last_checkpoint"):
        empty(str(log / name))
    empty(out.at(commit_name("exports", 12)))
    assert mend_tables(out) == ("exports",)
    assert versions(out, "exports") == list(range(13))
    assert DeltaTable(out.at("lineage/exports")).version() == 12
    assert read_table(out, "exports").num_rows == 12


def test_what_was_staged_for_a_commit_that_failed_is_removed(out: Folder) -> None:
    staged = Path(out.at(f"{commit_name('purges', 1)}#1"))
    staged.write_bytes(b"{}")
    assert mend_tables(out) == ()
    assert not staged.exists()


def _sorted(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def _sweep(number: int) -> pa.Table:
    row = {
        "run": "run",
        "out": "out",
        "host": "host",
        "folder": "folder",
        "content_fingerprint": "0",
        "at": str(number),
    }
    return pa.Table.from_pylist([row], SCHEMAS["cache_sweeps"])


def _export(number: int) -> pa.Table:
    row = {
        name: 0 if SCHEMAS["exports"].field(name).type == pa.int64() else ""
        for name in SCHEMAS["exports"].names
    }
    return pa.Table.from_pylist(
        [{**row, "name": "one", "state": "begun", "fact": number}], SCHEMAS["exports"]
    )
