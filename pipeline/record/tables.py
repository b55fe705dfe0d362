"""The tables that the SQL of a record asks: the views of lineage over several outputs, and what runs have read.

  documents, edits, steps, step_rules, inputs, purges, purged    as `sluice lineage` shows them, with a column `out`
  texts      out, source, part, part_row, num_bytes: each clean text that is still there, in UTF-8
  readings   run, out, doc_id, readings, first_step, last_step, read_tokens: by `trainer.evidence.commitment.readings`
  used       the documents that the record is of, with their bytes and readings (`USED`)

They lie in a database on disk, so that memory does not grow with the corpus."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from lineage.store.queries.sql import to_json
from lineage.store.queries.views import COLUMNS, definition
from pipeline.record.runs import RecordedRun
from trainer.evidence.commitment.readings import READINGS, read_documents

_VIEWS: Final = ("purges", "purged", "documents", "edits", "steps", "step_rules", "inputs")
_MEMORY: Final = "2GiB"
USED: Final[Mapping[bool, str]] = {
    False: "SELECT documents.*, num_bytes, NULL::BIGINT AS readings, NULL::BIGINT AS read_tokens FROM documents"
    " LEFT JOIN texts USING (out, source, part, part_row) WHERE status = 'kept' AND purged IS NULL",
    True: "SELECT documents.*, num_bytes, readings, read_tokens FROM documents JOIN (SELECT out, doc_id,"
    " sum(readings)::BIGINT AS readings, sum(read_tokens)::BIGINT AS read_tokens FROM readings GROUP BY out, doc_id)"
    " USING (out, doc_id) LEFT JOIN texts USING (out, source, part, part_row) WHERE status = 'kept'",
}
"""What `used` is: without runs every document that was kept and not purged; with runs those that their weights have
read."""


class RecordTables:
    """The tables, open for questions."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database

    def rows(self, sql: str) -> list[dict[str, object]]:
        """The rows of a SELECT. RecipeError where it is wrong."""
        try:
            answer = self._database.execute(sql)
        except duckdb.Error as error:
            raise RecipeError(f"--sql: {error}") from error
        names = [column[0] for column in answer.description]
        return [dict(zip(names, map(to_json, row), strict=True)) for row in answer.fetchall()]

    def value(self, sql: str) -> Any:
        """The one value of a SELECT."""
        ((value,),) = [row.values() for row in self.rows(sql)]
        return value


@contextmanager
def record_tables(outs: Sequence[Folder], runs: Sequence[RecordedRun]) -> Iterator[RecordTables]:
    """The tables of these outputs and runs. StoreError or DamagedFileError where lineage is damaged."""
    with tempfile.TemporaryDirectory(prefix="sluice-record-") as scratch:
        database = duckdb.connect(f"{scratch}/record.duckdb")
        try:
            database.execute(f"SET memory_limit = '{_MEMORY}'")
            database.execute("SET TimeZone = 'UTC'")
            for view in _VIEWS:
                selects = [_select(database, out, number, view) for number, out in enumerate(outs)]
                database.execute(f"CREATE TEMP VIEW {view} AS {' UNION ALL BY NAME '.join(selects)}")
            _fill_texts(database, outs)
            _fill_readings(database, runs)
            database.execute(f"CREATE TABLE used AS {USED[bool(runs)]}")
            yield RecordTables(database)
        finally:
            database.close()


def _select(database: duckdb.DuckDBPyConnection, out: Folder, number: int, view: str) -> str:
    """The rows of a view of one output, as a SELECT."""
    dataset = arrow_dataset(out, view)
    database.register(f"_{view}_{number}", dataset)
    body = definition(view, dataset.schema.names).split(" AS ", 1)[1]
    named = re.sub(rf"\b_({'|'.join(COLUMNS)})\b", rf"_\1_{number}", body)
    place = out.url.replace("'", "''")
    return f"SELECT '{place}' AS out, * FROM ({named})"


def _fill_texts(database: duckdb.DuckDBPyConnection, outs: Sequence[Folder]) -> None:
    database.execute(
        "CREATE TABLE texts (out VARCHAR, source VARCHAR, part BIGINT, part_row BIGINT, num_bytes BIGINT)"
    )
    for out in outs:
        for part in read_index(out).documents:
            first = 0
            with out.open(part.file) as file:
                for batch in pq.ParquetFile(file).iter_batches(columns=["text"]):
                    num_bytes = pc.cast(pc.binary_length(batch["text"]), pa.int64())
                    rows = pa.array(range(first, first + batch.num_rows), pa.int64())
                    piece = pa.table({"part_row": rows, "num_bytes": num_bytes})
                    select = f"SELECT ?, ?, {part.part}, part_row, num_bytes FROM piece WHERE num_bytes IS NOT NULL"
                    _insert(database, select, "texts", piece, out.url, part.source)
                    first += batch.num_rows


def _fill_readings(database: duckdb.DuckDBPyConnection, runs: Sequence[RecordedRun]) -> None:
    columns = ", ".join(f"{name} BIGINT" for name in READINGS.names[1:])
    database.execute(f"CREATE TABLE readings (run VARCHAR, out VARCHAR, doc_id VARCHAR, {columns})")
    for run in runs:
        for output in run.read.outputs:
            for table in read_documents(output):
                select = f"SELECT ?, ?, lower(hex(doc_id)), {', '.join(READINGS.names[1:])} FROM piece"
                _insert(database, select, "readings", table, run.read.run, output.out.url)


def _insert(
    database: duckdb.DuckDBPyConnection, select: str, table: str, piece: pa.Table, *values: str
) -> None:
    database.register("piece", piece)
    database.execute(f"INSERT INTO {table} {select}", list(values))
    database.unregister("piece")
