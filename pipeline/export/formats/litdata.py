"""litdata: chunks of tokens for LitData's TokensLoader (litdata/streaming/writer.py, item_loader.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from lineage.exports.manifest import ExportedFile
from pipeline.export.formats.chunks import CHUNK_BYTES, chunks
from pipeline.export.sink import ExportSink
from pipeline.export.tokens import kept_documents
from pipeline.export.units import ExportJob, ExportUnit

_DATA_FORMATS: Final = {2: "no_header_tensor:20", 4: "no_header_tensor:16"}
"""Bytes of a token: LitData's number of torch.uint16 and of torch.int32 (ids are below 2^31)."""
_ONE_TENSOR: Final = '[1, {"type": null, "context": null, "children_spec": []}]'
"""A sample is one tensor, as PyTorch's pytree writes it."""


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<split>/<source>-NNNNN-KKK.bin, an item a document"""
    for split, documents in kept_documents(job, unit).items():
        with chunks(sink, unit, split, extension=".bin") as packed:
            for _, tokens in documents.each():
                packed.add(tokens.astype(f"<u{job.token_bytes}").tobytes(), len(tokens))


def index_files(job: ExportJob, files: Sequence[ExportedFile]) -> dict[str, bytes]:
    """<split>/index.json: every chunk of the split, in order of name. `dim`: the chunk's tokens."""
    by_split: dict[str, list[dict[str, object]]] = defaultdict(list)
    for file in files:
        chunk = {
            "chunk_bytes": file.bytes,
            "chunk_size": file.num_documents,
            "dim": file.num_tokens,
            "filename": file.file.rpartition("/")[2],
        }
        by_split[file.split].append(chunk)
    config = {
        "chunk_bytes": CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "data_format": [_DATA_FORMATS[job.token_bytes]],
        "data_spec": _ONE_TENSOR,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    return {
        f"{split}/index.json".lstrip("/"): json.dumps(
            {"chunks": here, "config": config}, sort_keys=True
        ).encode()
        for split, here in sorted(by_split.items())
    }
