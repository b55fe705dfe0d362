"""An output of an earlier release lacks columns that its tables have had since: it opens, and shows null."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lineage.store import tables
from lineage.store.digest import logical_digest
from lineage.store.lookup import Lookup
from lineage.verify.output import verify
from tests.support.outputs.lineage_query import query
from tests.support.outputs.small_out.hooks import verify_hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import make_records

LATER = [name for name, table in tables.TABLES.items() if table.columns_since]


def without_later_columns(name: str, rows: pa.Table) -> pa.Table:
    later = tables.TABLES[name].columns_since if name in tables.TABLES else ()
    return rows.drop_columns([column for column in later if column in rows.schema.names])


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallOut:
    with monkeypatch.context() as patched:
        for name in LATER:
            later = tables.TABLES[name].columns_since
            schema = pa.schema([field for field in tables.SCHEMAS[name] if field.name not in later])
            patched.setitem(tables.SCHEMAS, name, schema)
        return make_small_out(str(tmp_path / "out"), tamper=without_later_columns)


def test_a_document_is_looked_up_without_them(old: SmallOut) -> None:
    record = next(record for record in make_records()[0] if record.status == "kept")
    [row] = Lookup(old.folder).documents([record.doc_id])
    assert (row.doc_id, row.domain, row.truncated) == (record.doc_id, None, None)


@pytest.mark.parametrize("name", LATER)
def test_views_show_null_for_columns_that_came_later(old: SmallOut, name: str) -> None:
    later = sorted(tables.TABLES[name].columns_since)
    rows = query(
        old.folder, f"SELECT count(*), {', '.join(f'count({column})' for column in later)} FROM {name}"
    ).rows
    assert rows[0][0] > 0
    assert tuple(rows[0][1:]) == (0,) * len(later)


def test_what_is_asked_of_an_output_is_answered_without_them(old: SmallOut) -> None:
    assert not verify(old.folder, verify_hooks()).problems
    assert len(logical_digest(old.folder)) == len(tables.WRITTEN_ONCE)


def test_a_column_that_lacks_for_another_reason_is_asked_for() -> None:
    assert tables.stored("documents", ["doc_id"]) == [
        column
        for column in tables.SCHEMAS["documents"].names
        if column not in tables.TABLES["documents"].columns_since
    ]


def test_no_table_and_no_column_is_of_a_later_layout_than_the_next_releases() -> None:
    for name, spec in tables.TABLES.items():
        assert all(1 <= since <= tables.LAYOUT for since in (spec.since, *spec.columns_since.values())), name
