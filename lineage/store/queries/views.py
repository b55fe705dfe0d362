"""The views that SQL and JSON show, as DuckDB definitions over the store's tables.

Hashes and ids are 32 hex digits, NaN is null, purges are an overlay: nothing is deleted, `purged` names the
purge. The tables themselves are registered under their name with a leading underscore."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

import pyarrow as pa

from lineage.store.column_names import SIGNALS, added_columns, added_to_edits
from lineage.store.tables import CUTS, SCHEMAS, TABLES, TableSpec


def _columns_of(table: TableSpec) -> tuple[str, ...]:
    shown = [name for name in table.schema.names if name != "k" and name not in table.hidden]
    return (*shown, "purged") if table.names_purge else tuple(shown)


COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    name: _columns_of(table) for name, table in TABLES.items() if table.has_view
}
"""The columns of each view, in order."""

_FIELD_TYPES: Final = dict.fromkeys(("kind", "where", "value", "meaning"), "VARCHAR")
_SIGNALS_READ: Final = f"from_json(\"{SIGNALS}\", '{json.dumps([_FIELD_TYPES])}')"
_PURGE_OF_DOCUMENT: Final = (
    "SELECT doc_id, arg_max(purge_id, (coalesce(ended_at, ''), purge_id)) AS purged"
    ' FROM _purged LEFT JOIN (SELECT purge_id, "at" FROM _purges) AS ended(purge_id, ended_at) USING (purge_id)'
    " GROUP BY doc_id"
)
"""The last, as `trace` names it; one that has not ended has no time yet."""


def definition(view: str, present: Collection[str]) -> str:
    """The CREATE VIEW statement of `view`, one of COLUMNS, over a table with these columns; those that a
    recipe added are shown as they are."""
    schema = SCHEMAS[view]
    shown = [_show(column, schema) for column in COLUMNS[view]]
    shown += [_show(column, CUTS) for column in added_to_edits(present) if view == "edits"]
    columns = ", ".join([*shown, *map(_show_added, added_columns(present))])
    return f"CREATE VIEW {view} AS SELECT {columns} FROM {_rows_of(view)}"


def _show_added(column: str) -> str:
    if column != SIGNALS:
        return f'"{column}"'
    malformed = f"list_filter({_SIGNALS_READ}, lambda signal: signal.meaning = 'malformed')"
    return (
        f"list_transform({_SIGNALS_READ}, lambda signal:"
        " {'kind': signal.kind, 'where': signal.\"where\", 'value': signal.value})"
        f' AS "{SIGNALS}", len({malformed}) AS malformed_{SIGNALS}'
    )


def _rows_of(view: str) -> str:
    table = TABLES[view]
    if table.names_purge:
        return f"_{view} LEFT JOIN ({_PURGE_OF_DOCUMENT}) AS overlay USING (doc_id)"
    if table.newest_of:
        newest = f"row_number() OVER (PARTITION BY {', '.join(table.newest_of)} ORDER BY fact DESC) = 1"
        return f"(SELECT * FROM _{view} QUALIFY {newest})"
    return f"_{view}"


def _show(column: str, schema: pa.Schema) -> str:
    kind = schema.field(column).type if column in schema.names else None
    if kind == pa.binary():
        return f'lower(hex("{column}")) AS "{column}"'
    if kind == pa.float64():
        return f'CASE WHEN isnan("{column}") THEN NULL ELSE "{column}" END AS "{column}"'
    return f'"{column}"'


def text_literal(value: str) -> str:
    """A text as an SQL literal; the only character that means something inside one is the quote."""
    return "'" + value.replace("'", "''") + "'"
