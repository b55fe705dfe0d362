"""megatron: Megatron-LM's indexed dataset, a .bin and an .idx file a shard
(megatron/core/datasets/indexed_dataset.py). A shard's own file is a valid .bin of int32: ids are below
2^31."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from pipeline.export.sink import ExportSink
from pipeline.export.tokens import ShardDocuments, documents_parquet, kept_documents, write_tokens
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.results.rows import table_bytes

_MAGIC: Final = b"MMIDIDX\x00\x00"
_VERSION: Final = 1
_DTYPE_CODES: Final = {4: 4, 2: 8}
"""Bytes of a token: the code of int32 and of uint16. There is none for uint32."""


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>/<split->NNNNN.bin, .idx and .documents.parquet: the prefix is what --data-path takes."""
    for split, documents in kept_documents(job, unit).items():
        write_tokens(sink, job, unit.name(".bin", split), split, documents)
        sink.put(unit.name(".idx", split), encode_index(documents, job.token_bytes), split)
        sink.put(unit.name(".documents.parquet", split), table_bytes(documents_parquet(documents)), split)


def encode_index(documents: ShardDocuments, token_bytes: int) -> bytes:
    """The .idx file: each document is one sequence, its end-of-text id included. Lengths are int32, places
    int64 in bytes, and the document index names the first sequence of each document and their number."""
    lengths, num = documents.lengths, len(documents.rows)
    head = _MAGIC + struct.pack("<QBQQ", _VERSION, _DTYPE_CODES[token_bytes], num, num + 1)
    places = documents.starts * token_bytes
    numbers = np.arange(num + 1, dtype="<i8")
    return head + lengths.astype("<i4").tobytes() + places.astype("<i8").tobytes() + numbers.tobytes()
