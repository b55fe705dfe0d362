"""What deduplication reads: keys and texts of this run's units and of earlier outputs, and the numbers of
documents.

A document is a *node*, an int64 made of where it lies: the file's ordinal above 31 bits of row. Ordinals of
units are (source_index, file_index) packed, those of earlier outputs' files lie above all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.output_index import read_index
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from pipeline.recipe.checks import MAX_FILES, MAX_SOURCES
from pipeline.results.rows import opened, read_rows
from stages.dedup.bands import I64
from stages.dedup.options import DedupTable

_ROW_BITS: Final = 31
_FILE_BITS: Final = (MAX_FILES - 1).bit_length()
_SOURCE_BITS: Final = (MAX_SOURCES - 1).bit_length()
_EARLIER: Final = 1 << (_SOURCE_BITS + _FILE_BITS)

ID: Final = pa.binary(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupUnit:
    """One input file's survivors: its KEYS file (a name in the job's work folder) and its part of clean texts
    (a name in the job's out folder)."""

    source_index: int
    file_index: int
    keys: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFile:
    """One DEDUP file of a finished output, and the names there of the document parts that its rows lie in, by
    part.

    `dedup_hash` is what the output's index says of it."""

    out: str
    dedup: str
    parts: tuple[tuple[int, str], ...]
    dedup_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysFile(JsonRecord):
    """A file of keys under one ordinal: of this run or, if `earlier`, of a finished output."""

    ordinal: int
    keys_folder: str
    keys: str
    parts_folder: str
    parts: tuple[tuple[int, str], ...]
    keys_hash: str | None = None

    @property
    def earlier(self) -> bool:
        return self.ordinal >= _EARLIER


def unit_file(unit: DedupUnit, work: Folder, out: Folder) -> KeysFile:
    """The keys file of a unit."""
    assert unit.source_index < MAX_SOURCES and unit.file_index < MAX_FILES, "the plan lets no more pass"
    return KeysFile(
        ordinal=unit.source_index << _FILE_BITS | unit.file_index,
        keys_folder=work.url,
        keys=unit.keys,
        parts_folder=out.url,
        parts=((unit.file_index, unit.part),),
    )


def earlier_file(file: EarlierFile, number: int) -> KeysFile:
    """The keys file of an earlier output's DEDUP file, the `number`th of all."""
    _check_fits("files of earlier outputs", number, _SOURCE_BITS + _FILE_BITS)
    return KeysFile(
        ordinal=_EARLIER + number,
        keys_folder=file.out,
        keys=file.dedup,
        parts_folder=file.out,
        parts=file.parts,
        keys_hash=file.dedup_hash,
    )


def earlier_files(table: DedupTable) -> tuple[tuple[EarlierFile, ...], int]:
    """The files of the finished outputs to compare with, and how many documents they hold."""
    files, num_rows = [], 0
    for url in table.against:
        index = read_index(url)
        parts = {(part.source, part.part): part.file for part in index.documents}
        for entry in index.dedup:
            own = ((entry.part, parts[entry.source, entry.part]),)
            files.append(EarlierFile(out=Folder(url).url, dedup=entry.file, parts=own, dedup_hash=entry.hash))
            num_rows += entry.num_rows
    return tuple(files), num_rows


def _check_fits(what: str, number: int, bits: int) -> None:
    if number >> bits:
        raise ValueError(
            f"more than {1 << bits} {what}: deduplicate them in several runs joined by dedup.against"
        )


def ordinals(nodes: I64) -> I64:
    """The ordinal of the file that each node lies in."""
    return nodes >> _ROW_BITS


def is_earlier(nodes: I64) -> npt.NDArray[np.bool_]:
    """Whether each node is a document of an earlier output."""
    return ordinals(nodes) >= _EARLIER


def node_of(source_index: int, file_index: int, part_row: int) -> int:
    """The node of a document of this run."""
    return (source_index << _FILE_BITS | file_index) << _ROW_BITS | part_row


def locators(nodes: I64) -> tuple[I64, I64, I64]:
    """source_index, file_index and part_row of nodes of this run."""
    ordinal = ordinals(nodes)
    return ordinal >> _FILE_BITS, ordinal & ((1 << _FILE_BITS) - 1), nodes & ((1 << _ROW_BITS) - 1)


def publish_slices(folder: Folder, files: Sequence[KeysFile], num_slices: int) -> tuple[int, ...]:
    """Write `files`, in order of ordinal, as lists of neighbouring ones that a task opens by number; the
    first ordinal of each. So neither a task nor a closure carries every file's name."""
    starts = []
    for number, places in enumerate(np.array_split(np.arange(len(files)), num_slices)):
        chosen = [files[index] for index in places]
        starts.append(chosen[0].ordinal)
        folder.write(_slice_name(number), json.dumps([file.to_json() for file in chosen]).encode())
    return tuple(starts)


def open_slice(folder: Folder, number: int) -> list[KeysFile]:
    """The files of one slice."""
    return list(map(KeysFile.from_json, json.loads(folder.read(_slice_name(number)))))


def _slice_name(number: int) -> str:
    return f"slices/{number:05d}.json"


def read_keys(file: KeysFile, columns: Iterable[str]) -> pa.Table:
    """`node` and the columns named (of those that KEYS and DEDUP share) of a keys file; 16-byte hashes
    fixed-size."""
    wanted = [*columns, *([] if file.earlier else ["part_row"])]
    table = read_rows(Folder(file.keys_folder), file.keys, wanted, file.keys_hash)
    rows = np.arange(len(table)) if file.earlier else table["part_row"].to_numpy()
    _check_fits("documents in a file", int(rows.max(initial=0)), _ROW_BITS)
    if np.any(rows[1:] <= rows[:-1]):
        raise ValueError(f"{file.keys} in {file.keys_folder}: part_row must increase from row to row")
    found = {"node": pa.array((file.ordinal << _ROW_BITS) + rows.astype(np.int64), pa.int64())}
    for name in columns:
        found[name] = table[name].cast(ID) if name in ("doc_id", "url_key", "clean_hash") else table[name]
    return pa.table(found)


def read_texts(file: KeysFile, nodes: I64) -> Iterator[str | None]:
    """The clean text of each of `nodes`, sorted documents of `file`; None where it has been purged since."""
    rows = nodes & ((1 << _ROW_BITS) - 1)
    folder = Folder(file.parts_folder)
    if not file.earlier:
        yield from _texts_at(folder, file.parts[0][1], rows)
        return
    places = read_rows(Folder(file.keys_folder), file.keys, ["part", "part_row"], file.keys_hash)
    parts, part_rows = places["part"].to_numpy()[rows], places["part_row"].to_numpy()[rows]
    names = dict(file.parts)
    found: list[str | None] = [None] * len(rows)
    for part in np.unique(parts):
        chosen = np.flatnonzero(parts == part)
        chosen = chosen[np.argsort(part_rows[chosen], kind="stable")]
        for index, text in zip(chosen, _texts_at(folder, names[int(part)], part_rows[chosen]), strict=True):
            found[index] = text
    yield from found


def _texts_at(folder: Folder, name: str, rows: I64) -> Iterator[str | None]:
    """Texts at sorted `rows` of a part, a row group at a time; only those that hold one are read."""
    with opened(folder, name) as file:
        if len(rows) and rows[-1] >= file.metadata.num_rows:
            raise ValueError(
                f"{folder.at(name)} has {file.metadata.num_rows} rows, but its keys name row {int(rows[-1])}:"
                " files of two runs"
            )
        begin = 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            here = rows[(rows >= begin) & (rows < end)]
            if len(here):
                column = file.read_row_group(group, columns=["text"])["text"]
                yield from pc.take(column, pa.array(here - begin)).to_pylist()
            begin = end
