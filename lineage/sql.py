"""Read-only SQL over the views of the store, with DuckDB.

What keeps a question from writing or from reading files: exactly one statement, of type SELECT (an EXPLAIN is refused,
because EXPLAIN ANALYZE COPY is one); no access to files, network, extensions or Python objects from inside DuckDB,
which sees only Arrow data that we opened; a locked configuration, a memory limit, no temporary files, and a time limit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from uuid import UUID

import duckdb
import pyarrow.compute as pc

from lineage.checked import LogSums
from lineage.storage import Folder
from lineage.store import StoreError, arrow_dataset, log_sums, read_purges, read_table
from lineage.views import COLUMNS, definition

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class QueryError(ValueError):
    """The question could not be answered: it took too long or too much memory."""


class WrongQueryError(QueryError):
    """The question is wrong, or not one that may be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query may use: seconds, GiB of memory, threads (0: as many as there are processors), and values (rows
    times columns) of its answer, which is held whole."""

    seconds: float = 300.0
    memory_gib: float = 4.0
    threads: int = 0
    values: int = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A query's answer: column names and rows, every value as JSON can hold it (timestamps ISO-8601, bytes hex, NaN
    and infinities null)."""

    columns: tuple[str, ...]
    rows: list[tuple[Json, ...]]

    def objects(self) -> list[dict[str, Json]]:
        """The rows as objects, in query order."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def query(out: Folder, sql: str, version: int | None = None, limits: Limits = Limits()) -> Result:
    """The answer to one SELECT over the views of the run at `out`, as of a version of the corpus or now.

    QueryError if the question is refused, wrong or over a limit; StoreError if the store is missing or damaged."""
    with questions(out, version, limits) as ask:
        return ask(sql)


@contextmanager
def questions(out: Folder, version: int | None = None, limits: Limits = Limits()) -> Iterator[Callable[[str], Result]]:
    """A function that answers as `query` does, any number of times about one state: the tables are opened once."""
    with _connection(out, version, limits) as connection:
        yield partial(_answer, connection, limits)


def _answer(connection: duckdb.DuckDBPyConnection, limits: Limits, sql: str) -> Result:
    statement = _the_select(connection, sql)
    timer = threading.Timer(limits.seconds, connection.interrupt)
    timer.start()
    try:
        cursor = connection.execute(statement)
        columns = tuple(str(column[0]) for column in cursor.description)
        rows = _fetch(cursor, limits.values // max(len(columns), 1))
    except duckdb.InterruptException as error:
        raise QueryError(f"the query took more than {limits.seconds:g} s and was stopped: narrow it") from error
    except duckdb.OutOfMemoryException as error:
        raise QueryError(f"the query needs more than {limits.memory_gib:g} GiB of memory: narrow it") from error
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        raise _about_files(error) from error
    except duckdb.Error as error:
        raise WrongQueryError(f"{error} (views: {', '.join(COLUMNS)})") from error
    finally:
        timer.cancel()
    return Result(columns=columns, rows=rows)


def _fetch(cursor: duckdb.DuckDBPyConnection, most: int) -> list[tuple[Json, ...]]:
    rows: list[tuple[Json, ...]] = []
    while batch := cursor.fetchmany(10_000):
        rows.extend(tuple(to_json(value) for value in row) for row in batch)
        if len(rows) > most:
            raise QueryError(f"the answer has more than {most:,} rows: select fewer columns, add a LIMIT, or aggregate")
    return rows


def _about_files(error: duckdb.Error) -> ValueError:
    """What DuckDB says when Arrow cannot read a file of a table is our damage, not the user's mistake."""
    text = str(error)
    if "stream registered" in text or ".parquet" in text:
        return StoreError(f"a file of the lineage store cannot be read: {text}. Run sluice verify")
    return QueryError(text)


@contextmanager
def _connection(out: Folder, version: int | None, limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    try:
        sums = log_sums(out)
        for view in COLUMNS:
            connection.register(f"_{view}", _dataset(out, view, version, sums))
        for view in COLUMNS:
            _define(connection, view)
        connection.execute(f"SET memory_limit = '{int(limits.memory_gib * 1024)}MiB'")
        if limits.threads:
            connection.execute(f"SET threads = {limits.threads}")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")  # it goes to stdout, where answers go
        connection.execute("SET temp_directory = ''")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    finally:
        connection.close()


def _define(connection: duckdb.DuckDBPyConnection, view: str) -> None:
    try:
        connection.execute(definition(view))
    except duckdb.BinderException as error:
        raise StoreError(
            f"the lineage table {view!r} lacks a column of its view: {error}. Run sluice verify"
        ) from error


def _dataset(out: Folder, name: str, version: int | None, sums: LogSums) -> object:
    """Table `name` as Arrow data. A version is one of `purges`; `purged` counts where its purge does."""
    if version is None or name not in ("purges", "purged"):
        return arrow_dataset(out, name, sums=sums)
    purges = read_purges(out, version)
    if name == "purges":
        return purges
    purged = read_table(out, "purged")
    return purged.filter(pc.is_in(purged["purge_id"], purges["purge_id"]))


def _the_select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise WrongQueryError(f"{error} (views: {', '.join(COLUMNS)})") from error
    if len(statements) != 1:
        raise WrongQueryError(f"expected one SELECT statement, got {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise WrongQueryError(f"only SELECT is answered here, not {statements[0].type.name}: the store is read-only")
    return statements[0]


def to_json(value: object) -> Json:
    """A DuckDB value as JSON can hold it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): to_json(item) for name, item in value.items()}
    assert isinstance(value, UUID), f"DuckDB returned a {type(value).__name__}"
    return str(value)
