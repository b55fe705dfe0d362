"""What a power cut or a failed writer left in a table's log: no part of an output, and removed by the next writer."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
import pytest

from lineage.storage.folder import Folder
from lineage.store.checksum_update import update_table_checksums
from lineage.store.delta import StoreError, append, open_table, read_table
from lineage.store.log_files import commit_name
from lineage.store.tables import SCHEMAS, TABLES
from tests.support.outputs.purging import assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import SmallOut


def empty(path: str) -> None:
    os.truncate(path, 0)


def halve(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


@pytest.mark.parametrize("lose", [empty, halve, os.unlink], ids=["empty", "cut", "gone"])
@pytest.mark.parametrize("name", TABLES)
def test_a_commit_that_was_covered_and_is_damaged_is_named(
    name: str, lose: Callable[[str], None], out: Folder
) -> None:
    lost = commit_name(name, 0)
    lose(out.at(lost))
    with pytest.raises(StoreError, match=f"{lost} is damaged: .*restore the file from a copy"):
        open_table(out, name)


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


def test_a_cut_commit_that_nothing_covers_never_was(out: Folder) -> None:
    rows = _sweep(0)
    append(out, "cache_sweeps", rows, "one")
    empty(out.at(commit_name("cache_sweeps", 1)))
    assert append(out, "cache_sweeps", rows, "one")
    update_table_checksums(out, ("cache_sweeps",))
    assert read_table(out, "cache_sweeps").num_rows == 1
    assert_whole(out)


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
