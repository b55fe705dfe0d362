"""An output of an earlier release lacks columns that its tables have had since: it opens, and shows null."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lineage.store import tables
from lineage.store.digest import logical_digest
from lineage.store.sql import query
from lineage.verify.output import verify
from tests.support.outputs.small_out.hooks import verify_hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out


def without_later_columns(name: str, rows: pa.Table) -> pa.Table:
    return rows.drop_columns(
        [column for column in tables.COLUMNS_ADDED_LATER.get(name, ()) if column in rows.schema.names]
    )


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallOut:
    with monkeypatch.context() as patched:
        for name, later in tables.COLUMNS_ADDED_LATER.items():
            schema = pa.schema([field for field in tables.WRITTEN_ONCE[name] if field.name not in later])
            patched.setitem(tables.WRITTEN_ONCE, name, schema)
        return make_small_out(str(tmp_path / "out"), tamper=without_later_columns)


@pytest.mark.parametrize("name", tables.COLUMNS_ADDED_LATER)
def test_views_show_null_for_columns_that_came_later(old: SmallOut, name: str) -> None:
    later = sorted(tables.COLUMNS_ADDED_LATER[name])
    rows = query(old.folder, f"SELECT count(*), {', '.join(f'count({column})' for column in later)} FROM {name}").rows
    assert rows[0][0] > 0
    assert tuple(rows[0][1:]) == (0,) * len(later)


def test_what_is_asked_of_an_output_is_answered_without_them(old: SmallOut) -> None:
    assert not verify(old.folder, verify_hooks()).problems
    assert len(logical_digest(old.folder)) == len(tables.WRITTEN_ONCE)


def test_a_column_that_lacks_for_another_reason_is_asked_for() -> None:
    assert tables.stored("documents", ["doc_id"]) == [
        column for column in tables.DOCUMENTS.names if column not in tables.COLUMNS_ADDED_LATER["documents"]
    ]
