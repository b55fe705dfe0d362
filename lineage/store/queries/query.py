"""A question of a user to the lineage store, answered by a process of its own that is stopped when it takes
too much.

DuckDB counts its own memory and stops between two batches of rows, and one value can be larger than any
batch: so this process watches the other from outside, its memory and the clock, and ends it. The rows come
over a pipe as they are found. Loads no Arrow and no DuckDB: the other process does (lineage.store.queries.sql)."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from lineage.index.checksums import DamagedFileError
from lineage.json_record import Json
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError

_TICK_SECONDS: Final = 0.02
_GRACE_SECONDS: Final = 1.0
"""How much longer than its limit a query gets, since one that DuckDB can interrupt stops by itself."""
_OPENING_SECONDS: Final = 300.0
_READ_BYTES: Final = 1 << 20


class QueryError(ValueError):
    """The question could not be answered: it took too long or too much memory."""


class WrongQueryError(QueryError):
    """The question is wrong, or not one that may be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one query may use: seconds, GiB of memory, threads (0: as many as there are processors), and
    values (rows times columns) and MiB of its answer, which is held whole."""

    seconds: float = 300.0
    memory_gib: float = 4.0
    threads: int = 0
    values: int = 20_000_000
    answer_mib: int = 1024


USUAL: Final = Limits()
"""Limits of a query that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """A query's answer: column names and rows, every value as JSON can hold it (timestamps ISO-8601, bytes
    hex, NaN and infinities null)."""

    columns: tuple[str, ...]
    rows: list[tuple[Json, ...]]

    def objects(self) -> list[dict[str, Json]]:
        """The rows as objects, in query order. WrongQueryError where two columns have one name: an object
        would hold the last of them alone."""
        twice = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if twice is not None:
            raise WrongQueryError(f"two columns are called {twice!r}: name them with AS, or take --csv")
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


ERRORS: Final = {kind.__name__: kind for kind in (QueryError, WrongQueryError, StoreError, DamagedFileError)}
"""What the other process may answer in place of rows."""


def too_slow(limits: Limits) -> QueryError:
    """The query took too long."""
    return QueryError(f"the query took more than {limits.seconds:g} s and was stopped: narrow it")


def too_large(limits: Limits) -> QueryError:
    """The query took too much memory."""
    return QueryError(f"the query needs more than {limits.memory_gib:g} GiB of memory: narrow it")


def query(out: Folder, sql: str, version: int | None = None, limits: Limits = USUAL) -> QueryResult:
    """The answer to one SELECT over the views of the run at `out`, as of a version of the corpus or now.

    QueryError if the question is refused, wrong or over a limit; StoreError if the store is missing or
    damaged."""
    return answers(out, [sql], version, limits)[0]


def answers(
    out: Folder, asked: Sequence[str], version: int | None = None, limits: Limits = USUAL
) -> list[QueryResult]:
    """The answers to several questions about one state, each as `query` gives it."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    process = subprocess.Popen(
        # -P: a folder called `lineage` where the caller happens to stand is not ours.
        [sys.executable, "-P", "-m", "lineage.store.queries.sql"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        request = {"out": out.url, "asked": list(asked), "version": version, "limits": asdict(limits)}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        # It stays open while the answer is wanted: the other process ends when this one is gone.
        return _collect(_QueryProcess(process, process.stdout, limits), len(asked))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _collect(watched: _QueryProcess, num: int) -> list[QueryResult]:
    results: list[QueryResult] = []
    columns: tuple[str, ...] = ()
    rows: list[tuple[Json, ...]] = []
    while len(results) < num:
        kind, content = watched.message()
        if kind == "rows":
            rows.extend(map(tuple, content))
        elif kind == "columns":
            columns, rows = tuple(content), []
        elif kind == "ready":
            watched.begin()
        elif kind == "end":
            results.append(QueryResult(columns=columns, rows=rows))
        else:
            raise ERRORS[kind](content)
    return results


class _QueryProcess:
    """The other process: its messages, and its limits kept."""

    def __init__(self, process: subprocess.Popen[bytes], answer: IO[bytes], limits: Limits) -> None:
        self._process, self._answer, self._limits = process, answer, limits
        self._data = bytearray()
        self._num_bytes = 0
        self._deadline = time.monotonic() + _OPENING_SECONDS
        self._most_memory: float | None = None
        self._checked = 0.0
        os.set_blocking(answer.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(answer, selectors.EVENT_READ)

    def begin(self) -> None:
        """A question is put from now on: what the process has loaded until here is not the question's
        memory."""
        if self._most_memory is None:
            self._most_memory = _memory_of(self._process.pid) + self._limits.memory_gib * 2**30
        self._deadline = time.monotonic() + self._limits.seconds + _GRACE_SECONDS
        self._num_bytes = 0

    def message(self) -> tuple[str, Any]:
        """The next message: its kind and its content."""
        size = int.from_bytes(self._take(8), "little")
        kind, content = json.loads(self._take(size))
        return kind, content

    def _take(self, num: int) -> bytes:
        while len(self._data) < num:
            self._keep_limits()
            if not self._selector.select(_TICK_SECONDS):
                continue
            piece = self._answer.read(_READ_BYTES)
            if piece == b"":
                raise QueryError(self._last_words())
            self._data += piece or b""
            self._num_bytes += len(piece or b"")
        taken = bytes(self._data[:num])
        del self._data[:num]
        return taken

    def _keep_limits(self) -> None:
        now = time.monotonic()
        if now > self._deadline:
            raise too_slow(self._limits)
        if self._num_bytes > self._limits.answer_mib << 20:
            raise QueryError(
                f"the answer has more than {self._limits.answer_mib:,} MiB: select fewer or shorter columns,"
                " add a LIMIT, or aggregate"
            )
        if self._most_memory is not None and now - self._checked >= _TICK_SECONDS:
            self._checked = now
            if _memory_of(self._process.pid) > self._most_memory:
                raise too_large(self._limits)

    def _last_words(self) -> str:
        code = self._process.wait()
        if code < 0:
            return (
                f"the process that answered was ended by signal {-code}, most likely for its"
                f" memory: narrow the query"
            )
        return f"the process that answered ended with status {code}; what it said stands above"


def _memory_of(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where it cannot be read (no Linux, or the process is gone)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
