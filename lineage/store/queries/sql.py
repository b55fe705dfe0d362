"""Read-only SQL over the views of the store, with DuckDB.

A question cannot write, read files or learn the process's settings. What is answered is exactly one
statement, of type SELECT (an EXPLAIN is refused, because EXPLAIN ANALYZE COPY is one), that names no table
but the views and no function that shows settings; no access to files, network, extensions or Python objects
from inside DuckDB, which sees only Arrow data that we opened; a locked configuration, a memory limit, no
temporary files, and a time limit.

`questions` answers in this process, for questions of our own. A user's question goes through `query` to a
process of its own, which is this module run as a program (see lineage.store.queries.query)."""

from __future__ import annotations

import json
import math
import os
import resource
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import IO, Any, Final, TypedDict
from uuid import UUID

import duckdb
import pyarrow.compute as pc

from lineage.json_record import Json
from lineage.storage.folder import Folder
from lineage.store.checked import LogSums
from lineage.store.delta import (
    ADVICE,
    StoreError,
    arrow_dataset,
    log_sums,
    plain_reason,
    read_purges,
    read_table,
)
from lineage.store.queries.query import (
    ERRORS,
    USUAL,
    Limits,
    QueryError,
    QueryResult,
    WrongQueryError,
    query,
    too_large,
    too_slow,
)
from lineage.store.queries.views import COLUMNS, definition

_Node = dict[str, object]
"""An object of a statement as DuckDB parses it."""


class _Request(TypedDict):
    """What the process that asks is given: the output, its version, the fields of `Limits` and the statements."""

    out: str
    version: int | None
    limits: Any
    asked: list[str]


__all__ = ["Json", "Limits", "QueryError", "QueryResult", "WrongQueryError", "query", "questions", "to_json"]

_TABLE_FUNCTIONS: Final = frozenset({
    "range", "generate_series", "unnest", "generate_subscripts", "repeat", "repeat_row",
})  # fmt: skip
"""Those that make rows of what they are given; the others read files, settings or the catalogue."""

_REFUSED_FUNCTIONS: Final = frozenset({
    "current_setting", "getenv", "getvariable", "write_log", "json_serialize_plan", "json_serialize_sql",
    "json_deserialize_sql", "json_execute_serialized_sql", "add_parquet_key",
})  # fmt: skip
_REFUSED_BEGINNINGS: Final = ("pragma_", "duckdb_", "pg_", "read_", "query", "sqlite_")

_ROWS_AT_ONCE: Final = 1000
_ADDRESS_SPACE_GIB: Final = 64
"""The last limit of the process that answers, far above its memory's limit: code and unused stacks count in
it too."""


@contextmanager
def questions(
    out: Folder, version: int | None = None, limits: Limits = USUAL, asked: Sequence[str] | None = None
) -> Iterator[Callable[[str], QueryResult]]:
    """A function that answers as `query` does, any number of times about one state: the tables are opened
    once. Where it will be `asked` no other statements than these, only the tables that they name are."""
    with _connection(out, version, limits, asked) as connection:
        yield partial(_answer, out, connection, limits)


def _answer(out: Folder, connection: duckdb.DuckDBPyConnection, limits: Limits, sql: str) -> QueryResult:
    columns: tuple[str, ...] = ()
    rows: list[tuple[Json, ...]] = []
    for piece in _pieces(out, connection, limits, sql):
        if isinstance(piece, tuple):
            columns = piece
        else:
            rows.extend(piece)
    return QueryResult(columns=columns, rows=rows)


def _pieces(
    out: Folder, connection: duckdb.DuckDBPyConnection, limits: Limits, sql: str
) -> Iterator[tuple[str, ...] | list[tuple[Json, ...]]]:
    """The names of the columns, then the rows, some at a time."""
    statement = _the_select(connection, sql)
    timer = threading.Timer(limits.seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        cursor = connection.execute(statement)
        columns = tuple(str(column[0]) for column in cursor.description)
        yield columns
        most, num = limits.values // max(len(columns), 1), 0
        while batch := cursor.fetchmany(_ROWS_AT_ONCE):
            num += len(batch)
            if num > most:
                raise QueryError(
                    f"the answer has more than {most:,} rows: select fewer columns, add a LIMIT, or aggregate"
                )
            yield [tuple(to_json(value) for value in row) for row in batch]
    except duckdb.InterruptException as error:
        raise too_slow(limits) from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise too_large(limits) from error
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        raise _about_files(out, error) from error
    except duckdb.Error as error:
        raise WrongQueryError(f"{error} (views: {', '.join(COLUMNS)})") from error
    finally:
        timer.cancel()


def _about_files(out: Folder, error: duckdb.Error) -> ValueError:
    """What DuckDB says when Arrow cannot read a file of a table is our damage, not the user's mistake."""
    text = str(error)
    if "is damaged: " in text:
        return StoreError(text.rpartition("DamagedFileError: ")[2].splitlines()[0])
    if "stream registered" in text or ".parquet" in text:
        return StoreError(
            f"a file of the lineage store of {out.url} cannot be read: {plain_reason(text)}. {ADVICE}"
        )
    return QueryError(text)


@contextmanager
def _connection(
    out: Folder, version: int | None, limits: Limits, asked: Sequence[str] | None
) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    try:
        connection.execute(f"SET memory_limit = '{int(limits.memory_gib * 1024)}MiB'")
        # What a question has freed goes back to the kernel, before the next one asks for other pieces.
        connection.execute("SET allocator_flush_threshold = '1MiB'")
        connection.execute("SET allocator_bulk_deallocation_flush_threshold = '1MiB'")
        if limits.threads:
            connection.execute(f"SET threads = {limits.threads}")
        sums = log_sums(out)
        # Whether the corpus had this version is told by all tables together.
        views = COLUMNS if asked is None or version is not None else _views_named(connection, asked)
        tables = {view: _dataset(out, view, version, sums) for view in views}
        for view, table in tables.items():
            connection.register(f"_{view}", table)
        for view, table in tables.items():
            _define(connection, view, table.schema.names)
        connection.execute("SET TimeZone = 'UTC'")
        # It goes to stdout, where answers go. In a notebook without ipywidgets there is none, and setting it
        # raises.
        if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
            connection.execute("SET enable_progress_bar = false")
        connection.execute("SET temp_directory = ''")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    finally:
        connection.close()


def _views_named(connection: duckdb.DuckDBPyConnection, asked: Sequence[str]) -> Collection[str]:
    """The views that these statements name, `purged` and `purges`: several lie over them, and there is no store
    without them. All views where a statement names none, something else too, or is not understood: what is said of it
    then hangs on them."""
    named = {"purged", "purges"}
    for sql in asked:
        try:
            nodes = list(_nodes(_parsed(connection, sql)))
        except duckdb.Error:
            return COLUMNS
        tables = {str(node["table_name"]).lower() for node in nodes if node.get("type") == "BASE_TABLE"}
        own = {str(entry["key"]).lower() for node in nodes for entry in _cte_entries(node)}
        described = any(node.get("type") == "SHOW_REF" for node in nodes)
        if not tables or described or not tables <= {*COLUMNS, *own}:
            return COLUMNS
        named |= tables & COLUMNS.keys()
    return [view for view in COLUMNS if view in named]


def _define(connection: duckdb.DuckDBPyConnection, view: str, present: Sequence[str]) -> None:
    try:
        connection.execute(definition(view, present))
    except duckdb.BinderException as error:
        raise StoreError(
            f"the lineage table {view!r} lacks a column of its view: {error}. Run sluice verify"
        ) from error


def _dataset(out: Folder, name: str, version: int | None, sums: LogSums) -> Any:
    """Table `name` as an Arrow table or dataset. A version is one of `purges`; `purged` counts where its
    purge does."""
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
        raise WrongQueryError(
            f"only SELECT is answered here, not {statements[0].type.name}: the store is read-only"
        )
    _check_names(connection, sql)
    return statements[0]


def _check_names(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """WrongQueryError if the statement names another table than the views, or a function that shows
    settings."""
    tree = _parsed(connection, sql)
    if tree["error"]:
        raise WrongQueryError(f"this statement is not answered here: {tree['error_message']}")
    nodes = list(_nodes(tree))
    named = {str(entry["key"]).lower() for node in nodes for entry in _cte_entries(node)}
    known = {*COLUMNS, *_own_names(connection, named)}
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            _check_table(node, known)
        elif node.get("type") == "SHOW_REF" and node.get("query") is None:
            raise WrongQueryError(f"SHOW is not answered here (views: {', '.join(COLUMNS)})")
        elif node.get("type") == "TABLE_FUNCTION":
            called = node["function"]
            assert isinstance(called, dict)
            function = str(called.get("function_name", "")).lower()
            if function not in _TABLE_FUNCTIONS:
                raise WrongQueryError(f"the table function {function!r} is not one that may be asked here")
        function = str(node.get("function_name", "")).lower()
        if function in _REFUSED_FUNCTIONS or function.startswith(_REFUSED_BEGINNINGS):
            raise WrongQueryError(f"the function {function!r} is not one that may be asked here")


def _parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> _Node:
    """A statement as DuckDB parses it; where `error`, with its words."""
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree: _Node = json.loads(serialized)
    return tree


def _own_names(connection: duckdb.DuckDBPyConnection, named: set[str]) -> set[str]:
    """Of the names of a statement's WITH those that mean nothing outside of it: one holds within its query
    alone."""
    if not named:
        return named
    views = connection.execute("SELECT view_name FROM duckdb_views()").fetchall()
    internal = {str(row[0]).lower() for row in views}
    return {name for name in named - internal if not name.startswith((*_REFUSED_BEGINNINGS, "_"))}


def _check_table(node: _Node, known: set[str]) -> None:
    names = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
    plain = names[0].lower() in ("", "memory", "main") and names[1].lower() in ("", "main")
    if not plain or names[2].lower() not in known:
        shown = ".".join(filter(None, names))
        raise WrongQueryError(f"there is no view {shown!r} here (views: {', '.join(COLUMNS)})")


def _nodes(tree: object) -> Iterator[_Node]:
    """Every object of a parsed statement."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)


def _cte_entries(node: _Node) -> list[_Node]:
    names = node.get("cte_map")
    return names["map"] if isinstance(names, dict) else []


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


def _serve(request: _Request, answer: IO[bytes]) -> None:
    """Answer the questions of `request`, message by message: 8 bytes of length, then JSON of its kind and
    content."""

    def send(kind: str, content: object) -> None:
        message = json.dumps([kind, content], ensure_ascii=False, allow_nan=False).encode(
            "utf-8", "surrogatepass"
        )
        answer.write(len(message).to_bytes(8, "little"))
        answer.write(message)
        answer.flush()

    out, limits = Folder(request["out"]), Limits(**request["limits"])
    try:
        with _connection(out, request["version"], limits, request["asked"]) as connection:
            for sql in request["asked"]:
                send("ready", None)
                for piece in _pieces(out, connection, limits, sql):
                    send("columns" if isinstance(piece, tuple) else "rows", piece)
                send("end", None)
    except tuple(ERRORS.values()) as error:
        send(type(error).__name__, str(error))
    except MemoryError:
        send("QueryError", str(too_large(limits)))


def _end_with(asking: IO[bytes]) -> None:
    """End this process when its parent is gone: the parent holds the other end of `asking` open until
    then."""
    asking.read()
    os._exit(1)


def main() -> None:
    """One request on stdin, its answer on stdout; for lineage.store.queries.query."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    asking = os.fdopen(0, "rb", buffering=0)
    line = bytearray()
    while not line.endswith(b"\n"):
        line += asking.read(1) or b"\n"
    request = json.loads(line)
    threading.Thread(target=_end_with, args=(asking,), daemon=True).start()
    most = (_ADDRESS_SPACE_GIB << 30) + int(request["limits"]["memory_gib"] * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    _serve(request, answer)
    answer.flush()
    os._exit(0)  # threads of libraries have nothing left to say


if __name__ == "__main__":
    main()
