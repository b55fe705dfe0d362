"""mds: MosaicML Streaming's shards (streaming/base/format/mds), with texts or tokens and their metadata."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lineage.exports.manifest import ExportedFile
from pipeline.export.formats.chunks import CHUNK_BYTES, Chunks, chunks
from pipeline.export.sink import ExportSink
from pipeline.export.texts import TextRow, write_texts
from pipeline.export.tokens import kept_documents
from pipeline.export.units import ExportJob, ExportUnit

_TEXT: Final = {
    "date": "str", "file_path": "str", "id": "str", "language": "str", "language_score": "float64", "metadata": "str",
    "offset": "int", "record_id": "str", "source": "str", "text": "str", "url": "str",
}  # fmt: skip
"""Columns in order of name, as the format wants them. Absent texts are empty, absent numbers NaN and -1: the
format has no null."""
_SIZES: Final = {"int": 8, "float64": 8}


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<split>/<source>-NNNNN-KKK.mds"""
    if not job.request.tokens:
        write_texts(job, unit, sink, _open)
        return
    columns = _token_columns(job)
    for split, documents in kept_documents(job, unit).items():
        with chunks(sink, unit, split, extension=".mds", between=_config_bytes(columns)) as packed:
            for doc_id, tokens in documents.each():
                values = {
                    "id": doc_id,
                    "source": unit.source,
                    "tokens": tokens.astype(f"<u{job.token_bytes}"),
                }
                packed.add(encode_sample(columns, values), len(tokens))


class _Texts:
    def __init__(self, packed: Chunks) -> None:
        self._packed = packed

    def add(self, row: TextRow) -> None:
        self._packed.add(encode_sample(_TEXT, row.plain()))


@contextmanager
def _open(sink: ExportSink, _job: ExportJob, unit: ExportUnit, split: str) -> Iterator[_Texts]:
    with chunks(sink, unit, split, extension=".mds", between=_config_bytes(_TEXT)) as packed:
        yield _Texts(packed)


def _token_columns(job: ExportJob) -> dict[str, str]:
    return {"id": "str", "source": "str", "tokens": f"ndarray:uint{8 * job.token_bytes}"}


def encode_sample(columns: Mapping[str, str], values: Mapping[str, Any]) -> bytes:
    """A sample: uint32 sizes of the columns that have no fixed size, then the values, columns in order of
    name."""
    data = [_encode(encoding, values[name]) for name, encoding in columns.items()]
    sizes = [
        len(datum) for datum, encoding in zip(data, columns.values(), strict=True) if encoding not in _SIZES
    ]
    return np.array(sizes, dtype="<u4").tobytes() + b"".join(data)


def _encode(encoding: str, value: Any) -> bytes:
    if encoding == "str":
        return ("" if value is None else str(value)).encode()
    if encoding == "int":
        return np.array(-1 if value is None else value, dtype="<i8").tobytes()
    if encoding == "float64":
        return np.array(np.nan if value is None else value, dtype="<f8").tobytes()
    return _encode_array(value)


def _encode_array(values: npt.NDArray[Any]) -> bytes:
    """An array of known type and unknown shape: a byte (number of axes · 4 + the kind of what follows), the
    lengths of the axes as the smallest of uint8, uint16, uint32 and uint64 that holds them, the values."""
    kind = next(kind for kind in range(4) if len(values) < 1 << 8 * (1 << kind))
    return bytes([1 << 2 | kind]) + len(values).to_bytes(1 << kind, "little") + values.tobytes()


def _config(columns: Mapping[str, str]) -> dict[str, object]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": CHUNK_BYTES,
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": [_SIZES.get(encoding) for encoding in columns.values()],
    }


def _config_bytes(columns: Mapping[str, str]) -> bytes:
    return json.dumps(_config(columns), sort_keys=True).encode()


def index_files(job: ExportJob, files: Sequence[ExportedFile]) -> dict[str, bytes]:
    """<split>/index.json: every shard of the split, in order of name."""
    columns = _token_columns(job) if job.request.tokens else _TEXT
    by_split: dict[str, list[ExportedFile]] = defaultdict(list)
    for file in files:
        by_split[file.split].append(file)
    return {
        f"{split}/index.json".lstrip("/"): _index(columns, here) for split, here in sorted(by_split.items())
    }


def _index(columns: Mapping[str, str], files: Sequence[ExportedFile]) -> bytes:
    shards = [
        {
            **_config(columns),
            "samples": file.num_documents,
            "raw_data": {"basename": file.file.rpartition("/")[2], "bytes": file.bytes, "hashes": {}},
            "zip_data": None,
        }
        for file in files
    ]
    return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()
