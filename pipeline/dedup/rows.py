"""What the phases of deduplication share: their context, and Arrow columns as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lineage.storage.folder import Folder
from pipeline.dedup.exchange import PARTITION, Rows
from pipeline.dedup.inputs import ID, KeysFile, open_slice, ordinals, read_keys
from pipeline.results.dedup_result import DedupCounts
from pipeline.results.rows import opened, read_rows
from stages.dedup.bands import I64
from stages.dedup.options import DedupTable
from stages.dedup.shingles import mix


class PartitionResult(NamedTuple):
    """What a partition came to: the rows to publish, as a table or as tables one after another, and what it
    counted."""

    rows: Rows
    counts: DedupCounts = DedupCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every phase is given: the options, the folder of this stage's files, how the work is spread, and
    the key of the deciding shingle hash (known once identity is done)."""

    table: DedupTable
    folder: Folder
    num_partitions: int
    slice_starts: tuple[int, ...]
    group_starts: tuple[int, ...]
    shingle_key: int = 0

    def partition_of(self, values: I64) -> I64:
        """A partition number for each value, equal for equal ones."""
        return (mix(values.view(np.uint64)) % np.uint64(self.num_partitions)).astype(np.int64)

    def slice_of(self, nodes: I64) -> I64:
        """The slice of files that each node lies in."""
        return np.searchsorted(np.array(self.slice_starts), ordinals(nodes), side="right") - 1

    def group_of(self, nodes: I64) -> I64:
        """The number of the group of files that each node of this run lies in."""
        return np.searchsorted(np.array(self.group_starts), ordinals(nodes), side="right") - 1

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows that a phase has published."""
        return read_rows(self.folder, name, columns)

    def tables(self, name: str) -> Iterator[pa.Table]:
        """The same, a row group at a time."""
        with opened(self.folder, name) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


class FileSlice(NamedTuple):
    """Neighbouring files that one task reads, by number, and the published nodes among them that identity has
    taken out (None: none)."""

    number: int
    repeated: str | None


def first_documents(
    context: Context, files: FileSlice, columns: list[str]
) -> Iterator[tuple[KeysFile, pa.Table]]:
    """Each file of the slice with its keys, less the documents that identity has taken out."""
    gone = ints(context.read(files.repeated), "node") if files.repeated else np.empty(0, np.int64)
    for file in open_slice(context.folder, files.number):
        table = read_keys(file, columns)
        yield (
            file,
            table.filter(pa.array(np.isin(ints(table, "node"), gone, invert=True))) if len(gone) else table,
        )


def routed(numbers: I64, rows: pa.Table) -> pa.Table:
    """`rows` with their partition numbers."""
    return rows.append_column(PARTITION, pa.array(numbers, pa.int64()))


def empty(**columns: pa.DataType) -> pa.Table:
    """A table without rows."""
    return pa.schema(list(columns.items())).empty_table()


def ints(rows: pa.Table, name: str) -> I64:
    """An int64 column."""
    values: I64 = rows[name].to_numpy()
    return values


def prefix(rows: pa.Table, name: str) -> I64:
    """The first 8 bytes of a column of 16-byte hashes without nulls."""
    return halves(rows, name)[0].view(np.int64)


def halves(rows: pa.Table, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """A column of 16-byte hashes without nulls as two big-endian integers, which sort as the bytes do."""
    column = rows[name].combine_chunks()
    assert column.type == ID and not column.null_count, f"{name}: {column.type}, {column.null_count} nulls"
    data = column.buffers()[1] if len(column) else b""
    raw = np.frombuffer(data, ">u8", 2 * len(column), 16 * column.offset).reshape(-1, 2).astype(np.uint64)
    return np.ascontiguousarray(raw[:, 0]), np.ascontiguousarray(raw[:, 1])


def positions(sorted_values: I64, wanted: I64) -> I64:
    """The index of each wanted value among sorted distinct ones, -1 where it is not there."""
    if not len(sorted_values):
        return np.full(len(wanted), -1)
    found = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return np.where(sorted_values[found] == wanted, found, -1)


def are_among(sorted_hashes: I64, wanted: I64) -> npt.NDArray[np.bool_]:
    """Whether each wanted hash, in an array of any shape, is one of the sorted distinct ones."""
    # Most are not: their low bits say so, for a fifth of what a binary search costs.
    low_bits = (1 << (8 * len(sorted_hashes)).bit_length()) - 1
    occupied = np.zeros(low_bits + 1, np.bool_)
    occupied[sorted_hashes & low_bits] = True
    found: npt.NDArray[np.bool_] = occupied[wanted & low_bits]
    found[found] = positions(sorted_hashes, wanted[found]) >= 0
    return found
