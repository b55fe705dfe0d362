"""The Parquet files of a columnar index as one table of DuckDB, and the condition that a recipe gives over it.

DuckDB loads no extension. Files that are not on a disk are read through our own clients, with their credentials and
their patience."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import duckdb
from fsspec import AbstractFileSystem

from lineage.recipe import RecipeError
from lineage.storage.folder import is_remote
from pipeline.inputs.files import Input
from pipeline.inputs.ranges import FileRanges, RangeStream

TABLE: Final = (
    "read_parquet($files, hive_partitioning = true, hive_types_autocast = false, union_by_name = true)"
)
_SCHEME: Final = "indexfile"
_BUFFER_BYTES: Final = 256 << 10
"""Read at once where less is asked for: DuckDB itself asks for whole chunks of columns, and for the footer in
pieces."""
_CONNECTIONS: Final = 8
"""Of all threads that read an index."""


class _Part(NamedTuple):
    """A part of a parsed statement: its class, and the function (in lower case) or the column that it names."""

    kind: str
    function: str
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTable:
    """The opened table: `files` are what TABLE takes, `columns` what it has. `named` says in messages which key it
    is of."""

    connection: duckdb.DuckDBPyConnection
    files: tuple[str, ...]
    columns: tuple[str, ...]
    source: str

    def ask(self, sql: str, **values: object) -> duckdb.DuckDBPyConnection:
        """The answer to a question, in which TABLE stands for the table."""
        return self.connection.execute(sql, {"files": list(self.files), **values})

    def rows(self, sql: str, **values: object) -> duckdb.DuckDBPyRelation:
        """The same as a relation, which is computed as its rows are taken."""
        return self.connection.sql(sql, params={"files": list(self.files), **values})

    def check_condition(self, where: str) -> None:
        """RecipeError unless `where` is one expression over the columns that reads nothing but the row, and gives the
        same on every call."""

        def refusal(why: str) -> RecipeError:
            return RecipeError(f"source.where of {self.source!r} = {where!r}: {why}", "source.where")

        try:
            frame, asked = self._parsed("true"), self._parsed(where)
        except duckdb.Error as error:
            raise refusal(f"expected an SQL expression: {first_line(error)}") from error
        condition = asked.pop("where_clause", None)
        frame.pop("where_clause")
        # One that closes the bracket before it, as "a) OR (b", does so with one kind of brackets alone.
        is_closed = False
        with suppress(duckdb.Error):
            is_closed = bool(self._parsed(f"[\n{where}\n] IS NULL"))
        if not is_closed or _without_places(asked) != _without_places(frame):
            raise refusal("expected one condition, as it stands behind WHERE, and nothing behind it")
        columns = {name.lower() for name in self.columns}
        is_fixed = self._functions()
        for kind, function, column in _parts(condition):
            if kind == "SUBQUERY":
                raise refusal(
                    "it holds a SELECT of its own: expected a condition on a row of the index alone"
                )
            if kind == "PARAMETER":
                raise refusal("it holds a parameter: expected the value itself")
            if kind == "COLUMN_REF" and column.lower() not in columns:
                raise refusal(f"the index has no column {column!r}; it has {', '.join(sorted(self.columns))}")
            if function and not is_fixed.get(function, False):
                known = function in is_fixed
                why = (
                    "may give another value on another day" if known else "is none that a condition may call"
                )
                raise refusal(f"the function {function!r} {why}")
        try:
            self.ask(f"SELECT 1 FROM {TABLE} WHERE (\n{where}\n) LIMIT 0")
        except duckdb.Error as error:
            raise refusal(first_line(error)) from error

    def _parsed(self, where: str) -> dict[str, object]:
        """The parts of a SELECT with this condition; duckdb.Error where it is no SQL."""
        statement = f"SELECT * FROM t WHERE (\n{where}\n)"
        (text,) = self.connection.execute("SELECT json_serialize_sql($1)", [statement]).fetchall()[0]
        told = json.loads(text)
        if told["error"]:
            raise duckdb.ParserException(told["error_message"])
        found: dict[str, object] = told["statements"][0]["node"] if len(told["statements"]) == 1 else {}
        return found

    def _functions(self) -> Mapping[str, bool]:
        """The functions of a row's values, and whether each gives the same for the same values, always."""
        rows = self.connection.execute(
            # age() of one time is that of today, whatever its stability says.
            "SELECT lower(function_name), bool_and(function_type = 'scalar' AND stability = 'CONSISTENT')"
            " AND lower(function_name) <> 'age' FROM duckdb_functions() GROUP BY 1"
        ).fetchall()
        return dict(rows)


@contextmanager
def opened_index(source: str, files: Sequence[Input]) -> Iterator[IndexTable]:
    """The table of these files; RecipeError where one of them is no Parquet."""
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    )
    # Or a condition on fetch_time would select other records on a machine elsewhere.
    connection.execute("SET TimeZone = 'UTC'")
    by_place = {f"{number}/{_partitions(found.url)}": found for number, found in enumerate(files)}
    called = tuple(
        # DuckDB takes a name with a wildcard for a pattern.
        f"{_SCHEME}://{place}" if is_remote(found.url) or set(found.url) & set("*?[") else found.url
        for place, found in by_place.items()
    )
    remote = _RemoteFiles(by_place)
    connection.register_filesystem(remote)
    try:
        try:
            described = connection.execute(
                f"DESCRIBE SELECT * FROM {TABLE}", {"files": list(called)}
            ).fetchall()
        except duckdb.Error as error:
            said = first_line(error)
            for name, found in zip(called, files, strict=True):
                said = said.replace(name, found.url)
            raise RecipeError(f"source.index of {source!r}: {said}", "source.index") from error
        columns = tuple(name for name, *_ in described)
        yield IndexTable(connection=connection, files=called, columns=columns, source=source)
    finally:
        connection.unregister_filesystem(_SCHEME)
        connection.close()


def first_line(error: BaseException) -> str:
    """What DuckDB says, without the kind of error and the statement that it quotes."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.partition(" Error: ")[2] or line


def _parts(tree: object) -> Iterator[_Part]:
    if isinstance(tree, dict):
        (column, *_) = tree.get("column_names") or [""]
        yield _Part(str(tree.get("class")), str(tree.get("function_name") or "").lower(), column)
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _parts(value)


def _without_places(tree: Any) -> Any:
    """A part of a statement without where in its text it stands."""
    if isinstance(tree, dict):
        return {k: _without_places(v) for k, v in tree.items() if not k.startswith("query_location")}
    return [_without_places(each) for each in tree] if isinstance(tree, list) else tree


def _partitions(url: str) -> str:
    """The folders of a file that name a value, as crawl=CC-MAIN-2026-42 does, and its name."""
    *folders, name = url.partition("?")[0].split("/")
    return "/".join([*(folder for folder in folders if "=" in folder), name])


class _RemoteFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files by what DuckDB calls them, read by few connections."""

    protocol = _SCHEME
    cachable = False

    def __init__(self, files: Mapping[str, Input]) -> None:
        super().__init__()
        self._files = files
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> _SharedFile:
        found = self._files[path]
        return _SharedFile(FileRanges(found.address, found.url), found.size, self._connections)

    def info(self, path: str, **more: Any) -> dict[str, object]:
        return {"name": path, "type": "file", "size": self._files[self._strip_protocol(path)].size}

    def glob(self, path: str, **more: Any) -> list[str]:
        return [path]

    def modified(self, path: str) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC)


class _SharedFile:
    """A file in which each thread has a position of its own: DuckDB reads one by several threads, each of which
    goes to a place and reads there, and nothing keeps another one out between both."""

    def __init__(self, reader: FileRanges, size: int, connections: threading.BoundedSemaphore) -> None:
        self._reader, self._size, self._connections = reader, size, connections
        self._of_thread = threading.local()

    def _stream(self) -> io.BufferedReader:
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = io.BufferedReader(
                RangeStream(self._reader, 0, self._size), _BUFFER_BYTES
            )
        found: io.BufferedReader = self._of_thread.stream
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream().seek(offset, whence)

    def tell(self) -> int:
        return self._stream().tell()

    def read(self, size: int = -1) -> bytes:
        with self._connections:
            return self._stream().read(size)

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""
