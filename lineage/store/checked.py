"""The bytes that readers of the store rely on, checked before they are used: damage is an error, never a
wrong answer.

1. A file of the Delta log is compared with its hash in checksums.json. What is newer than that (facts of a
  training or
   a purge before its checksum update) is taken as it is.
2. A data file of one row group is compared whole with the hash in its name.
3. A larger one has a side file: what its row groups can hold, and where each of their columns lies, with a
  digest. A
   reader checks the footer, the page index and the columns of row groups that it needs. The pages' own checksums would
   not do: they cover no page header and no statistics, and one wrong bit in a bound hides the rows that are asked for.

Nothing here loads Arrow: a point question is answered without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import xxhash

from lineage.ids import content_hash
from lineage.index.checksums import CHECKSUMS_FILE, FileSum, hash_file, refusal, seal, sealed_body
from lineage.storage.folder import Folder

GROUP_ROWS: Final = 16_384
"""Rows of a row group; a file of no more than these has no side file."""

SIDE_FOLDER: Final = "_sums"
"""Where a table's side files lie: Delta leaves alone what begins with an underscore."""

_GAP_BYTES: Final = 1 << 20
"""In an object store, bytes that are read for nothing where that saves a request."""

_RUN_BYTES: Final = 8 << 20
"""The most that is read at once."""

Bound = int | str
Needs = Mapping[str, Sequence[tuple[Bound, Bound]]]
"""For each of some columns the ranges (both ends included) of which a row that is asked for has one."""


def may_hold(bounds: Mapping[str, tuple[Bound, Bound]], needs: Needs) -> bool:
    """Whether rows within `bounds` can be among those that are asked for."""
    return all(
        any(low <= bounds[column][1] and bounds[column][0] <= high for low, high in ranges)  # type: ignore[operator]
        for column, ranges in needs.items()
        if column in bounds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRowGroup:
    """A row group: the least and greatest value of the columns that files are pruned by, and where each
    column ends.

    Columns lie one behind the other in the schema's order, from `start` on; `digests` has an xxh3-64 of
    each."""

    bounds: dict[str, tuple[Bound, Bound]]
    start: int
    ends: tuple[int, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A side file: the length of a data file, its columns, its row groups, and the digest of all that comes
    after."""

    size: int
    columns: tuple[str, ...]
    groups: tuple[CheckedRowGroup, ...]
    rest: str

    def pieces(self, columns: Collection[str] | None, needs: Needs | None) -> Iterator[tuple[int, int, str]]:
        """(start, end, digest) of what a reader of these columns relies on (None: all) of the rows that
        `needs` leaves (None: all), in the file's order."""
        wanted = [columns is None or column in columns for column in self.columns]
        for group in self.groups:
            if needs is None or may_hold(group.bounds, needs):
                starts = (group.start, *group.ends)
                for start, end, digest, is_wanted in zip(
                    starts, group.ends, group.digests, wanted, strict=False
                ):
                    if is_wanted:
                        yield start, end, digest
        yield self.groups[-1].ends[-1], self.size, self.rest


def digest_of(data: bytes | memoryview) -> str:
    """xxh3-64 in hex: it guards against corruption only."""
    return xxhash.xxh3_64_hexdigest(data)


def encode_sums(sums: Sums) -> bytes:
    """The bytes of a side file."""
    return seal(
        {
            "bytes": sums.size,
            "columns": sums.columns,
            "rest": sums.rest,
            "groups": [[group.bounds, group.start, group.ends, group.digests] for group in sums.groups],
        }
    )


def side_name(path: str) -> str:
    """The side file of a table's data file, both within the table's folder."""
    return f"{SIDE_FOLDER}/{path}.json"


def read_sums(table: Folder, path: str) -> Sums | None:
    """The side file of a data file, None if it has none (one row group, or written before there were side
    files)."""
    name = side_name(path)
    try:
        data = table.read(name)
    except FileNotFoundError:
        return None
    fields = json.loads(sealed_body(data, table.at(name)) + b"}")
    groups = (
        CheckedRowGroup(
            bounds={column: (low, high) for column, (low, high) in bounds.items()},
            start=start,
            ends=tuple(ends),
            digests=tuple(digests),
        )
        for bounds, start, ends, digests in fields["groups"]
    )
    return Sums(
        size=fields["bytes"], columns=tuple(fields["columns"]), groups=tuple(groups), rest=fields["rest"]
    )


def check_whole(table: Folder, path: str) -> None:
    """Compare a data file with the hash in its name; DamagedFileError if it is another."""
    expected = path.removesuffix(".parquet").rpartition("-")[2]
    found = hash_file(table, path)
    if found != expected:
        raise refusal(table.at(path), f"its hash is {found}, its name says {expected}")


class DataFiles:
    """The data files of a table, for a reader that reads them itself: `check` what it is about to rely on.

    What was checked once is not checked again. FileNotFoundError for a file that is not there."""

    def __init__(self, table: Folder) -> None:
        self._table = table
        self._sums: dict[str, Sums | None] = {}
        self._checked: set[tuple[str, int]] = set()

    def check(
        self, path: str, num_rows: int, columns: Collection[str] | None = None, needs: Needs | None = None
    ) -> None:
        """Check the footer, the page index and, of every row group that may hold rows asked for, the columns
        asked for (None: all). DamagedFileError names the file."""
        if path not in self._sums:
            self._sums[path] = read_sums(self._table, path) if num_rows > GROUP_ROWS else None
            if self._sums[path] is None:
                check_whole(self._table, path)
        sums = self._sums[path]
        if sums is None:
            return
        # A piece is a column of one row group with its page headers, or all that comes behind the last group:
        # page index, footer and their statistics. Its start names it.
        left = [piece for piece in sums.pieces(columns, needs) if (path, piece[0]) not in self._checked]
        with self._table.open(path) as file:
            for run in _runs(left, _GAP_BYTES if self._table.is_remote else 0):
                self._check_run(path, file, run)
        self._checked.update((path, start) for start, _, _ in left)

    def _check_run(self, path: str, file: BinaryIO, run: Sequence[tuple[int, int, str]]) -> None:
        first = run[0][0]
        file.seek(first)
        data = memoryview(file.read(run[-1][1] - first))
        for start, end, digest in run:
            if digest_of(data[start - first : end - first]) != digest:
                reason = f"its bytes {start} to {end} are not those that were written"
                raise refusal(self._table.at(path), reason)


def _runs(pieces: Sequence[tuple[int, int, str]], gap: int) -> Iterator[list[tuple[int, int, str]]]:
    """Rising pieces in runs that are read at once, where no more than `gap` bytes lie between two."""
    run: list[tuple[int, int, str]] = []
    for piece in pieces:
        if run and (piece[0] - run[-1][1] > gap or piece[1] - run[0][0] > _RUN_BYTES):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


class LogSums:
    """The hashes of the Delta logs' files in an output's checksums.json: read once, asked for each table.

    An output without checksums.json is not finished, and its logs are not checked."""

    def __init__(self, out: Folder) -> None:
        self._out = out
        try:
            data = out.read(CHECKSUMS_FILE)
        except FileNotFoundError:
            self._body = b""
        else:
            self._body = sealed_body(data, out.at(CHECKSUMS_FILE))

    def check(self, name: str, version: int | None = None) -> None:
        """Compare the files that define table `name` at a Delta version, or now, with their hashes;
        DamagedFileError names one that is another."""
        commits: dict[tuple[int, str], str] = {}
        checkpoints: dict[tuple[int, str], str] = {}
        for file, digest in self._of_table(name):
            number, _, kind = file.rpartition("/")[2].partition(".")
            if number.isdigit() and (version is None or int(number) <= version):
                (commits if kind == "json" else checkpoints)[int(number), file] = digest
        # Delta reads the newest checkpoint at or before the version and the commits behind it. Older files
        # have no part in the answer, so they are not checked.
        newest = max((number for number, _ in checkpoints), default=-1)
        needed = {file: digest for (number, file), digest in checkpoints.items() if number == newest}
        needed |= {file: digest for (number, file), digest in commits.items() if number > newest}
        for file, digest in needed.items():
            try:
                data = self._out.read(file)
            except FileNotFoundError as error:
                raise refusal(
                    self._out.at(file), f"it is not there, and {CHECKSUMS_FILE} names it"
                ) from error
            if not data:
                raise refusal(self._out.at(file), "it is empty")
            if (found := content_hash(data).hex()) != digest:
                raise refusal(self._out.at(file), f"its hash is {found}, {CHECKSUMS_FILE} says {digest}")

    def names(self, name: str) -> frozenset[str]:
        """The files of a table's log that checksums.json names."""
        return frozenset(file for file, _ in self._of_table(name))

    def has(self, file: str) -> bool:
        """Whether checksums.json names the file."""
        return b'{"file":' + json.dumps(file, ensure_ascii=False).encode() in self._body

    def _of_table(self, name: str) -> Iterator[tuple[str, str]]:
        # The file is searched and not parsed: with ten billion documents it has a hundred thousand lines.
        line = rb'\n  (\{"file":"lineage/%s/_delta_log/[^\n]*\})' % re.escape(name.encode())
        for found in re.finditer(line, self._body):
            entry = FileSum(**json.loads(found[1]))
            yield entry.file, entry.hash
