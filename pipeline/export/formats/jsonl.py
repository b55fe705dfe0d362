"""jsonl: one JSON object a line, compressed with zstandard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import zstandard

from pipeline.export.sink import ExportSink, as_stream
from pipeline.export.texts import TextRow, write_texts
from pipeline.export.units import ExportJob, ExportUnit

_LEVEL: Final = 3


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>/<split->NNNNN.jsonl.zst"""
    write_texts(job, unit, sink, _open)


class _Lines:
    def __init__(self, put: Any) -> None:
        self._put, self.num_documents = put, 0

    def add(self, row: TextRow) -> None:
        self._put(line(row))
        self.num_documents += 1


@contextmanager
def _open(sink: ExportSink, _job: ExportJob, unit: ExportUnit, split: str) -> Iterator[_Lines]:
    with sink.writing(unit.name(".jsonl.zst", split), split) as file:
        compressor = zstandard.ZstdCompressor(level=_LEVEL)
        with compressor.stream_writer(as_stream(file), closefd=False) as packed:
            lines = _Lines(packed.write)
            yield lines
        file.num_documents = lines.num_documents


def line(row: TextRow) -> bytes:
    """A document as a line. `metadata`, a JSON object already, stands in it as an object."""
    plain = row.plain()
    plain["metadata"] = None if row.metadata is None else json.loads(row.metadata)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
