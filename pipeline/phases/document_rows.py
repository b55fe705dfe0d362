"""Joining what was found out about a unit's documents: its own facts, the verdicts of comparison, the
placements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.store import tables
from lineage.store.column_names import added_columns

_Rows = npt.NDArray[np.int64]


def join_unit(documents: pa.Table, verdicts: pa.Table, placements: pa.Table) -> pa.Table:
    """A unit's final rows of `documents`, with the columns that the recipe adds, in the order of `documents`.

    `documents` holds every document record of the unit, `verdicts` (tables.VERDICTS) and `placements`
    (part_row, shard, start, num_tokens, tokens_hash, bucket) some of its survivors; all three know a survivor
    by its part_row."""
    part_rows = _integers(documents["part_row"])
    of_verdict = _matching(part_rows, _integers(verdicts["part_row"]))
    of_placement = _matching(part_rows, _integers(placements["part_row"]))
    columns: dict[str, object] = {name: documents[name] for name in documents.column_names}
    for name in tables.VERDICTS.names[tables.VERDICTS.names.index("status") :]:
        columns[name] = pc.coalesce(
            verdicts[name].combine_chunks().take(of_verdict), documents[name].combine_chunks()
        )
    for name in ("shard", "start", "num_tokens", "tokens_hash", "bucket"):
        columns[name] = placements[name].combine_chunks().take(of_placement)
    schema = tables.with_added(tables.SCHEMAS["documents"], added_columns(documents.column_names))
    return pa.table(columns, schema=schema)


def shorten(rows: pa.Table, shortened: pa.Table) -> pa.Table:
    """Rows of a unit's documents or keys with what tables.SHORTENED says of texts that were cut."""
    at = _matching(_integers(rows["part_row"]), _integers(shortened["part_row"]))
    is_cut = pc.is_valid(at)
    for name in ("num_chars", "clean_hash", "signature"):
        if name in rows.column_names:
            place = rows.schema.get_field_index(name)
            values = pc.if_else(
                is_cut, shortened[name].combine_chunks().take(at), rows[name].combine_chunks()
            )
            rows = rows.set_column(place, rows.schema.field(place), values)
    return rows


def _integers(column: pa.ChunkedArray) -> _Rows:
    return np.asarray(pc.fill_null(column, -1).to_numpy(), dtype=np.int64)


def _matching(wanted: _Rows, present: _Rows) -> pa.Array:
    """For each wanted part_row the row that holds it in `present`, or null."""
    size = int(max(wanted.max(initial=-1), present.max(initial=-1))) + 2
    row_of = np.full(size, -1, dtype=np.int64)
    row_of[present] = np.arange(len(present))
    found = np.where(wanted >= 0, row_of[wanted], -1)
    return pa.array(found, mask=found < 0)


def kept_keys(keys: pa.Table, joined: pa.Table, source: str) -> pa.Table:
    """Rows of tables.DEDUP: what later runs compare with, of the unit's documents that were kept."""
    survivors = joined.filter(pc.is_valid(joined["part_row"]))
    assert survivors.num_rows == keys.num_rows
    kept = keys.filter(pc.equal(survivors["status"], "kept"))
    columns = {name: kept[name] for name in tables.DEDUP.names if name in keys.column_names}
    columns["source"] = pa.array([source] * kept.num_rows, pa.string())
    columns["part"] = pc.cast(kept["file_index"], pa.int64())
    return pa.table({name: columns[name] for name in tables.DEDUP.names}, schema=tables.DEDUP)
