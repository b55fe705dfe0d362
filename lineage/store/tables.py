"""The Arrow schemas of what the lineage store holds, and of the unit files it is made from.

Hashes and ids are plain binary of 16 bytes (Delta has no fixed-size binary). `k` is `ids.sort_key(doc_id)`: its minimum
and maximum in the Delta log are what prunes files.

A new table also needs its rows (a run's: pipeline/phases/join.py or small_tables.py; derived ones: `write.index_rows`)
and, for SQL, its view (`views.COLUMNS`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

_INT, _TEXT, _REAL, _HASH = pa.int64(), pa.string(), pa.float64(), pa.binary()

RECORD_FIELDS: Final = (
    ("doc_id", _HASH), ("source", _TEXT), ("url", _TEXT), ("host", _TEXT),
    ("truncated", _TEXT), ("warc_file", _TEXT),
    ("warc_offset", _INT), ("warc_length", _INT), ("record_id", _TEXT), ("captured_at", _TEXT), ("charset", _TEXT),
    ("raw_hash", _HASH), ("text_hash", _HASH), ("clean_hash", _HASH), ("num_chars", _INT), ("language", _TEXT),
    ("language_score", _REAL),
)  # fmt: skip
VERDICT_FIELDS: Final = (
    ("status", _TEXT), ("stage", _TEXT), ("rule", _TEXT), ("value", _REAL), ("threshold", _REAL),
    ("cluster_id", _HASH), ("duplicate_of", _HASH), ("similarity", _REAL),
)  # fmt: skip
PLACE_FIELDS: Final = (
    ("part", _INT), ("part_row", _INT), ("shard", _INT), ("start", _INT), ("num_tokens", _INT), ("tokens_hash", _HASH),
)  # fmt: skip

DOCUMENTS: Final = pa.schema([("k", _INT), *RECORD_FIELDS, *VERDICT_FIELDS, *PLACE_FIELDS])
"""Sorted by (k, doc_id, source, warc_file, warc_offset), bucketed by k."""

EDITS: Final = pa.schema([("k", _INT), ("doc_id", _HASH), ("stage", _TEXT), ("kind", _TEXT), ("count", _INT)])
FINDINGS: Final = pa.schema([
    ("k", _INT), ("doc_id", _HASH), ("stage", _TEXT), ("rule", _TEXT), ("value", _REAL), ("threshold", _REAL),
    ("verdict", _TEXT),
])  # fmt: skip
"""Every rule that was evaluated, where the recipe says ledger = "all"; else empty. Bucketed like documents."""

PLACEMENTS: Final = pa.schema([
    ("doc_id", _HASH), ("source", _TEXT), ("shard", _INT), ("start", _INT), ("num_tokens", _INT),
    ("tokens_hash", _HASH),
])  # fmt: skip
"""Sorted by (source, shard, start)."""

STEPS: Final = pa.schema([
    ("source", _TEXT), ("stage", _TEXT), ("num_in", _INT), ("num_out", _INT), ("num_rejected", _INT),
    ("digest_in", _TEXT), ("digest_out", _TEXT), ("digest_rejected", _TEXT), ("position", _INT),
])  # fmt: skip
"""`position`: the stage's place in its source's list, from 0."""
STEP_RULES: Final = pa.schema([("source", _TEXT), ("stage", _TEXT), ("rule", _TEXT), ("num", _INT), ("digest", _TEXT)])

INPUTS: Final = pa.schema([
    ("source", _TEXT), ("file", _TEXT), ("bytes", _INT), ("num_records", _INT), ("num_documents", _INT),
    ("by_type", _TEXT), ("by_mime", _TEXT), ("by_status", _TEXT), ("notes", _TEXT),
])  # fmt: skip
"""`by_type`, `by_mime`, `by_status` are JSON objects of counts over every record of the file; `notes` one of what was
read in another way than it says of itself, or passed over (stages.reading.options.Note)."""

UNREADABLE: Final = pa.schema([
    ("source", _TEXT), ("file", _TEXT), ("offset", _INT), ("length", _INT), ("error", _TEXT),
])  # fmt: skip

PURGES: Final = pa.schema([
    ("purge_id", _TEXT), ("at", _TEXT), ("by", _TEXT), ("reason", _TEXT), ("match", _TEXT), ("num_documents", _INT),
    ("num_tokens", _INT), ("content_fingerprint_before", _TEXT), ("content_fingerprint_after", _TEXT),
])  # fmt: skip
"""`match` is how the targets were named: a JSON object such as {"kind": "url", "values": [...]}."""

PURGED: Final = pa.schema([
    ("purge_id", _TEXT), ("k", _INT), ("doc_id", _HASH), ("role", _TEXT), ("source", _TEXT), ("shard", _INT),
    ("start", _INT), ("num_tokens", _INT),
])  # fmt: skip

TRAINING_RUNS: Final = pa.schema([
    ("run", _TEXT), ("output", _TEXT), ("plan_fingerprint", _TEXT), ("order_version", _INT), ("seed", _INT),
    ("seq_len", _INT), ("global_batch", _INT), ("plan", _TEXT), ("fact", _INT),
])  # fmt: skip
"""`plan` is the order's whole input as JSON (trainer.order.OrderPlan): with it exposures are computed by inversion. A
run whose plan was edited has a row for each; the one with the highest `fact` counts (the store numbers them). Steps of
an attempt that died may have followed an earlier one, which their stretch's `weights` tell."""

TRAINING_SEGMENTS: Final = pa.schema([
    ("run", _TEXT), ("attempt", _INT), ("parent_attempt", _INT), ("content_fingerprint", _TEXT), ("weights", _TEXT),
    ("first_sequence", _INT), ("first_step", _INT), ("last_step", _INT), ("skipped_steps", _TEXT), ("fact", _INT),
    ("last_checkpoint", _INT), ("prefix", _TEXT),
])  # fmt: skip
"""`last_checkpoint`: steps done at the attempt's newest checkpoint; `prefix`: what the run puts before this output's
source names. Facts as they were committed: of one (run, attempt, first_step) the row with the highest `fact` counts."""

CACHE_SWEEPS: Final = pa.schema([
    ("run", _TEXT), ("host", _TEXT), ("folder", _TEXT), ("content_fingerprint", _TEXT), ("at", _TEXT),
])  # fmt: skip

EXPORTS: Final = pa.schema([
    ("name", _TEXT), ("format", _TEXT), ("place", _TEXT), ("version", _INT), ("at", _TEXT), ("num_documents", _INT),
    ("num_tokens", _INT), ("num_files", _INT), ("bytes", _INT), ("state", _TEXT), ("options", _TEXT),
    ("manifest_hash", _TEXT), ("fact", _INT),
])  # fmt: skip
"""Copies of the corpus in other formats. `version` is that of the corpus which the copy holds, `state` one of
those in lineage.exports.records, `options` a JSON object, `manifest_hash` the BLAKE3-128 (hex) of the copy's manifest.
Of one name the row with the highest `fact` counts."""

REUSED_STEPS: Final = pa.schema([
    ("source", _TEXT), ("stage", _TEXT), ("position", _INT), ("out", _TEXT), ("run", _TEXT), ("version", _INT),
    ("content_fingerprint", _TEXT),
])  # fmt: skip
"""The steps of each source that were not run again, because an earlier run had run them: where that one lies, its name,
and the version and content that it had. Ids are equal in both, so the tables of both join by doc_id."""

KEYS: Final = pa.schema([
    ("doc_id", _HASH), ("source_index", pa.int32()), ("file_index", pa.int32()), ("offset", _INT), ("part_row", _INT),
    ("num_chars", _INT), ("captured_at", _TEXT), ("url_key", _HASH), ("clean_hash", _HASH), ("signature", _HASH),
])  # fmt: skip
"""Unit file: a row for each document that survived the filters, in (offset) order. `url_key` is the BLAKE3-128 of the
normalised URL (null where there is none or it names no page); `signature` the MinHash as num_perm uint32 (or uint64)
little-endian, null where dedup.near is off or the text has no shingle. The locator of a text is (source_index,
file_index, part_row): sources in recipe order, files of a source in sorted name order."""

VERDICTS: Final = pa.schema([
    ("doc_id", _HASH), ("source_index", pa.int32()), ("file_index", pa.int32()), ("part_row", _INT),
    ("status", _TEXT), ("stage", _TEXT), ("rule", _TEXT), ("value", _REAL), ("threshold", _REAL),
    ("cluster_id", _HASH), ("duplicate_of", _HASH), ("similarity", _REAL),
])  # fmt: skip
"""What comparing documents said: a row for each survivor that is a duplicate, or is kept in a cluster of several."""

PART: Final = pa.schema([
    ("doc_id", _HASH), ("text", _TEXT), ("url", _TEXT), ("captured_at", _TEXT), ("language", _TEXT),
    ("language_score", _REAL), ("metadata", _TEXT), ("host", _TEXT), ("source", _TEXT), ("record_id", _TEXT),
    ("rule_values", _TEXT),
])  # fmt: skip
"""documents/<source>/part-NNNNN.parquet: clean texts that survived the filters, rows in (file, offset) order.
`record_id` is the record's own id: WARC-Record-ID, or what a row's id_field holds.
`rule_values` is a JSON object of what each rule measured, where the recipe says ledger = "all"."""

PART_ADDED_LATER: Final = frozenset({"host", "source", "record_id", "rule_values"})
"""Columns that the parts of an OUT of an earlier release lack."""

PARSED_TEXTS: Final = pa.schema([
    ("doc_id", _HASH), ("text", _TEXT), ("url", _TEXT), ("captured_at", _TEXT), ("metadata", _TEXT),
    ("warc_file", _TEXT), ("warc_offset", _INT), ("warc_length", _INT), ("record_id", _TEXT), ("charset", _TEXT),
    ("raw_hash", _HASH), ("text_hash", _HASH), ("num_bytes", _INT), ("is_html", pa.bool_()), ("content_type", _TEXT),
    ("language", _TEXT), ("language_score", _REAL),
    ("edits", pa.list_(pa.struct([("stage", _TEXT), ("kind", _TEXT), ("count", _INT)]))),
])  # fmt: skip
"""texts/<source>/part-NNNNN.parquet: with run.keep_text, each document that had a text after parse as it was then,
rejected ones too, in reading order. A purge makes `text` and `metadata` null."""

DEDUP: Final = pa.schema([
    ("doc_id", _HASH), ("source", _TEXT), ("part", _INT), ("part_row", _INT), ("num_chars", _INT),
    ("captured_at", _TEXT), ("url_key", _HASH), ("clean_hash", _HASH), ("signature", _HASH),
])  # fmt: skip
"""dedup/<source>/part-NNNNN.parquet: what later runs compare with, a row for each kept document."""

EXCERPTS: Final = pa.schema([
    ("doc_id", _HASH), ("stage", _TEXT), ("rule", _TEXT), ("excerpt", _TEXT), ("choice", _TEXT), ("value", _REAL),
    ("threshold", _REAL), ("marks", pa.list_(_INT)),
])  # fmt: skip
"""What the report shows. `choice` is why it is shown: of the documents that the rule turned down one of the `least`
ids, the `near`est to its threshold or the `far`thest from it, or a near miss that `passed` every step; null for members
of large clusters. `marks` are the lines of the excerpt, from 0, that count against it. An output of an earlier release
has the first four columns."""

SHARD_INDEX: Final = pa.schema([("doc_id", _HASH), ("start", _INT), ("num_tokens", _INT), ("tokens_hash", _HASH)])

URL_INDEX: Final = pa.schema([
    ("k", _INT), ("host", _TEXT), ("url", _TEXT), ("doc_id", _HASH), ("source", _TEXT), ("status", _TEXT),
    ("stage", _TEXT), ("rule", _TEXT), ("warc_file", _TEXT), ("warc_offset", _INT),
])  # fmt: skip
"""Host -> its documents, with what a listing shows; `k` is `ids.sort_key` of the host's BLAKE3-128."""

WARC_INDEX: Final = pa.schema([
    ("k", _INT), ("warc_file", _TEXT), ("warc_offset", _INT), ("source", _TEXT), ("doc_k", _INT),
])  # fmt: skip
"""Place in the crawl -> document; `k` is `ids.sort_key` of the file name's BLAKE3-128, `doc_k` the document's `k`."""

HASH_INDEX: Final = pa.schema([("k", _INT), ("doc_k", _INT)])
"""Hash -> document: `k` is `ids.sort_key` of a raw, text, clean or tokens hash or of a normalised URL's BLAKE3-128,
`doc_k` the document's `k`. A lookup compares the whole hash in `documents`."""

CLUSTER_INDEX: Final = pa.schema([
    ("k", _INT), ("cluster_id", _HASH), ("doc_id", _HASH), ("status", _TEXT), ("duplicate_of", _HASH),
    ("similarity", _REAL),
])  # fmt: skip
"""Cluster -> members; `k` is `ids.sort_key` of cluster_id."""

WRITTEN_ONCE: Final[dict[str, pa.Schema]] = {
    "documents": DOCUMENTS, "edits": EDITS, "findings": FINDINGS, "placements": PLACEMENTS, "steps": STEPS,
    "step_rules": STEP_RULES, "inputs": INPUTS, "unreadable": UNREADABLE, "url_index": URL_INDEX,
    "warc_index": WARC_INDEX, "hash_index": HASH_INDEX, "cluster_index": CLUSTER_INDEX,
}  # fmt: skip
"""The store's tables that a run writes at its end, bucket by bucket, and that never change after."""

APPENDED: Final[dict[str, pa.Schema]] = {
    "purges": PURGES, "purged": PURGED, "training_runs": TRAINING_RUNS, "training_segments": TRAINING_SEGMENTS,
    "cache_sweeps": CACHE_SWEEPS, "exports": EXPORTS, "reused_steps": REUSED_STEPS,
}  # fmt: skip
"""The store's tables that later facts are appended to."""

ADDED_LATER: Final = frozenset({"exports", "reused_steps"})
"""Tables of facts that an OUT of an earlier release lacks until its first such fact."""

COLUMNS_ADDED_LATER: Final[dict[str, frozenset[str]]] = {
    "documents": frozenset({"truncated"}),
    "inputs": frozenset({"notes"}),
}
"""Columns that a table of an OUT of an earlier release lacks: views and checks take them for null there."""

SORTED_BY: Final[dict[str, tuple[str, ...]]] = {
    "documents": ("k", "doc_id", "source", "warc_file", "warc_offset"),
    "edits": ("k", "doc_id", "stage", "kind", "count"),
    "findings": ("k", "doc_id", "stage", "rule", "value", "threshold", "verdict"),
    "placements": ("source", "shard", "start"),
    "steps": ("source", "position"),
    "step_rules": ("source", "stage", "rule"),
    "inputs": ("source", "file"),
    "unreadable": ("source", "file", "offset"),
    "url_index": ("k", "host", "url", "doc_id", "source", "warc_file", "warc_offset"),
    "warc_index": ("k", "warc_file", "warc_offset", "source", "doc_k"),
    "hash_index": ("k", "doc_k"),
    "cluster_index": ("k", "cluster_id", "doc_id"),
}
"""The order of each table's rows inside a file."""

BOUNDED: Final[dict[str, tuple[str, ...]]] = {
    "placements": ("source", "shard", "start"),
    **{name: ("k",) for name, schema in WRITTEN_ONCE.items() if "k" in schema.names},
}
"""The columns whose minimum and maximum stand in the Delta log for each file, so that questions prune files. They are
never null. Tables that are not named have none."""

DICTIONARY: Final = frozenset({
    "source", "host", "truncated", "warc_file", "charset", "language", "status", "stage", "rule", "kind", "verdict",
})  # fmt: skip
"""Columns worth a dictionary: everything else is nearly unique (hashes, URLs, offsets)."""

SCORE: Final = "score_"
"""What the column of a classifier's score begins with."""


def score_names(columns: Iterable[str]) -> list[str]:
    """The columns among these that hold scores."""
    return [column for column in columns if column.startswith(SCORE)]


def with_scores(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """`schema` and these columns of scores: `documents` and the parts have one for each classifier of the recipe that
    turns nothing down."""
    return pa.schema([*schema, *(pa.field(column, _REAL) for column in columns)])


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`, missing ones null, others dropped."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def stored(name: str, columns: Iterable[str]) -> list[str]:
    """The columns of a table, in order, that one with these `columns` should have: an OUT of an earlier release lacks
    those that were added later."""
    present, later = set(columns), COLUMNS_ADDED_LATER.get(name, frozenset())
    schema = {**WRITTEN_ONCE, **APPENDED}[name]
    return [column for column in schema.names if column in present or column not in later]
