"""parquet: the texts as Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from lineage.exports.manifest import ExportedFile
from pipeline.export.sink import ExportSink
from pipeline.export.texts import COLUMNS, TextRow, write_texts
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.results.rows import RowWriter


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """<source>/<split->NNNNN.parquet"""
    write_texts(job, unit, sink, _open)


def _open(
    sink: ExportSink, _job: ExportJob, unit: ExportUnit, split: str
) -> AbstractContextManager[TextRows]:
    return text_rows(sink, unit.name(".parquet", split), split, COLUMNS, TextRow.plain)


class TextRows:
    """A Parquet file of texts under way; `columns` gives the row of a document."""

    def __init__(self, writer: RowWriter, columns: Callable[[TextRow], Mapping[str, Any]]) -> None:
        self._writer, self._columns = writer, columns

    def add(self, row: TextRow) -> None:
        self._writer.add(self._columns(row))


@contextmanager
def text_rows(
    sink: ExportSink,
    name: str,
    split: str,
    schema: pa.Schema,
    columns: Callable[[TextRow], Mapping[str, Any]],
) -> Iterator[TextRows]:
    """A Parquet file of `schema`; it becomes `name` when the block ends."""
    with RowWriter(sink.folder, name, schema) as writer:
        yield TextRows(writer, columns)
    sink.add(
        ExportedFile(
            file=name,
            hash=writer.hash,
            bytes=sink.folder.size(name),
            split=split,
            num_documents=writer.num_rows,
            num_tokens=0,
        )
    )
