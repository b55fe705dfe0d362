"""nanochat: Parquet files with a column `text`, read in order of name; the last file is the validation
set."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Final

import pyarrow as pa
from blake3 import blake3

from pipeline.export.formats.parquet import TextRows, text_rows
from pipeline.export.sink import ExportSink
from pipeline.export.texts import kept_texts
from pipeline.export.units import ExportJob, ExportUnit

_SCHEMA: Final = pa.schema([("text", pa.string()), ("id", pa.string())])
_SHARE: Final = 20
"""One in so many documents of the last unit is for validation."""
_KEY: Final = blake3(b"sluice export nanochat validation").digest()


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """shard-<source>-NNNNN.parquet, and of the last unit also validation-<source>-NNNNN.parquet, whose name
    is the last in order: every twentieth of its documents by a keyed hash of the id, and always the one of
    the least hash, so that it is never empty."""
    with ExitStack() as stack:
        files: dict[str, TextRows] = {}
        least = (
            min((_drawn(row.doc_id) for row in kept_texts(job, unit)), default=b"") if unit.is_last else b""
        )
        for row in kept_texts(job, unit):
            drawn = _drawn(row.doc_id)
            held_out = unit.is_last and (drawn == least or int.from_bytes(drawn, "big") % _SHARE == 0)
            split = "validation" if held_out else "train"
            if split not in files:
                files[split] = stack.enter_context(_open(sink, unit, split))
            files[split].add(row)


def _drawn(doc_id: bytes) -> bytes:
    return blake3(doc_id, key=_KEY).digest(length=8)


def _open(sink: ExportSink, unit: ExportUnit, split: str) -> AbstractContextManager[TextRows]:
    prefix = "shard" if split == "train" else split
    name = f"{prefix}-{unit.name('.parquet', between='-')}"
    return text_rows(sink, name, split, _SCHEMA, lambda row: {"text": row.text, "id": row.id})
