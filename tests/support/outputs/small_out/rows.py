"""The rows of a small OUT's tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lineage.ids import id_digest, show_digest, sort_key, text_hash
from lineage.pages import page_of
from tests.support.outputs.small_out.records import Record, file_name

STAGES = ("url", "parse", "identity", "dedup.url", "dedup.exact", "dedup.near")


def document_rows(
    records: tuple[Record, ...], rows_of: dict[int, int], placed: dict[bytes, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of `documents`."""
    return [
        {
            "k": sort_key(r.doc_id),
            "doc_id": r.doc_id,
            "source": r.source,
            "url": r.url,
            "host": page.host if (page := page_of(r.url)) else None,
            "domain": page.domain if page else None,
            "warc_file": file_name(r.source, r.file),
            "warc_offset": r.offset,
            "warc_length": 900,
            "record_id": f"<{r.offset}>",
            "raw_hash": text_hash(r.text + "raw"),
            "text_hash": text_hash(r.text),
            "clean_hash": text_hash(r.text) if r.survived else None,
            "num_chars": len(r.text),
            "language": "en",
            "language_score": 0.9,
            "status": r.status,
            "stage": r.stage,
            "rule": r.rule,
            "value": r.value,
            "threshold": r.threshold,
            "cluster_id": r.cluster_id,
            "duplicate_of": r.duplicate_of,
            "similarity": r.similarity,
            "part": r.file if r.survived else None,
            "part_row": rows_of.get(i),
            **(placed[r.doc_id] if r.status == "kept" else {}),
        }
        for i, r in enumerate(records)
    ]


def small_tables(records: tuple[Record, ...]) -> dict[str, list[dict[str, Any]]]:
    """The rows of every other table, by its name."""
    steps, rules = _step_rows(records)
    unreadable = [
        {"source": "web", "file": file_name("web", 2), "offset": 99_000, "length": 17, "error": "cut"}
    ]
    kept = [r for r in records if r.status == "kept"]
    edits = [
        {"k": sort_key(r.doc_id), "doc_id": r.doc_id, "stage": "pii", "kind": "email", "count": 1}
        for r in kept[::3]
    ]
    findings = [
        {
            "k": sort_key(r.doc_id),
            "doc_id": r.doc_id,
            "stage": "url",
            "rule": "url.too_long",
            "value": 10.0,
            "threshold": 100.0,
            "verdict": "keep",
        }
        for r in kept[::5]
    ]
    return {
        "steps": steps,
        "step_rules": rules,
        "inputs": [_input_row(records, source, file) for source, file in input_files(records)],
        "unreadable": unreadable,
        "edits": edits,
        "findings": findings,
    }


def _step_rows(records: tuple[Record, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of `steps` and of `step_rules`."""
    steps, rules = [], []
    for source in sorted({record.source for record in records}):
        here = [r for r in records if r.source == source]
        for position, stage in enumerate(STAGES):
            gone = [r for r in here if r.stage == stage]
            left = [r for r in here if r.stage != stage]
            steps.append(
                {
                    "source": source,
                    "stage": stage,
                    "position": position,
                    "num_in": len(here),
                    "num_out": len(left),
                    "num_rejected": len(gone),
                    "digest_in": _digest(here),
                    "digest_out": _digest(left),
                    "digest_rejected": _digest(gone),
                }
            )
            for rule in sorted({str(r.rule) for r in gone}):
                by_rule = [r for r in gone if r.rule == rule]
                rules.append(
                    {
                        "source": source,
                        "stage": stage,
                        "rule": rule,
                        "num": len(by_rule),
                        "digest": _digest(by_rule),
                    }
                )
            here = left
    return steps, rules


def _input_row(records: tuple[Record, ...], source: str, file: int) -> dict[str, Any]:
    num = sum((r.source, r.file) == (source, file) for r in records)
    return {
        "source": source,
        "file": file_name(source, file),
        "bytes": 12_345,
        "num_records": num + 1,
        "num_documents": num,
        "by_type": json.dumps({"response": num, "warcinfo": 1}),
        "by_mime": "{}",
        "by_status": "{}",
    }


def _digest(records: Iterable[Record]) -> str:
    return show_digest(id_digest(record.doc_id for record in records))


def excerpt_rows(records: tuple[Record, ...]) -> list[dict[str, Any]]:
    """The rows of excerpts.parquet."""
    return [
        {"doc_id": r.doc_id, "stage": r.stage, "rule": r.rule, "excerpt": r.text[:200]}
        for r in records
        if r.stage is not None and r.text
    ]


def input_files(records: Iterable[Record]) -> list[tuple[str, int]]:
    """(source, number) of every input file."""
    return sorted({(record.source, record.file) for record in records})
