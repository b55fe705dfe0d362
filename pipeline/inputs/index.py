"""A columnar index of WARC records as the input of a source: which records its `where` selects.

The index is a table in the form of Common Crawl's (https://commoncrawl.org/columnar-index): Parquet files with a row
for each record, which name a WARC file relative to a root, the offset and length of the record's member, and what is
known of the page. The folders crawl=NAME and subset=NAME are columns, too.

A selection is a function of the table, `where`, `sample`, `limit` and the run's seed: records are in the order of
file and offset, and a sample is taken by a hash of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.recipe import RecipeError, errors_about
from lineage.secrets import without_secrets
from lineage.storage.folder import is_remote, join, kind_of, local_path, with_environment
from pipeline.inputs.files import COMMON_CRAWL, Input, NamedFiles, list_inputs
from pipeline.inputs.index_table import TABLE, IndexTable, first_line, opened_index
from pipeline.inputs.ranges import fetched
from pipeline.inputs.retries import Retries
from pipeline.inputs.revisions import Revisions
from pipeline.inputs.selected import SelectedRecords

MAX_RECORDS: Final = 50_000_000
"""Of one source: their places lie in the memory of the driver, about 50 bytes each."""
_NEEDED: Final = ("warc_filename", "warc_record_offset", "warc_record_length")
_ALSO: Final = ("content_digest", "crawl", "warc_segment")
_INDEX_FOLDER: Final = "/cc-index/"
_DIGEST: Final = r"\A[!-~]{1,128}\z"
_MAX_NAME: Final = 200
_MAX_PLACE: Final = 1 << 50
_ROWS_AT_ONCE: Final = 1 << 17


class IndexSource(Protocol):
    """What is asked of a [[source]] that has an index."""

    @property
    def name(self) -> str: ...
    @property
    def indexes(self) -> tuple[str, ...]: ...
    @property
    def where(self) -> str | None: ...
    @property
    def root(self) -> str | None: ...
    @property
    def sample(self) -> float | None: ...
    @property
    def limit(self) -> int | None: ...


def select_inputs(source: IndexSource, seed: int, revisions: Revisions | None = None) -> list[Input]:
    """The WARC files that hold the records which the source selects, sorted by name, each with its `records`.

    RecipeError where a file of the index is missing or no table of records, where `where` is no expression over its
    columns, or where it selects nothing or too much."""
    files = list_inputs(
        NamedFiles(key=f"source.index of {source.name!r}", inputs=tuple(_files_of(source))), revisions
    )
    root = _root_of(source)
    with opened_index(source.name, files) as table:
        _check_columns(table)
        if source.where is not None:
            table.check_condition(source.where)
        try:
            selected = list(_of_files(_batches(table, source, seed), source))
        except duckdb.Error as error:
            raise RecipeError(
                f"source.index of {source.name!r}: {first_line(error)}", "source.index"
            ) from error
    if not selected:
        asked = {"source.where": source.where, "source.sample": source.sample}
        given = " with ".join(f"{key} = {value!r}" for key, value in asked.items() if value is not None)
        what = f"{given} selects none of its rows" if given else "it has no rows"
        raise RecipeError(f"source.index of {source.name!r}: {what}", "source.where")
    has_secrets = without_secrets(root) != root
    return [
        Input(
            source=source.name,
            index=index,
            name=name,
            url=without_secrets(join(root, name)),
            size=records.num_bytes,
            secret_url=join(root, name) if has_secrets else None,
            records=records,
        )
        for index, (name, records) in enumerate(selected)
    ]


def check_root(source: IndexSource, inputs: Sequence[Input]) -> None:
    """RecipeError unless a byte of the first selected record can be fetched: then `root` is where the WARC files
    lie."""
    first = inputs[0]
    try:
        found = next(fetched([first], Retries()))
        is_there = bool(found.stream.read(1))
        why = f"{first.url} ends before byte {found.record.offset:,}"
    except OSError as error:
        is_there, why = False, str(error)
    if not is_there:
        raise RecipeError(
            f"source.root of {source.name!r}: the first record that the index selects cannot be fetched: {why}. root"
            f" is the folder or URL to which {first.name!r} is relative",
            "source.root",
        )


def _files_of(source: IndexSource) -> Iterator[str]:
    """The entries of an index, those of a folder as the files in it."""
    for entry in source.indexes:
        shown = without_secrets(entry)
        is_of_server = shown.startswith(("http://", "https://"))
        if is_of_server and not shown.partition("?")[0].endswith((".parquet", ".paths", ".paths.gz")):
            raise RecipeError(
                f"source.index of {source.name!r}: {shown!r} is no Parquet file, and a web server lists no folder:"
                " name its files, or a list of them, as Common Crawl's cc-index-table.paths.gz",
                "source.index",
            )
        with errors_about(f"source.index of {source.name!r}"):
            url = with_environment(entry)
        try:
            is_folder = not is_of_server and kind_of(url) == "directory"
        except OSError as error:
            raise RecipeError(f"source.index of {source.name!r}: {error}", "source.index") from error
        yield join(entry, "**", "*.parquet") if is_folder else entry


def _root_of(source: IndexSource) -> str:
    """The folder or URL that names of WARC files are relative to: `root`, or the part of the index's own place before
    /cc-index/, as on Common Crawl's server and bucket; else that server."""
    before, found, _ = source.indexes[0].partition(_INDEX_FOLDER)
    root = source.root or (before if found else COMMON_CRAWL)
    with errors_about(f"source.root of {source.name!r}"):
        url = with_environment(root)
    return url.rstrip("/") if is_remote(url) else local_path(url)


def _check_columns(table: IndexTable) -> None:
    if lacking := [name for name in _NEEDED if name not in table.columns]:
        raise RecipeError(
            f"source.index of {table.source!r}: the table has no column {' and '.join(lacking)}, which say where a"
            f" record lies; it has {', '.join(table.columns)}",
            "source.index",
        )


def _batches(table: IndexTable, source: IndexSource, seed: int) -> Iterator[pa.RecordBatch]:
    """The selected rows in order of file and offset, some at a time: DuckDB sorts what does not fit in memory on
    disk."""
    file, offset, length = _NEEDED
    also = ", ".join(name if name in table.columns else f"NULL AS {name}" for name in _ALSO)
    also_names = ", ".join(_ALSO)
    # The last eight bytes of an MD5, little-endian: the same in every release, as DuckDB's own hash() is not.
    hashed = f"md5_number_lower(concat($seed, ' ', {file}, ' ', {offset}))"
    values: dict[str, object] = {}
    conditions = [f"(\n{source.where}\n)"] if source.where is not None else []
    if source.sample is not None:
        conditions.append(f"{hashed} < CAST($below AS UBIGINT)")
        values |= {"below": min(int(source.sample * 2**64), 2**64 - 1)}
    filtered = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    first = f" ORDER BY {hashed}, {file}, {offset} LIMIT {source.limit}" if source.limit is not None else ""
    if source.sample is not None or source.limit is not None:
        values |= {"seed": str(seed)}
    answer = table.rows(
        f"SELECT * FROM (SELECT {file}, CAST({offset} AS BIGINT) AS {offset}, CAST({length} AS BIGINT) AS {length},"
        f" {also} FROM {TABLE}{filtered}{first}) ORDER BY {file}, {offset}, {length} DESC, {also_names}",
        **values,
    )
    reader: pa.RecordBatchReader = answer.to_arrow_reader(_ROWS_AT_ONCE)
    yield from reader


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Neighbouring rows of one file."""

    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    digests: Sequence[str]
    crawl: str | None
    segment: str | None


def _of_files(
    batches: Iterator[pa.RecordBatch], source: IndexSource
) -> Iterator[tuple[str, SelectedRecords]]:
    """The records of each file, by its name."""
    held: list[_Rows] = []
    name: str | None = None
    num_records = 0
    for batch in batches:
        num_records += batch.num_rows
        if num_records > MAX_RECORDS:
            raise RecipeError(
                f"source.index of {source.name!r}: more than {MAX_RECORDS:,} records are selected: narrow"
                " source.where, give sample or limit, or make several runs joined by dedup.against",
                "source.where",
            )
        _check_places(batch, source)
        for value, rows in _parted(batch):
            if value != name and held:
                yield str(name), _packed(held)
                held = []
            name = value
            held.append(rows)
    if held:
        yield str(name), _packed(held)


def _parted(batch: pa.RecordBatch) -> Iterator[tuple[str, _Rows]]:
    """The rows of each file in a batch, which is in the order of files."""
    names, digests, crawls, segments = (batch.column(column).cast(pa.string()) for column in (0, 3, 4, 5))
    offsets, lengths = (batch.column(column).to_numpy() for column in (1, 2))
    plain_digests = pc.if_else(
        pc.fill_null(pc.match_substring_regex(digests, _DIGEST), False), digests, ""
    ).to_pylist()
    runs = pc.run_end_encode(names)
    first = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield (
            name,
            _Rows(
                offsets=offsets[first:end],
                lengths=lengths[first:end],
                digests=plain_digests[first:end],
                crawl=_plain_name(crawls[first].as_py()),
                segment=_plain_name(segments[first].as_py()),
            ),
        )
        first = end


def _check_places(batch: pa.RecordBatch, source: IndexSource) -> None:
    """RecipeError where a row names no place below the root: a table may be somebody else's, and be wrong."""

    def refusal(what: str, expected: str) -> RecipeError:
        return RecipeError(
            f"source.index of {source.name!r}: it selects a record with {what}: expected {expected}",
            "source.index",
        )

    for name in pc.unique(batch.column(0)).to_pylist():
        if (
            not name
            or name.startswith("/")
            or "://" in name
            or ".." in name.split("/")
            or not name.isprintable()
        ):
            raise refusal(f"warc_filename {name!r}", "a path below source.root")
    for column, least in ((1, 0), (2, 1)):
        numbers = batch.column(column)
        extremes = pc.min_max(numbers).as_py()
        if numbers.null_count or extremes["min"] < least or extremes["max"] > _MAX_PLACE:
            shown = (
                None
                if numbers.null_count
                else next(n for n in (extremes["min"], extremes["max"]) if not least <= n <= _MAX_PLACE)
            )
            raise refusal(f"{_NEEDED[column]} {shown}", f"a number of bytes, at least {least}")


def _packed(pieces: Sequence[_Rows]) -> SelectedRecords:
    """The records of one file; of several rows for one place the first counts, which is the longest."""
    offsets = np.concatenate([piece.offsets for piece in pieces])
    lengths = np.concatenate([piece.lengths for piece in pieces])
    digests = [digest for piece in pieces for digest in piece.digests]
    is_first = np.concatenate([[True], offsets[1:] != offsets[:-1]])
    return SelectedRecords(
        crawl=pieces[0].crawl,
        segment=pieces[0].segment,
        places=np.stack([offsets, lengths], axis=1)[is_first].astype("<i8").tobytes(),
        digests="\n".join(itertools.compress(digests, is_first)),
    )


def _plain_name(value: str | None) -> str | None:
    """A name of a crawl or segment; None for what none is."""
    return value if value and len(value) <= _MAX_NAME and value.isprintable() else None
