"""Pieces: rows of a unit's clean texts that one task holds in memory, with what decides whose copy stays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.storage.folder import Folder
from pipeline.dedup.inputs import ID, DedupUnit, node_of
from pipeline.dedup.near import preferences
from pipeline.dedup.rows import halves, ints, routed
from pipeline.phases.groups import unit_verdicts
from pipeline.results.rows import opened, read_rows
from stages.dedup.bands import I64
from stages.dedup.inside.anchors import Texts
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import Keep
from stages.dedup.shingles import mix

_IN_A_FILE: Final = 256
ORDER: Final = ("preference", "id_high", "id_low", "node")
"""Columns that order documents: as comparing takes them, those that `keep` prefers first, then by doc_id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRows:
    """Rows [begin, end) of a unit's part and keys. `verdicts` are those of its group."""

    source_index: int
    file_index: int
    keys: str
    part: str
    verdicts: str
    begin: int
    end: int

    @property
    def first_node(self) -> int:
        """The number of its first document."""
        return node_of(self.source_index, self.file_index, self.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideContext:
    """What every phase is given. `out` and `work` hold the parts and the keys, `folder` takes what is published;
    `starts` are the first nodes of all pieces, `slices` those of the slices that pieces are gathered in."""

    table: InsideTable
    keep: Keep
    out: Folder
    work: Folder
    folder: Folder
    num_partitions: int
    starts: I64
    slices: I64

    def partition_of(self, values: I64) -> I64:
        """A partition number for each value, equal for equal ones."""
        return (mix(values.view(np.uint64)) % np.uint64(self.num_partitions)).astype(np.int64)

    def slice_of(self, nodes: I64) -> I64:
        """The slice of pieces that each document lies in."""
        return np.searchsorted(self.slices, nodes, side="right") - 1

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows that a phase has published."""
        return read_rows(self.folder, name, columns)

    def nodes_of(self, number: int) -> tuple[int, int]:
        """The bounds of a piece's nodes: from the first up to before the second."""
        last = number + 1 == len(self.starts)
        return int(self.starts[number]), np.iinfo(np.int64).max if last else int(self.starts[number + 1])


class PieceOfCorpus(NamedTuple):
    """A piece by its number, and the files of its slice that a phase has published, by what they hold."""

    number: int
    files: tuple[tuple[str, str], ...] = ()

    def has(self, what: str) -> bool:
        """Whether such a file was published."""
        return what in dict(self.files)

    def rejected(self, context: InsideContext) -> I64:
        """The documents that keep too little, as far as that is decided."""
        rows = self.rows(context, "rejected")
        return _NONE if rows is None else ints(rows.filter(pc.is_valid(rows["rule"])), "node")

    def rows(self, context: InsideContext, what: str, column: str = "node") -> pa.Table | None:
        """The piece's rows of a file; None where nothing was published."""
        name = dict(self.files).get(what)
        if name is None:
            return None
        rows = context.read(name)
        begin, end = context.nodes_of(self.number)
        nodes = ints(rows, column)
        return rows.filter(pa.array((nodes >= begin) & (nodes < end)))


_NONE: Final = np.empty(0, np.int64)


def rows_by_slice(context: InsideContext, name: str) -> pa.Table:
    """Rows that a phase has published, by slice of their documents."""
    rows = context.read(name)
    return routed(context.slice_of(ints(rows, "node")), rows)


def cut_into_pieces(units: Sequence[tuple[DedupUnit, str, int, int]], chars_at_once: int) -> list[PieceRows]:
    """The pieces of units, which are in (source, file) order, each with its group's verdicts, its rows and its
    characters."""
    found = []
    for unit, verdicts, num_rows, num_chars in units:
        num = min(max(1, -(-num_chars // chars_at_once)), max(1, num_rows))
        borders = [num_rows * number // num for number in range(num + 1)]
        for begin, end in itertools.pairwise(borders):
            if begin < end:
                found.append(PieceRows(**asdict(unit), verdicts=verdicts, begin=begin, end=end))
    return found


def publish_pieces(folder: Folder, pieces: Sequence[PieceRows]) -> None:
    """Write the pieces as lists that a task opens by number."""
    for first in range(0, len(pieces), _IN_A_FILE):
        chosen = [asdict(piece) for piece in pieces[first : first + _IN_A_FILE]]
        folder.write(_list_name(first), json.dumps(chosen).encode())


def open_piece(folder: Folder, number: int) -> PieceRows:
    """The piece of this number."""
    return PieceRows(**json.loads(folder.read(_list_name(number)))[number % _IN_A_FILE])


def _list_name(number: int) -> str:
    return f"pieces/{number // _IN_A_FILE:05d}.json"


def documents_of(context: InsideContext, piece: PieceRows, rejected: I64) -> pa.Table:
    """The documents of a piece that take part, in order of rows: ORDER, and `text`. What comparing dropped takes no
    part, nor do `rejected` nodes."""
    keys = rows_between(
        context.work, piece.keys, ["doc_id", "num_chars", "captured_at", "part_row"], piece.begin, piece.end
    )
    part_rows = ints(keys, "part_row")
    assert np.array_equal(part_rows, np.arange(piece.begin, piece.end)), f"rows of {piece.keys}"
    nodes = part_rows + node_of(piece.source_index, piece.file_index, 0)
    verdicts = unit_verdicts(context.out, piece.verdicts, piece.file_index)
    dropped = ints(verdicts.filter(pc.not_equal(verdicts["status"], "kept")), "part_row")
    keys = keys.set_column(0, "doc_id", keys["doc_id"].cast(ID))
    high, low = halves(keys, "doc_id")
    texts = rows_between(context.out, piece.part, ["text"], piece.begin, piece.end)
    table = pa.table(
        {
            "preference": preferences(keys, context.keep),
            # As signed numbers in the order of the unsigned ones.
            "id_high": (high ^ np.uint64(1 << 63)).view(np.int64),
            "id_low": (low ^ np.uint64(1 << 63)).view(np.int64),
            "node": nodes,
            "text": texts["text"].cast(pa.large_string()),
        }
    )
    gone = np.isin(part_rows, dropped) | np.isin(nodes, rejected)
    return table.filter(pa.array(~gone))


def rows_between(folder: Folder, name: str, columns: list[str], begin: int, end: int) -> pa.Table:
    """Rows [begin, end) of a Parquet file; only row groups that hold one are read."""
    found, first, skipped = [], 0, None
    with opened(folder, name) as file:
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first < end and first + size > begin:
                skipped = first if skipped is None else skipped
                found.append(file.read_row_group(group, columns=columns))
            first += size
    assert skipped is not None
    return pa.concat_tables(found).slice(begin - skipped, end - begin)


def as_texts(documents: pa.Table) -> Texts:
    """The texts of documents as the bytes that they are."""
    column = documents["text"].combine_chunks()
    if not len(column):
        return Texts(np.empty(0, np.uint8), np.zeros(1, np.int64))
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
    begin, end = int(starts[0]), int(starts[-1])
    return Texts(np.frombuffer(data, np.uint8, end)[begin:] if end else np.empty(0, np.uint8), starts - begin)


def text_of(texts: Texts, number: int) -> str:
    """The text of a document."""
    return texts.data[texts.starts[number] : texts.starts[number + 1]].tobytes().decode()


def in_order(rows: pa.Table, *within: str) -> I64:
    """Where rows stand in the order of their documents, and of these columns inside one."""
    keys = [ints(rows, name) for name in (*ORDER, *within)]
    return np.lexsort(keys[::-1])
