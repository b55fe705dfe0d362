"""The views that SQL and JSON show, as DuckDB definitions over the store's tables.

Hashes and ids are 32 hex digits, NaN is null, purges are an overlay: nothing is deleted, `purged` names the purge. The
tables themselves are registered under their name with a leading underscore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lineage.store.tables import COLUMNS_ADDED_LATER, score_names

_HASHES: Final = frozenset({
    "doc_id", "raw_hash", "text_hash", "clean_hash", "tokens_hash", "cluster_id", "duplicate_of",
})  # fmt: skip
_REALS: Final = frozenset({"language_score", "value", "threshold", "similarity"})

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "documents": (
        "doc_id", "source", "url", "host", "truncated", "warc_file", "warc_offset", "warc_length", "record_id",
        "captured_at", "charset", "raw_hash", "text_hash", "clean_hash", "num_chars", "language", "language_score",
        "status", "stage", "rule", "value", "threshold", "cluster_id", "duplicate_of", "similarity", "part", "part_row",
        "shard", "start", "num_tokens", "tokens_hash", "purged",
    ),
    "edits": ("doc_id", "stage", "kind", "count"),
    "findings": ("doc_id", "stage", "rule", "value", "threshold", "verdict"),
    "placements": ("doc_id", "source", "shard", "start", "num_tokens", "tokens_hash", "purged"),
    "steps": (
        "source", "stage", "num_in", "num_out", "num_rejected", "digest_in", "digest_out", "digest_rejected",
        "position",
    ),
    "step_rules": ("source", "stage", "rule", "num", "digest"),
    "inputs": ("source", "file", "bytes", "num_records", "num_documents", "by_type", "by_mime", "by_status", "notes"),
    "unreadable": ("source", "file", "offset", "length", "error"),
    "purges": (
        "purge_id", "at", "by", "reason", "match", "num_documents", "num_tokens", "content_fingerprint_before",
        "content_fingerprint_after",
    ),
    "purged": ("purge_id", "doc_id", "role", "source", "shard", "start", "num_tokens"),
    "training_runs": (
        "run", "output", "plan_fingerprint", "order_version", "seed", "seq_len", "global_batch", "plan",
    ),
    "training_segments": (
        "run", "attempt", "parent_attempt", "content_fingerprint", "weights", "first_sequence", "first_step",
        "last_step", "skipped_steps",
    ),
    "cache_sweeps": ("run", "host", "folder", "content_fingerprint", "at"),
    "exports": (
        "name", "format", "place", "version", "at", "num_documents", "num_tokens", "num_files", "bytes", "state",
        "options",
    ),
    "reused_steps": ("source", "stage", "position", "out", "run", "version", "content_fingerprint"),
}  # fmt: skip
"""The columns of each view, in order."""

_PURGE_OF_DOCUMENT: Final = "SELECT doc_id, min(purge_id) AS purged FROM _purged GROUP BY doc_id"

_SOURCES: Final[dict[str, str]] = {
    "documents": f"_documents LEFT JOIN ({_PURGE_OF_DOCUMENT}) AS overlay USING (doc_id)",
    "placements": f"_placements LEFT JOIN ({_PURGE_OF_DOCUMENT}) AS overlay USING (doc_id)",
    "training_runs": (
        "(SELECT * FROM _training_runs QUALIFY row_number() OVER (PARTITION BY run ORDER BY fact DESC) = 1)"
    ),
    "training_segments": (
        "(SELECT * FROM _training_segments QUALIFY row_number() OVER "
        "(PARTITION BY run, attempt, first_step ORDER BY fact DESC) = 1)"
    ),
    "exports": "(SELECT * FROM _exports QUALIFY row_number() OVER (PARTITION BY name ORDER BY fact DESC) = 1)",
}


def definition(view: str, present: Sequence[str]) -> str:
    """The CREATE VIEW statement of `view`, one of COLUMNS, over a table with these columns; those of scores are shown
    as they are, and what a table of an earlier release lacks is null."""
    lacking = COLUMNS_ADDED_LATER.get(view, frozenset()).difference(present)
    shown = [f'NULL::VARCHAR AS "{column}"' if column in lacking else _show(column) for column in COLUMNS[view]]
    columns = ", ".join([*shown, *(f'"{column}"' for column in score_names(present))])
    return f"CREATE VIEW {view} AS SELECT {columns} FROM {_SOURCES.get(view, '_' + view)}"


def _show(column: str) -> str:
    if column in _HASHES:
        return f'lower(hex("{column}")) AS "{column}"'
    if column in _REALS:
        return f'CASE WHEN isnan("{column}") THEN NULL ELSE "{column}" END AS "{column}"'
    return f'"{column}"'
