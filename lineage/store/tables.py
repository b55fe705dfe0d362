"""Each table of the lineage store, described once; and the Arrow schemas of the Parquet files beside it.

A table is a row of TABLES: its columns are those of its row class (lineage.store.rows). Schemas, views,
writing order, the statistics that prune files, the logical digest and `sluice verify` are derived from it.

A new table is a row class and a row of TABLES, and the code that makes its rows (a run's:
pipeline/phases/join.py or small_tables.py; derived ones: `write.index_rows`). Hashes and ids are plain binary
of 16 bytes (Delta has no fixed-size binary)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args, get_type_hints

import pyarrow as pa

from lineage.store import rows
from lineage.store.column_names import SCORE, TWIN

_INT, _TEXT, _REAL, _HASH = pa.int64(), pa.string(), pa.float64(), pa.binary()
_ARROW: Final = {int: _INT, str: _TEXT, float: _REAL, bytes: _HASH}

Kind = Literal["fact", "index", "appended"]
"""`fact` and `index`: a run writes it at its end, bucket by bucket, and it never changes after; an index is
derived from `documents`, for lookups, and has no view. `appended`: later facts are appended to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table of the store; its columns are the fields of `row`, in order.

    `has_k`: its first column is `k`, `ids.sort_key` of what rows are looked up by, whose bounds in the Delta
    log prune files. `sorted_by`: the order of rows inside a file. `bounds`: further columns whose minimum and
    maximum stand in the Delta log for each file; they are never null. `hidden`: columns that no view shows.
    `newest_of`: of rows with equal values in these columns the one with the highest `fact` counts.
    `is_gathered`: its facts come often, and their files are written again as one. `names_purge`: its view
    tells which purge took the row's document. `places`: columns that differ between equal runs, because they
    say where an input was."""

    row: type[Any]
    kind: Kind
    has_k: bool = False
    sorted_by: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    newest_of: tuple[str, ...] = ()
    is_gathered: bool = False
    names_purge: bool = False
    places: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        hints = get_type_hints(self.row)
        columns = [(column.name, _arrow_type(hints[column.name])) for column in fields(self.row)]
        return pa.schema([("k", _INT), *columns] if self.has_k else columns)

    @property
    def has_view(self) -> bool:
        """Whether SQL and JSON show it."""
        return self.kind != "index"

    @property
    def pruned_by(self) -> tuple[str, ...]:
        """Every column whose bounds stand in the Delta log."""
        return ("k", *self.bounds) if self.has_k and self.kind != "appended" else self.bounds


def _arrow_type(hint: Any) -> pa.DataType:
    """The Arrow type of `int`, `str`, `float`, `bytes`, or of one of these or None."""
    plain = next((one for one in get_args(hint) if one is not type(None)), hint)
    return _ARROW[plain]


TABLES: Final[dict[str, TableSpec]] = {
    "documents": TableSpec(
        row=rows.DocumentRow, kind="fact", has_k=True, names_purge=True,
        sorted_by=("k", "doc_id", "source", "warc_file", "warc_offset"),
    ),
    "edits": TableSpec(row=rows.EditRow, kind="fact", has_k=True, sorted_by=("k", "doc_id", "stage", "kind", "count")),
    "findings": TableSpec(
        row=rows.FindingRow, kind="fact", has_k=True,
        sorted_by=("k", "doc_id", "stage", "rule", "value", "threshold", "verdict"),
    ),
    "placements": TableSpec(
        row=rows.PlacementRow, kind="fact", names_purge=True,
        sorted_by=("source", "shard", "start"), bounds=("source", "shard", "start"),
    ),
    "steps": TableSpec(row=rows.StepRow, kind="fact", sorted_by=("source", "position")),
    "step_rules": TableSpec(row=rows.StepRuleRow, kind="fact", sorted_by=("source", "stage", "rule")),
    "inputs": TableSpec(
        row=rows.InputRow, kind="fact", sorted_by=("source", "file"), places=frozenset({"file"}),
    ),
    "unreadable": TableSpec(row=rows.UnreadableRow, kind="fact", sorted_by=("source", "file", "offset")),
    "url_index": TableSpec(
        row=rows.ListedRow, kind="index", has_k=True,
        sorted_by=("k", "host", "url", "doc_id", "source", "warc_file", "warc_offset"),
    ),
    "domain_index": TableSpec(
        row=rows.DomainIndexRow, kind="index", has_k=True, sorted_by=("k", "domain", "host", "doc_id"),
    ),
    "warc_index": TableSpec(
        row=rows.WarcIndexRow, kind="index", has_k=True,
        sorted_by=("k", "warc_file", "warc_offset", "source", "doc_k"),
    ),
    "hash_index": TableSpec(row=rows.HashIndexRow, kind="index", has_k=True, sorted_by=("k", "doc_k")),
    "cluster_index": TableSpec(
        row=rows.MemberRow, kind="index", has_k=True, sorted_by=("k", "cluster_id", "doc_id"),
    ),
    "purges": TableSpec(row=rows.PurgeRow, kind="appended"),
    "purged": TableSpec(row=rows.PurgedRow, kind="appended", has_k=True),
    "training_runs": TableSpec(
        row=rows.RunRow, kind="appended", hidden=frozenset({"fact"}), newest_of=("run",),
    ),
    "training_segments": TableSpec(
        row=rows.SegmentRow, kind="appended", is_gathered=True, newest_of=("run", "attempt", "first_step"),
        hidden=frozenset({"fact", "last_checkpoint", "prefix"}),
    ),
    "cache_sweeps": TableSpec(row=rows.SweepRow, kind="appended", is_gathered=True),
    "exports": TableSpec(
        row=rows.ExportRow, kind="appended", hidden=frozenset({"manifest_hash", "fact"}), newest_of=("name",),
    ),
    "reused_steps": TableSpec(row=rows.ReusedStepRow, kind="appended"),
}  # fmt: skip
"""Every table of the store. The order is that in which they are committed."""

SCHEMAS: Final[dict[str, pa.Schema]] = {name: table.schema for name, table in TABLES.items()}
"""The columns of each table as Arrow has them; `documents` may have more (see `with_added`)."""

WRITTEN_ONCE: Final = tuple(name for name, table in TABLES.items() if table.kind != "appended")
"""The tables that a run writes at its end."""

APPENDED: Final = tuple(name for name, table in TABLES.items() if table.kind == "appended")
"""The tables that later facts are appended to."""

CUTS: Final = pa.schema([*SCHEMAS["edits"], *zip(TWIN, (_INT, _HASH, _INT), strict=True)])
"""`edits` where a recipe has repeats cut out of documents ([dedup.inside]): each cut is a row, whose `count` is its
characters. `twin` is null for what stood between two cuts and went with them, as it is for every other edit."""

SHORTENED: Final = pa.schema(
    [("part_row", _INT), ("num_chars", _INT), ("clean_hash", _HASH), ("signature", _HASH)]
)
"""Unit file: what is known of the texts out of which repeats were cut, in order of part_row."""

KEYS: Final = pa.schema([
    ("doc_id", _HASH), ("source_index", pa.int32()), ("file_index", pa.int32()), ("offset", _INT), ("part_row", _INT),
    ("num_chars", _INT), ("captured_at", _TEXT), ("url_key", _HASH), ("clean_hash", _HASH), ("signature", _HASH),
])  # fmt: skip
"""Unit file: a row for each document that survived the filters, in (offset) order. `url_key` is the
BLAKE3-128 of the normalised URL, with its fragment where the source says `fragments` (null where there is
none or it names nothing: see `pages.compared_key`); `signature` the MinHash as num_perm uint32 (or uint64)
little-endian, null where dedup.near is off or the text has no shingle. The locator of a text is
(source_index, file_index, part_row): sources in recipe order, files of a source in sorted name order."""

VERDICTS: Final = pa.schema([
    ("doc_id", _HASH), ("source_index", pa.int32()), ("file_index", pa.int32()), ("part_row", _INT),
    ("cluster_size", _INT), ("status", _TEXT), ("stage", _TEXT), ("rule", _TEXT), ("value", _REAL),
    ("threshold", _REAL), ("cluster_id", _HASH), ("duplicate_of", _HASH), ("similarity", _REAL),
])  # fmt: skip
"""What comparing documents said: a row for each survivor that is a duplicate, or is kept in a cluster of
several. `cluster_size` counts the documents of this run in its cluster, 1 where only identity was found."""

PART: Final = pa.schema([
    ("doc_id", _HASH), ("text", _TEXT), ("url", _TEXT), ("captured_at", _TEXT), ("language", _TEXT),
    ("language_score", _REAL), ("metadata", _TEXT), ("host", _TEXT), ("source", _TEXT), ("record_id", _TEXT),
    ("rule_values", _TEXT),
])  # fmt: skip
"""documents/<source>/part-NNNNN.parquet: clean texts that survived the filters, rows in (file, offset) order.
`record_id` is the record's own id: WARC-Record-ID, or what a row's id_field holds.
`rule_values` is a JSON object of what each rule measured, where the recipe says ledger = "all"."""

PARSED_TEXTS: Final = pa.schema([
    ("doc_id", _HASH), ("text", _TEXT), ("url", _TEXT), ("captured_at", _TEXT), ("metadata", _TEXT),
    ("warc_file", _TEXT), ("warc_offset", _INT), ("warc_length", _INT), ("record_id", _TEXT), ("charset", _TEXT),
    ("raw_hash", _HASH), ("text_hash", _HASH), ("num_bytes", _INT), ("is_html", pa.bool_()), ("content_type", _TEXT),
    ("language", _TEXT), ("language_score", _REAL),
    ("edits", pa.list_(pa.struct([("stage", _TEXT), ("kind", _TEXT), ("count", _INT)]))),
])  # fmt: skip
"""texts/<source>/part-NNNNN.parquet: with run.keep_text, each document that had a text after parse as it was
then, rejected ones too, in reading order. A purge makes `text` and `metadata` null."""

MEASURED: Final = pa.schema([("doc_id", _HASH), ("measured", _TEXT)])
"""Unit file: what the rules of the step quality measured of a document, as a JSON object by rule. Kept beside
parsed texts; a rule that came to no number, or was not asked, is not in it."""

DEDUP: Final = pa.schema([
    ("doc_id", _HASH), ("source", _TEXT), ("part", _INT), ("part_row", _INT), ("num_chars", _INT),
    ("captured_at", _TEXT), ("url_key", _HASH), ("clean_hash", _HASH), ("signature", _HASH),
])  # fmt: skip
"""dedup/<source>/part-NNNNN.parquet: what later runs compare with, a row for each kept document."""

EXCERPTS: Final = pa.schema([
    ("doc_id", _HASH), ("stage", _TEXT), ("rule", _TEXT), ("excerpt", _TEXT), ("choice", _TEXT), ("value", _REAL),
    ("threshold", _REAL), ("marks", pa.list_(_INT)),
])  # fmt: skip
"""What the report shows. `choice` is why it is shown: of the documents that the rule rejected one of the
`least` ids, the `near`est to its threshold or the `far`thest from it, or a near miss that `passed` every
step; null for members of large clusters. `marks` are the lines of the excerpt, from 0, that count against it."""

SHARD_INDEX: Final = pa.schema(
    [("doc_id", _HASH), ("start", _INT), ("num_tokens", _INT), ("tokens_hash", _HASH)]
)

DICTIONARY: Final = frozenset({
    "source", "host", "domain", "truncated", "warc_file", "charset", "language", "status", "stage", "rule", "kind",
    "verdict", "bucket", "signals", "training_use", "training_use_by",
})  # fmt: skip
"""Columns worth a dictionary: everything else is nearly unique (hashes, URLs, offsets)."""


def with_added(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """`schema` and these columns that a recipe adds: `documents` and the parts have a score for each of its
    classifiers that turns nothing down, a label for each that is asked for the likeliest, for source files
    their licence, and for records of an index what it says of them; `documents` has what publishers say of a
    page's use."""
    added = ((column, _REAL if column.startswith(SCORE) else _TEXT) for column in columns)
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in added)])


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`, missing ones null, others dropped."""
    columns = [
        rows[column.name].cast(column.type)
        if column.name in rows.column_names
        else pa.nulls(rows.num_rows, column.type)
        for column in schema
    ]
    return pa.table(columns, schema=schema)
