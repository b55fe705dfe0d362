"""What readers of the store rely on, checked before it is believed: a damaged byte is an error, never a wrong answer.

1. A file of the Delta log is compared with its hash in checksums.json. What is newer than that (facts of a training or
   a purge that is not covered yet) is taken as it is.
2. A data file of one row group is compared whole with the hash in its name.
3. A larger one has a side file: where its row groups lie, what they can hold, and a digest of each 64 KiB. A reader
   checks the footer, the page index and the row groups that it needs. Its pages' own checksums would not do: they cover
   no page header and no statistics, and one wrong bit in a bound hides the row group that holds the answer.

Nothing here loads Arrow: a point question is answered without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash
from blake3 import blake3

from lineage.checksums import CHECKSUMS_FILE, DamagedFileError, hash_file, seal
from lineage.ids import ID_BYTES, content_hash
from lineage.storage import Folder

GROUP_ROWS: Final = 16_384
"""Rows of a row group; a file of no more than these has no side file."""

SIDE_FOLDER: Final = "_sums"
"""Where a table's side files lie: Delta leaves alone what begins with an underscore."""

BLOCK_BYTES: Final = 1 << 16
_DIGEST_BYTES: Final = 8

Bound = int | str
Needs = Mapping[str, Sequence[tuple[Bound, Bound]]]
"""For each of some columns the ranges (both ends included) of which a row that is asked for has one."""


def refusal(where: str, reason: str) -> DamagedFileError:
    """The error for a file that does not hold what was written."""
    return DamagedFileError(f"{where} is damaged: {reason}. Run sluice verify, and restore the file from a copy")


def may_hold(bounds: Mapping[str, tuple[Bound, Bound]], needs: Needs) -> bool:
    """Whether rows within `bounds` can be among those that are asked for."""
    return all(
        any(low <= bounds[column][1] and bounds[column][0] <= high for low, high in ranges)  # type: ignore[operator]
        for column, ranges in needs.items()
        if column in bounds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A row group: its bytes [start, end), and the least and greatest value of the columns that files are pruned by."""

    start: int
    end: int
    bounds: dict[str, tuple[Bound, Bound]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A side file: the row groups of a data file, its length, and the digests of its blocks, 8 bytes each."""

    size: int
    groups: tuple[Group, ...]
    digests: bytes

    def check(self, data: bytes | memoryview, first: int, where: str) -> None:
        """DamagedFileError unless `data` are the blocks of the file from block `first` on."""
        view = memoryview(data)
        for number, at in enumerate(range(0, len(view), BLOCK_BYTES), first):
            expected = self.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
            if xxhash.xxh3_64_digest(view[at : at + BLOCK_BYTES]) != expected:
                raise refusal(where, f"its bytes from {number * BLOCK_BYTES} on are not those that were written")


def encode_sums(data: bytes, groups: Sequence[Group]) -> bytes:
    """The side file of a data file with these bytes and row groups."""
    blocks = range(0, len(data), BLOCK_BYTES)
    view = memoryview(data)
    return seal({
        "bytes": len(data),
        "groups": [[group.start, group.end, group.bounds] for group in groups],
        "blocks": [xxhash.xxh3_64_digest(view[at : at + BLOCK_BYTES]).hex() for at in blocks],
    })  # fmt: skip


def side_name(path: str) -> str:
    """The side file of a table's data file, both within the table's folder."""
    return f"{SIDE_FOLDER}/{path}.json"


def read_sums(table: Folder, path: str) -> Sums | None:
    """The side file of a data file, None if it has none (one row group, or written before there were side files)."""
    name = side_name(path)
    try:
        data = table.read(name)
    except FileNotFoundError:
        return None
    fields: dict[str, Any] = json.loads(unsealed_body(data, table.at(name)) + b"}")
    return Sums(
        size=fields["bytes"],
        groups=tuple(
            Group(start=start, end=end, bounds={column: (low, high) for column, (low, high) in bounds.items()})
            for start, end, bounds in fields["groups"]
        ),
        digests=bytes.fromhex("".join(fields["blocks"])),
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

    def check(self, path: str, num_rows: int, needs: Needs | None) -> None:
        """Check the footer, the page index and every row group of a file that may hold rows asked for (None: all)."""
        if path not in self._sums:
            self._sums[path] = read_sums(self._table, path) if num_rows > GROUP_ROWS else None
            if self._sums[path] is None:
                check_whole(self._table, path)
        sums = self._sums[path]
        if sums is None:
            return
        size = self._table.size(path)
        if size != sums.size:
            raise refusal(self._table.at(path), f"it has {size} bytes, expected {sums.size}")
        self._check_range(path, sums, sums.groups[-1].end, sums.size)
        for group in sums.groups:
            if needs is None or may_hold(group.bounds, needs):
                self._check_range(path, sums, group.start, group.end)

    def _check_range(self, path: str, sums: Sums, start: int, end: int) -> None:
        if (path, start) in self._checked:
            return
        first = start // BLOCK_BYTES
        from_byte, to_byte = first * BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, sums.size)
        data = self._table.read_range(path, from_byte, to_byte - from_byte)
        if len(data) != to_byte - from_byte:
            raise refusal(self._table.at(path), f"it ends at byte {from_byte + len(data)}, expected {sums.size} bytes")
        sums.check(data, first, self._table.at(path))
        self._checked.add((path, start))


class LogSums:
    """The hashes of the Delta logs' files that checksums.json of an output tells: read once, asked for each table.

    An output without checksums.json is not finished, and nothing is known of its logs."""

    def __init__(self, out: Folder) -> None:
        self._out = out
        try:
            data = out.read(CHECKSUMS_FILE)
        except FileNotFoundError:
            self._body = b""
        else:
            self._body = unsealed_body(data, out.at(CHECKSUMS_FILE))

    def check(self, name: str, version: int | None = None) -> None:
        """Compare the files that tell table `name` at a Delta version, or now, with their hashes; DamagedFileError
        names one that is another."""
        commits, checkpoints = {}, {}
        for file, digest in self._of_table(name):
            number, _, kind = file.rpartition("/")[2].partition(".")
            if number.isdigit() and (version is None or int(number) <= version):
                (commits if kind == "json" else checkpoints)[int(number), file] = digest
        newest = max((number for number, _ in checkpoints), default=-1)
        needed = {file: digest for (number, file), digest in checkpoints.items() if number == newest}
        needed |= {file: digest for (number, file), digest in commits.items() if number > newest}
        for file, digest in needed.items():
            try:
                found = content_hash(self._out.read(file)).hex()
            except FileNotFoundError as error:
                raise refusal(self._out.at(file), f"it is not there, and {CHECKSUMS_FILE} names it") from error
            if found != digest:
                raise refusal(self._out.at(file), f"its hash is {found}, {CHECKSUMS_FILE} says {digest}")

    def _of_table(self, name: str) -> Iterator[tuple[str, str]]:
        # The file is searched and not parsed: with ten billion documents it has a hundred thousand lines.
        line = rb'\n  (\{"file":"lineage/%s/_delta_log/[^\n]*\})' % re.escape(name.encode())
        for found in re.finditer(line, self._body):
            entry: dict[str, Any] = json.loads(found[1])
            yield entry["file"], entry["hash"]


def unsealed_body(data: bytes, where: str) -> bytes:
    """The bytes of a sealed file that its checksum covers; DamagedFileError if one is not as written."""
    body, mark, tail = data.rpartition(b',\n "checksum": "')
    expected = blake3(body).digest(length=ID_BYTES).hex()
    if not mark or tail != b'%s"\n}\n' % expected.encode():
        raise refusal(where, "it does not end with its own checksum")
    return body
