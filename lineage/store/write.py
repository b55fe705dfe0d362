"""Writing the tables of a run: sorted, deterministic Parquet files, bucket by bucket, then one commit a
table.

1. `index_rows` derives the rows of the index tables from rows of `documents`.
2. `lineage.store.shuffle` brings rows to buckets, ranges of `k` of equal width; `num_buckets` says how many a
   table gets. Within one process it brings them to pieces of buckets (`table_pieces`), which are sorted one
   after the other.
3. `write_bucket` writes all rows of one bucket as files named by the bucket and the BLAKE3-128 of their
   bytes.
4. `lineage.store.delta.commit_tables` makes them tables.

Each call of 1 to 3 needs only its own rows. One process shuffles with `add_documents`, `add_rows` and
`write_tables`; many processes publish their shares and gather one bucket each. Files depend on the rows
alone, not on the order or the batches in which they came."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.allocator import give_back_freed_memory
from lineage.ids import content_hash, sort_keys, text_hash
from lineage.pages import url_key
from lineage.storage.folder import Folder
from lineage.store.checked import GROUP_ROWS, Bound, CheckedRowGroup, Sums, digest_of, encode_sums, side_name
from lineage.store.column_names import added_columns, added_to_edits
from lineage.store.shuffle import Shuffle
from lineage.store.tables import CUTS, DICTIONARY, SCHEMAS, TABLES, WRITTEN_ONCE, conform, with_added

FOLDER: Final = "lineage"
"""Where the store lies in a run's output."""

ROWS_PER_BUCKET: Final = 1 << 20
"""The most rows a bucket holds on average: 10 billion documents are then 16,384 files of about 100 MB."""

PIECES: Final = 64
"""Ranges of `k` that a bucket is sorted in where one process writes all tables, each about a row group. Sorting holds
its rows several times over, so that the memory of a run with fewer rows than one bucket would grow with them."""

_COPIED_AT_ONCE: Final = 8 << 20
_MAGIC: Final = b"PAR1"
"""What a Parquet file begins with; its first row group comes next, and each other right after the one
before."""

_WIDE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
"""Arrow types with 64-bit offsets, by those with 32-bit ones."""

_MOST_RANGES: Final = 1024
_COMBINED_ROWS: Final = 4 * GROUP_ROWS
"""Of a piece that is copied to be put in order: more are taken from where they lie."""

Bounds = dict[str, tuple[Bound, Bound]]
"""The least and the greatest value of each column that files are pruned by."""

_EMPTY_TEXT: Final = text_hash("")
_INDEXED_HASHES: Final = ("raw_hash", "text_hash", "clean_hash", "tokens_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A written file of a table: `path` within the table's folder, `size` in bytes, `stats` as Delta's
    JSON."""

    path: str
    size: int
    num_rows: int
    stats: str


def table_folder(out: Folder, name: str) -> Folder:
    """The folder of table `name` of the run at `out`."""
    return out.folder(f"{FOLDER}/{name}")


def num_buckets(num_rows: int) -> int:
    """How many buckets a table of `num_rows` rows gets: the least power of two that keeps them at
    ROWS_PER_BUCKET."""
    return _in_powers(num_rows, ROWS_PER_BUCKET)


def _in_powers(num_rows: int, most: int) -> int:
    return 1 << max(0, (max(num_rows, 1) - 1).bit_length() - most.bit_length() + 1)


def num_ranges(num_rows: int) -> int:
    """In how many ranges of `k` one process looks at so many rows: PIECES of each bucket, up to 17 million rows. A
    shuffle that spills writes a stretch of every range each time, so that more would cost time."""
    return max(num_buckets(num_rows), min(_num_pieces(num_rows), _MOST_RANGES))


def placement_buckets(num_documents: Iterable[tuple[str, int, int]]) -> Iterator[list[tuple[str, int]]]:
    """The buckets of `placements`: runs of (source, shard), in the given order, of about ROWS_PER_BUCKET
    rows.

    `num_documents` gives (source, shard, number of documents), sorted by (source, shard)."""
    bucket: list[tuple[str, int]] = []
    rows = 0
    for source, shard, num in num_documents:
        if bucket and rows + num > ROWS_PER_BUCKET:
            yield bucket
            bucket, rows = [], 0
        bucket.append((source, shard))
        rows += num
    if bucket:
        yield bucket


def write_bucket(out: Folder, name: str, bucket: int, pieces: Iterable[pa.Table]) -> list[TableFile]:
    """Write all rows of one bucket of table `name`: one file, or several where a hot key overfills the
    bucket.

    The rows come in `pieces`, each in any order, all of one piece before those of the next in the order of the
    table; columns that are missing are null. Nothing is written for no rows. Writing the same rows again replaces
    the same files with the same bytes, whatever the pieces. Memory: that of a piece twice, and of a row group several
    times over."""
    sorted_pieces = (_sorted(name, conform(rows, schema_of(name, rows))) for rows in pieces)
    ordered = itertools.chain.from_iterable(sorted_pieces)
    step = 2 * ROWS_PER_BUCKET
    num_groups = max(1, step // GROUP_ROWS)
    groups = _in_groups(ordered, min(GROUP_ROWS, step))
    files = []
    while of_file := next(groups, None):
        rest = itertools.islice(groups, num_groups - 1)
        files.append(_publish_groups(out, name, f"{bucket:05d}", itertools.chain((of_file,), rest)))
    return files


def _in_groups(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The rows of the tables as tables of `size` rows, the last one with what is left."""
    held: list[pa.Table] = []
    num_held = 0
    for table in tables:
        first = 0
        while table.num_rows - first >= size - num_held:
            held.append(table.slice(first, size - num_held))
            first += size - num_held
            # Not held on to while the group is written: all tables that it has rows of would be there beside it.
            whole, held, num_held = pa.concat_tables(held).combine_chunks(), [], 0
            yield whole
            del whole
        if first < table.num_rows:
            held.append(table.slice(first))
            num_held += table.num_rows - first
    if held:
        yield pa.concat_tables(held).combine_chunks()


def publish_rows(out: Folder, name: str, prefix: str, rows: pa.Table) -> TableFile:
    """Write `rows`, as they are, as a file of table `name` called `<prefix>-<hash of its bytes>.parquet`. It
    is on the disk before the commit that names it.

    Of a table that a run writes, a file of several row groups gets a side file (see `checked`), before
    itself. A file of appended facts gets none, so that one whose commit never came leaves a file that its
    name accounts for."""
    # A fact may have no rows, and is a file all the same.
    groups = _in_groups((rows,), GROUP_ROWS) if rows.num_rows else (rows,)
    return _publish_groups(out, name, prefix, groups)


def _publish_groups(out: Folder, name: str, prefix: str, groups: Iterable[pa.Table]) -> TableFile:
    """The same for the row groups of a file, one after the other; equal rows give equal bytes. The name is known at the
    end only, so the bytes wait in a file of the local disk."""
    num_rows, bounds = 0, list[Bounds]()
    with tempfile.TemporaryFile(prefix="sluice-table-") as file:
        with contextlib.ExitStack() as opened:
            writer: pq.ParquetWriter | None = None
            for rows in groups:
                if writer is None:
                    writer = opened.enter_context(_writer(file, rows.schema))
                writer.write_table(rows, row_group_size=GROUP_ROWS)
                bounds.append({column: _bounds(rows, column) for column in TABLES[name].pruned_by})
                num_rows += rows.num_rows
                del rows  # before the next one is made
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            path = f"{prefix}-{content_hash(data).hex()}.parquet"
            folder = table_folder(out, name)
            if name in WRITTEN_ONCE and num_rows > GROUP_ROWS:
                folder.write(side_name(path), encode_sums(_sums(name, bounds, pq.read_metadata(file), data)))
            with folder.writing(path) as published:
                for start in range(0, len(data), _COPIED_AT_ONCE):
                    published.write(bytes(data[start : start + _COPIED_AT_ONCE]))
            size = len(data)
    return TableFile(path=path, size=size, num_rows=num_rows, stats=_stats(name, num_rows, bounds))


def _writer(file: IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    packed = {column: "DELTA_BINARY_PACKED" for column in ("k", "doc_k") if column in schema.names}
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=3,
        write_page_index=True,
        write_page_checksum=True,
        use_dictionary=[column for column in schema.names if column in DICTIONARY],
        column_encoding=packed or None,
        store_schema=False,
    )


def index_rows(documents: pa.Table) -> dict[str, pa.Table]:
    """The rows of the index tables that stand for these rows of `documents`.

    The hash of the empty text is not indexed: it would name every page without text."""
    doc_k = documents["k"].combine_chunks()
    with_host = documents.filter(pc.is_valid(documents["host"]))
    with_place = documents.filter(pc.is_valid(documents["warc_file"]))
    clustered = documents.filter(pc.is_valid(documents["cluster_id"]))
    with_domain = documents.filter(pc.is_valid(documents["domain"]))
    url_keys = [None if url is None else url_key(url) for url in documents["url"].to_pylist()]
    hashes = [
        *((documents[column].combine_chunks(), doc_k) for column in _INDEXED_HASHES),
        (pa.array(url_keys, pa.binary()), doc_k),
    ]
    return {
        "domain_index": conform(
            with_domain.drop_columns("k").append_column("k", _name_keys(with_domain["domain"])),
            SCHEMAS["domain_index"],
        ),
        "url_index": conform(
            with_host.drop_columns("k").append_column("k", _name_keys(with_host["host"])),
            SCHEMAS["url_index"],
        ),
        "warc_index": conform(
            with_place.rename_columns({"k": "doc_k"}).append_column("k", _name_keys(with_place["warc_file"])),
            SCHEMAS["warc_index"],
        ),
        "hash_index": _hash_rows(hashes),
        "cluster_index": conform(
            clustered.drop_columns("k").append_column(
                "k", _hash_keys(clustered["cluster_id"].combine_chunks())
            ),
            SCHEMAS["cluster_index"],
        ),
    }


def _hash_rows(hashes: list[tuple[pa.Array, pa.Array]]) -> pa.Table:
    pieces = []
    for values, doc_k in hashes:
        indexed = pc.and_(pc.is_valid(values), pc.not_equal(values, pa.scalar(_EMPTY_TEXT, pa.binary())))
        indexed = pc.fill_null(indexed, False)
        pieces.append(pa.table({"k": _hash_keys(values.filter(indexed)), "doc_k": doc_k.filter(indexed)}))
    together = pa.concat_tables(pieces)
    return together.group_by(["k", "doc_k"], use_threads=False).aggregate([])


def _hash_keys(hashes: pa.Array) -> pa.Array:
    return pa.array(sort_keys(hashes.to_pylist()), pa.int64())


def _name_keys(names: pa.ChunkedArray) -> pa.Array:
    """`k` of each name: `sort_key` of its BLAKE3-128, worked out once for each distinct name."""
    encoded = names.combine_chunks().dictionary_encode()
    keys = sort_keys([text_hash(name) for name in encoded.dictionary.to_pylist()])
    return pa.array(keys[encoded.indices.to_numpy(zero_copy_only=False)], pa.int64())


def table_pieces(num_rows: Mapping[str, int]) -> dict[str, int]:
    """In how many pieces each table that a run writes goes through the shuffle of one process: PIECES of each of its
    buckets, or fewer of one that is not full. `num_rows`: about how many rows each will have; a table left out goes
    in one."""
    return {name: _num_pieces(num_rows.get(name, 0)) for name in WRITTEN_ONCE}


def _num_pieces(num_rows: int) -> int:
    if (buckets := num_buckets(num_rows)) > 1:
        return PIECES * buckets
    return min(PIECES, _in_powers(num_rows, max(1, ROWS_PER_BUCKET // PIECES)))


def add_rows(shuffle: Shuffle, name: str, rows: pa.Table) -> None:
    """Rows of table `name`, for the piece of their `k`."""
    shuffle.add(name, conform(rows, schema_of(name, rows)))


def add_documents(shuffle: Shuffle, rows: pa.Table) -> None:
    """Rows of `documents`, and of every index table that is derived from them."""
    rows = conform(rows, schema_of("documents", rows))
    shuffle.add("documents", rows)
    for name, derived in index_rows(rows).items():
        shuffle.add(name, derived)


def write_tables(out: Folder, shuffle: Shuffle) -> dict[str, list[TableFile]]:
    """Write every bucket of every table below `out` whose pieces are in the shuffle; the files of each table, in
    order, for `commit_tables`."""
    files: dict[str, list[TableFile]] = {name: [] for name in WRITTEN_ONCE}
    filled = itertools.groupby(shuffle.filled(), lambda found: (found[0], found[1] // PIECES))
    for (name, bucket), pieces in filled:
        files[name].extend(write_bucket(out, name, bucket, (rows for _, _, rows in pieces)))
        give_back_freed_memory()
    return files


def schema_of(name: str, rows: pa.Table) -> pa.Schema:
    """The schema of table `name`, which these rows are for: `documents` and `edits` have what they have besides."""
    if name == "edits":
        return CUTS if added_to_edits(rows.column_names) else SCHEMAS[name]
    return with_added(SCHEMAS[name], added_columns(rows.column_names))


def _sorted(name: str, rows: pa.Table) -> Iterator[pa.Table]:
    """In the table's order, a row group at a time; ties are broken by the other columns, so equal sets of rows give
    equal files."""
    leading = TABLES[name].sorted_by
    keys = [*leading, *(column for column in rows.column_names if column not in leading)]
    order = pc.sort_indices(rows, sort_keys=[(column, "ascending") for column in keys])
    # All rows of a host are in one bucket, and their URLs may be more than the 2 GiB that 32-bit offsets
    # reach. Parquet knows no offsets: the files are the same.
    wide = pa.schema([field.with_type(_WIDE.get(field.type, field.type)) for field in rows.schema])
    if len(rows) <= _COMBINED_ROWS:
        yield rows.cast(wide).combine_chunks().take(order)
        return
    # A hot key's piece is as large as the corpus, and lies in files that are mapped: only a row group of it is copied.
    batches = rows.to_batches()
    starts = np.cumsum([0, *map(len, batches)])
    for first in range(0, len(order), GROUP_ROWS):
        places = order.slice(first, GROUP_ROWS).to_numpy().astype(np.int64)
        yield _rows_at(batches, starts, places, wide)


def _rows_at(
    batches: Sequence[pa.RecordBatch],
    starts: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    wide: pa.Schema,
) -> pa.Table:
    """The rows at these places among all rows of the batches, of which each begins at its start; the last start is the
    end of all."""
    by_place = np.argsort(places, kind="stable")
    ordered = places[by_place]
    bounds = np.searchsorted(ordered, starts)
    found = [
        batch.take(pa.array(ordered[begin:end] - start))
        for batch, start, (begin, end) in zip(
            batches, starts[:-1].tolist(), itertools.pairwise(bounds.tolist()), strict=True
        )
        if begin < end
    ]
    back = np.empty(len(places), np.int64)
    back[by_place] = np.arange(len(places))
    return pa.Table.from_batches(found).cast(wide).combine_chunks().take(pa.array(back))


def _sums(name: str, bounds: Sequence[Bounds], metadata: pq.FileMetaData, data: memoryview) -> Sums:
    """The side file of `data`, a file whose row groups have these bounds."""
    groups, end = [], len(_MAGIC)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        first, ends, digests = end, [], []
        for at in range(group.num_columns):
            column = group.column(at)
            start, end = end, end + column.total_compressed_size
            begins = column.dictionary_page_offset or column.data_page_offset
            assert begins == start, (
                f"column {column.path_in_schema} of {name} begins at {begins}, not at {start}"
            )
            ends.append(end)
            digests.append(digest_of(data[start:end]))
        groups.append(
            CheckedRowGroup(bounds=bounds[number], start=first, ends=tuple(ends), digests=tuple(digests))
        )
    return Sums(
        size=len(data),
        columns=tuple(metadata.schema.to_arrow_schema().names),
        groups=tuple(groups),
        rest=digest_of(data[end:]),
    )


def _bounds(rows: pa.Table, column: str) -> tuple[Bound, Bound]:
    assert rows[column].null_count == 0, f"a row has a null in {column}"
    least_and_greatest = pc.min_max(rows[column]).as_py()
    return least_and_greatest["min"], least_and_greatest["max"]


def _stats(name: str, num_rows: int, bounds: Sequence[Bounds]) -> str:
    """Delta's statistics: the row count, and the bounds of what files are pruned by."""
    columns = TABLES[name].pruned_by
    stats = {
        "numRecords": num_rows,
        "minValues": {column: min(each[column][0] for each in bounds) for column in columns},
        "maxValues": {column: max(each[column][1] for each in bounds) for column in columns},
        "nullCount": dict.fromkeys(columns, 0),
    }
    return json.dumps(stats, sort_keys=True)
