"""olmo: OLMo-core's and Dolma's token files: a .npy that is a raw array without a header, and beside it a
.csv.gz with a row a document: start, end, id, src, loc."""

from __future__ import annotations

import gzip

from pipeline.export.sink import ExportSink
from pipeline.export.tokens import ShardDocuments, kept_documents, write_tokens
from pipeline.export.units import ExportJob, ExportUnit


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>/<split->NNNNN.npy and .csv.gz"""
    for split, documents in kept_documents(job, unit).items():
        write_tokens(sink, job, unit.name(".npy", split), split, documents)
        sink.put(unit.name(".csv.gz", split), encode_documents(documents), split)


def encode_documents(documents: ShardDocuments) -> bytes:
    """The .csv.gz file: `start` and `end` in tokens of the .npy, `src` the shard that a document lies in, and
    `loc` where it starts there."""
    shard, starts = documents.shard, documents.starts.tolist()
    rows = zip(starts, documents.lengths.tolist(), documents.rows.to_pylist(), strict=True)
    lines = [
        f"{start},{start + length},{row['doc_id'].hex()},{shard.source}/{shard.shard:05d},{row['start']}\n"
        for start, length, row in rows
    ]
    return gzip.compress("".join(lines).encode(), mtime=0)
