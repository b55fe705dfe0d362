"""What the store says of exports: each has a name, a place, and the version of the corpus that its files
hold.

An export is recorded before its first byte is written (`begun`), so that no purge misses a copy, and again
when it is whole (`finished`). A purge records it again when it has cleaned it, or when a person says that the
copy is none of ours any more (`forgotten`). One that never finished is removed by a purge (`removed`)."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from lineage.index.checksums import CHECKSUMS_FILE
from lineage.index.output_index import INDEX_FILE
from lineage.index.source_keys import made_at
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import same_place
from lineage.store.checksum_update import is_covered, update_table_checksums
from lineage.store.delta import append, read_table
from lineage.store.rows import ExportRow
from lineage.store.tables import SCHEMAS

TABLE: Final = "exports"
BEGUN: Final = "begun"
FINISHED: Final = "finished"
FORGOTTEN: Final = "forgotten"
REMOVED: Final = "removed"


def is_live(row: ExportRow) -> bool:
    """Whether the copy may hold texts or tokens of the corpus."""
    return row.state in (BEGUN, FINISHED)


def now() -> str:
    """This moment as the tables of facts write it: ISO-8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_exports(out: Folder) -> list[ExportRow]:
    """What is known last of every export of the OUT, in order of name."""
    last: dict[str, ExportRow] = {}
    for plain in read_table(out, TABLE).to_pylist():
        row = ExportRow(**plain)
        if row.name not in last or row.fact > last[row.name].fact:
            last[row.name] = row
    return [last[name] for name in sorted(last)]


def original_of(out: Folder, name: str, place: str) -> Folder | None:
    """The output of which this one is a copy, and whose export of that name lies at `place`.

    Its purges clean what lies there; those of a copy would take out other documents, and each would bring
    back what the other took."""
    made = made_at(out)
    original = None if made is None else Folder(made)
    if original is None or same_place(original, out) or not original.exists(INDEX_FILE):
        return None
    theirs = [row for row in read_exports(original) if (row.name, row.place) == (name, place)]
    return original if any(map(is_live, theirs)) else None


def check_name(rows: list[ExportRow], name: str, place: str) -> None:
    """RecipeError if another live export has the `name`, or lies at `place` under another name."""
    for row in rows:
        if is_live(row) and row.name == name and row.place != place:
            raise RecipeError(
                f"an export named {name!r} is recorded already, at {row.place}: give this one another --name"
            )
        if is_live(row) and row.place == place and row.name != name:
            raise RecipeError(
                f"{place} holds the export {row.name!r}: give --name {row.name}, or another --to"
            )


def cover_exports(out: Folder) -> None:
    """Bring checksums.json up to date where a call that recorded an export failed before it did. The caller
    holds the OUT."""
    if not is_covered(out, (TABLE,)):
        update_table_checksums(out, (TABLE,))


def record_export(out: Folder, row: ExportRow) -> ExportRow:
    """Append `row` as the last fact on its export and bring checksums.json up to date; the row as it was
    written. The caller holds the OUT."""
    known = [plain["fact"] for plain in read_table(out, TABLE).to_pylist() if plain["name"] == row.name]
    numbered = replace(row, fact=max(known, default=-1) + 1)
    append(
        out,
        TABLE,
        pa.Table.from_pylist([asdict(numbered)], schema=SCHEMAS[TABLE]),
        f"export:{row.name}:{numbered.fact}",
    )
    if out.exists(CHECKSUMS_FILE):
        update_table_checksums(out, (TABLE,))
    return numbered
