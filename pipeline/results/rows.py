"""Rows into a Parquet file that appears whole or not at all, in bounded memory and with bytes that repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.checksums import DamagedFileError, check_file
from lineage.index.output_index import PartFile
from lineage.storage.folder import Folder, StorageError
from lineage.storage.hashing_file import HashingFile

_MAX_ROWS = 4096
_MAX_CHARS = 8 << 20
_MAX_OTHER_CHARS = 64 << 20
"""Of addresses and other fields: a hostile record may have a million characters of each."""


_TEXT: Final = "text"
_OTHER_TEXT: Final = ("url", "metadata", "record_id", "host")


class RowWriter:
    """A context: `add` rows as mappings of column to value (absent is null). Row groups end after 4,096 rows,
    8 MiB of text or 64 MiB of other fields, whichever comes first: a function of the rows alone.

    After the block `num_rows` and `hash` (BLAKE3-128 in hex) say what was published. A file that `is_passing` is
    read once and then removed: it is not compressed, which would take longer than to write and read it."""

    def __init__(self, folder: Folder, name: str, schema: pa.Schema, *, is_passing: bool = False) -> None:
        self._is_passing = is_passing
        self.name, self.num_rows, self.hash = name, 0, ""
        self._folder, self._schema = folder, schema
        self._rows: list[Mapping[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._chars = self._other_chars = 0

    def __enter__(self) -> RowWriter:
        with ExitStack() as opened:
            self._sink = HashingFile(opened.enter_context(self._folder.writing(self.name)))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, "w"),
                self._schema,
                compression="none" if self._is_passing else "zstd",
                compression_level=None if self._is_passing else 3,
                use_dictionary=not self._is_passing,
                write_page_index=True,
                write_page_checksum=True,
            )
            self._stack = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._give_up()
            self._stack.__exit__(*error)
            return
        with self._stack:
            try:
                self._flush()
                self._writer.close()
            except BaseException:
                self._give_up()
                raise
            self.hash = self._sink.hexdigest()

    def _give_up(self) -> None:
        """Close the writer of a file that is not to be: left open, it is closed as it is collected, with a
        traceback that nobody can catch."""
        with suppress(
            OSError
        ):  # a disk that is full fails here again, and the first error is the one to report
            self._writer.close()

    def add(self, row: Mapping[str, Any]) -> None:
        """One row."""
        self._rows.append(row)
        self.num_rows += 1
        self._chars += len(row.get(_TEXT) or "")
        self._other_chars += sum(len(row.get(name) or "") for name in _OTHER_TEXT)
        full = self._chars >= _MAX_CHARS or self._other_chars >= _MAX_OTHER_CHARS
        if full or len(self._rows) >= _MAX_ROWS:
            self._flush()

    def add_table(self, table: pa.Table) -> None:
        """The rows of a table; what is written is as if `add` had been given them one by one. One file is written
        either so or so."""
        self.num_rows += table.num_rows
        chars = _num_chars(table, _TEXT).cumsum()
        other_chars = np.add.reduce([_num_chars(table, name) for name in _OTHER_TEXT]).cumsum()
        first = 0
        while first < table.num_rows:
            seen, others_seen = (sums[first - 1] if first else 0 for sums in (chars, other_chars))
            # The first row that fills the group is its last one.
            last = min(
                int(np.searchsorted(chars, seen + _MAX_CHARS - self._chars)),
                int(np.searchsorted(other_chars, others_seen + _MAX_OTHER_CHARS - self._other_chars)),
                first + _MAX_ROWS - sum(each.num_rows for each in self._tables) - 1,
            )
            stop = min(last + 1, table.num_rows)
            self._tables.append(table.slice(first, stop - first))
            self._chars += int(chars[stop - 1] - seen)
            self._other_chars += int(other_chars[stop - 1] - others_seen)
            if last < table.num_rows:
                self._flush()
            first = stop

    def _flush(self) -> None:
        if self._rows:
            columns = {name: [row.get(name) for row in self._rows] for name in self._schema.names}
            self._writer.write_table(pa.table(columns, schema=self._schema))
        elif self._tables:
            self._writer.write_table(pa.concat_tables(self._tables).combine_chunks())
        self._rows, self._tables, self._chars, self._other_chars = [], [], 0, 0


def _num_chars(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """The characters of each row's text in a column; none where there is no such column, or it is null."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    lengths = pc.utf8_length(table[name].cast(pa.string())).cast(pa.int64())
    counted: npt.NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy()
    return counted


def table_bytes(table: pa.Table) -> bytes:
    """A small table as the bytes of a Parquet file; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", compression_level=3, row_group_size=16_384, write_page_checksum=True
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def publish_table(folder: Folder, name: str, table: pa.Table) -> None:
    """A whole table as a Parquet file."""
    with folder.writing(name) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=3,
            row_group_size=16_384,
            write_page_checksum=True,
        )


def read_rows(
    folder: Folder, name: str, columns: list[str] | None = None, digest: str | None = None
) -> pa.Table:
    """A whole Parquet file, or some of its columns. For small files: half the time of
    `pyarrow.parquet.read_table`.

    With `digest`, what an index says of the file, every byte is checked before; its pages are in any case.
    DamagedFileError names a file that is not as it was written."""
    with opened(folder, name, digest) as file:
        return file.read(columns=columns)


@contextmanager
def opened(folder: Folder, name: str, digest: str | None = None) -> Iterator[pq.ParquetFile]:
    """A Parquet file to read from, checked as `read_rows` says."""
    if digest is not None:
        check_file(folder, name, digest)
    with folder.open(name) as file:
        try:
            yield pq.ParquetFile(file, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, StorageError) or not str(error):
                raise
            raise DamagedFileError(
                f"{folder.at(name)} cannot be read: {error}. Run sluice verify, and restore the file from a copy"
            ) from error


class CleanText(NamedTuple):
    """A document's clean text, and its row in its part."""

    row: int
    doc_id: bytes
    text: str


def clean_texts(out: Folder, part: PartFile) -> Iterator[CleanText]:
    """The texts of a part of `documents/` in order; purged ones are not there any more."""
    first = 0
    with opened(out, part.file, part.hash) as file:
        for batch in file.iter_batches(batch_size=512, columns=["doc_id", "text"]):
            for row, plain in enumerate(batch.to_pylist(), first):
                if plain["text"] is not None:
                    yield CleanText(row, plain["doc_id"], plain["text"])
            first += batch.num_rows


def read_texts(out: Folder, part: str, part_rows: Sequence[int]) -> dict[int, str]:
    """The texts of some rows of a part, reading only the row groups that hold them; a purged text is left
    out."""
    found: dict[int, str] = {}
    if not part_rows:
        return found
    with opened(out, part) as file:
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            wanted = [row - first for row in part_rows if first <= row < first + size]
            if wanted:
                texts = (
                    file.read_row_group(group, columns=["text"])["text"].take(pa.array(wanted)).to_pylist()
                )
                found |= {
                    first + row: text for row, text in zip(wanted, texts, strict=True) if text is not None
                }
            first += size
    return found
