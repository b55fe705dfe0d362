"""llmc: the token files of llm.c: a header of 256 int32, then the tokens (dev/data/data_common.py)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lineage.recipe import RecipeError
from pipeline.export.sink import ExportSink
from pipeline.export.tokens import documents_parquet, kept_documents, put_tokens
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.results.rows import table_bytes

_HEADER: Final = 256
_KINDS: Final = {2: (20240520, 1), 4: (20240801, 7)}
"""Bytes of a token: the magic number and the version."""


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>-<split->NNNNN.bin and .documents.parquet. RecipeError where a shard has more tokens than the
    header holds."""
    for split, documents in kept_documents(job, unit).items():
        num_tokens = documents.num_tokens
        if num_tokens >= 1 << 31:
            raise RecipeError(
                f"shard {unit.key} has {num_tokens:,} tokens, and a file of llm.c holds fewer than 2^31: run"
                " with a smaller tokenize.shard_tokens"
            )
        header = np.zeros(_HEADER, dtype="<i4")
        header[:3] = (*_KINDS[job.token_bytes], num_tokens)
        with sink.writing(unit.name(".bin", split, between="-"), split) as file:
            file.write(header.tobytes())
            put_tokens(file, job, documents)
        table = table_bytes(documents_parquet(documents))
        sink.put(unit.name(".documents.parquet", split, between="-"), table, split)
