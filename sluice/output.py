"""What a finished run left, read as data: texts, facts, placements, tokens and histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lineage.ids import tokens_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.output_index import Index, PartFile, TokenizerIdentity, read_index
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.queries.sql import query
from lineage.store.rows import DocumentRow
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.results.rows import opened, read_rows, read_texts
from sluice.history import DocId, History, history_of, id_of
from sluice.messages import in_python
from sluice.shown import shown_table

if TYPE_CHECKING:
    import pandas

_TOKEN_BYTES: Final = 4
_Read = TypeVar("_Read")


class PurgedError(LookupError):
    """The document was purged: its text and tokens are gone."""


class ChangedOutputError(RuntimeError):
    """A purge has replaced files of the output since it was opened: open it again."""


@in_python
def open_output(out: str) -> Output:
    """The output of a finished run, at a path or an s3:// URL. NotFinishedError where there is none."""
    return Output(out)


class Output:
    """A finished output, as it was when it was opened; `text` and `tokens` look up what a purge has moved
    since, and `texts` and `placements` raise ChangedOutputError there. A source that it does not have is a
    ValueError. What is read is compared with its checksums: a damaged file is an error that names it
    (DamagedFileError)."""

    def __init__(self, out: str) -> None:
        self._folder = Folder(out)
        self._index = read_index(self._folder)

    def __repr__(self) -> str:
        num_texts = sum(part.num_rows for part in self._index.dedup)
        num_tokens = f"{self._index.num_tokens:,} tokens, " if self._index.has_tokens else ""
        return f"Output({self.url!r}: {num_texts:,} texts, {num_tokens}version {self._index.version})"

    def _repr_html_(self) -> str:
        """What a notebook shows: its sources, with the texts that a training reads of each."""
        texts = Counter(dict.fromkeys(self.sources, 0))
        for part in self._index.dedup:
            texts[part.source] += part.num_rows
        tokens = f", {self._index.num_tokens:,} tokens" if self._index.has_tokens else ""
        caption = f"Output {self.url}: version {self._index.version}{tokens}"
        return shown_table(caption, ("source", "texts"), sorted(texts.items()))

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._folder.url

    @property
    def index(self) -> Index:
        """index.json: shards and parts with their hashes, the fingerprints, the version."""
        return self._index

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of its shards; `index.has_tokens` says whether it has any."""
        return self._index.tokenizer

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of its sources."""
        return tuple(sorted({part.source for part in self._index.documents}))

    def document_files(self, source: str | None = None) -> list[str]:
        """The Parquet files of clean texts, for DuckDB, Polars, pandas and `datasets`. They hold every text
        that survived the filters, duplicates too: `texts` leaves these out."""
        self._check_source(source)
        return [self._folder.at(part.file) for part in self._index.documents if source in (None, part.source)]

    def _check_source(self, source: str | None) -> None:
        if source is not None and source not in self.sources:
            raise ValueError(f"source {source!r}: the output has {', '.join(map(repr, self.sources))}")

    def lineage_table(self, name: str) -> str:
        """Where a Delta table of the lineage store lies, such as documents or placements."""
        return self._folder.at(f"lineage/{name}")

    def texts(self, source: str | None = None) -> Iterator[pa.Table]:
        """The texts that a training reads: kept, deduplicated and not purged, as tables of at most one row
        group.

        Columns: doc_id (hex), source, text, url, captured_at, language, language_score, metadata (JSON),
        host, record_id, rule_values (JSON; null unless the ledger is kept), and score_<name> for each
        classifier that turns nothing down."""
        self._check_source(source)
        for part, kept in self._kept_parts(source):
            yield from self._texts_of(part, kept)

    def to_pandas(self, source: str | None = None) -> pandas.DataFrame:
        """The rows of `texts` as one pandas DataFrame, in memory."""
        frame: pandas.DataFrame = self._all_texts(source).to_pandas()
        return frame

    def to_datasets(self, source: str | None = None, *, streaming: bool = False) -> Any:
        """The rows of `texts` as a Dataset of Hugging Face's `datasets`, in memory; with `streaming` as an
        IterableDataset, which reads them from the output's files as they are asked for, a shard for each part. Neither
        writes a copy, which a purge would not reach.

        ModuleNotFoundError says how to install `datasets`."""
        self._check_source(source)
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Output.to_datasets needs Hugging Face's datasets: pip install 'sluice[hf]' (in Sluice's checkout"
                " pip install '.[hf]')",
                name=error.name,
            ) from error
        if not streaming:
            return datasets.Dataset(self._all_texts(source))
        parts = list(self._kept_parts(source))
        if not parts:
            raise ValueError(f"{self.url} has no text to stream")
        return datasets.IterableDataset.from_generator(
            _text_rows, gen_kwargs={"output": self, "parts": parts}
        )

    def _all_texts(self, source: str | None) -> pa.Table:
        tables = list(self.texts(source))
        if not tables:  # the columns are there all the same
            part = next(part for part in self._index.documents if source in (None, part.source))
            with self._as_opened(), opened(self._folder, part.file, part.hash) as file:
                tables = [_shown_texts(file.schema_arrow.empty_table(), part.source)]
        return pa.concat_tables(tables)

    def _kept_parts(self, source: str | None) -> Iterator[tuple[PartFile, PartFile]]:
        """Each part of texts, and the file that says which of its rows deduplication keeps."""
        kept_by = {(part.source, part.part): part for part in self._index.dedup}
        for part in self._index.documents:
            kept = kept_by.get((part.source, part.part))
            if source in (None, part.source) and kept is not None:
                yield part, kept

    def _texts_of(self, part: PartFile, kept: PartFile) -> Iterator[pa.Table]:
        with self._as_opened():
            rows = np.sort(read_rows(self._folder, kept.file, ["part_row"], kept.hash)["part_row"].to_numpy())
        with self._as_opened(), opened(self._folder, part.file, part.hash) as file:
            first = 0
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                low, high = np.searchsorted(rows, [first, first + table.num_rows])
                taken = table.take(pa.array(rows[low:high] - first))
                first += table.num_rows
                if taken.num_rows:
                    yield _shown_texts(taken, part.source)

    @in_python
    def sql(self, select: str) -> pa.Table:
        """The answer to a SELECT over the lineage views (documents, placements, step_rules, …), as `sluice
        lineage` gives it: ids as hex. QueryError where it is wrong or needs more than 4 GiB or 300
        seconds."""
        answer = query(self._folder, select)
        columns = list(zip(*answer.rows, strict=True)) or [()] * len(answer.columns)
        return pa.table([_array(column) for column in columns], names=list(answer.columns))

    def placements(self, source: str | None = None) -> Iterator[pa.Table]:
        """Where the tokens of each kept document lie, a table for each shard in the shard's order. A purged
        one keeps its place, in which all tokens are end-of-text; the view placements of `sql` says which.
        `source` may also be a part of one (source.part).

        Columns: doc_id (hex), source, shard, start, num_tokens (in tokens, end-of-text included), tokens_hash."""
        source_of = self._index.source_of_shards
        if source not in source_of:
            self._check_source(source)
        for shard in self._index.shards:
            if source in (None, shard.source, source_of[shard.source]):
                with self._as_opened():
                    table = read_rows(self._folder, shard.index_file, None, shard.index_hash)
                table = _with_hex_ids(table)
                table = table.add_column(1, "source", pa.repeat(shard.source, table.num_rows))
                yield table.add_column(
                    2, "shard", pa.repeat(pa.scalar(shard.shard, pa.int64()), table.num_rows)
                )

    @in_python
    def trace(
        self, *, doc_id: DocId | None = None, url: str | None = None, runs: Sequence[str] = ()
    ) -> list[History]:
        """The histories of a document by its id, or of all of a URL in any spelling: crawl record, decisions,
        cluster, placement, and the training steps that read it.

        `runs` are training outputs whose facts the store has not got. UnknownError where there is none,
        ValueError unless one of `doc_id` and `url` is given."""
        tracer = make_tracer(self._folder.url, runs=runs)
        if (doc_id is None) == (url is None):
            raise ValueError("give doc_id or url, one of them")
        found = tracer.by_url(url) if url is not None else [tracer.by_id(id_of(doc_id or b""))]
        return list(map(history_of, found))

    @in_python
    def text(self, doc_id: DocId) -> str:
        """The clean text of a document that survived the filters. LookupError where none is kept of it,
        PurgedError where it was purged."""
        row = self._row(doc_id)
        if row.part is None or row.part_row is None:
            raise LookupError(
                f"document {row.doc_id.hex()} was {row.status} by {row.rule}: no text of it is kept"
            )
        part_row = row.part_row

        def read(index: Index) -> dict[int, str]:
            (part,) = (p for p in index.documents if (p.source, p.part) == (row.source, row.part))
            return read_texts(self._folder, part.file, [part_row])

        found = self._at_last(read)
        if row.part_row not in found:
            raise PurgedError(f"document {row.doc_id.hex()} was purged")
        return found[row.part_row]

    @in_python
    def tokens(self, doc_id: DocId) -> npt.NDArray[np.int64]:
        """The tokens of a kept document, shape (num_tokens,), the last one end-of-text, in the type that torch takes as
        ids. LookupError where it has none, PurgedError where it was purged."""
        row = self._row(doc_id)
        if row.shard is None or row.start is None or row.num_tokens is None:
            raise LookupError(f"document {row.doc_id.hex()} was {row.status} by {row.rule}: it has no tokens")
        begin, length = row.start * _TOKEN_BYTES, row.num_tokens * _TOKEN_BYTES

        def read(index: Index) -> tuple[str, bytes]:
            (shard,) = (s for s in index.shards if (s.source, s.shard) == (row.shard_source, row.shard))
            with self._folder.open(shard.file) as stream:
                stream.seek(begin)
                return shard.file, stream.read(length)

        file, data = self._at_last(read)
        tokens = np.frombuffer(data, "<u4").astype(np.uint32)
        if tokens_hash(tokens) == row.tokens_hash:
            return tokens.astype(np.int64)
        if Lookup(self._folder).purged([row.doc_id]):
            raise PurgedError(f"document {row.doc_id.hex()} was purged")
        raise DamagedFileError(
            f"{self._folder.at(file)} is damaged: the tokens of document {row.doc_id.hex()} do not have their"
            " hash. Run sluice verify, and restore the file from a copy"
        )

    def _at_last(self, read: Callable[[Index], _Read]) -> _Read:
        """What `read` gives for the index as it was opened, or as it is now where a file of that one is gone:
        a purge publishes what it has written anew under another name."""
        try:
            return read(self._index)
        except FileNotFoundError:
            self._index = read_index(self._folder)
            return read(self._index)

    @contextmanager
    def _as_opened(self) -> Iterator[None]:
        """Tells a file that a purge has replaced from one that is lost."""
        try:
            yield
        except FileNotFoundError as error:
            version = read_index(self._folder).version
            if version == self._index.version:
                raise
            raise ChangedOutputError(
                f"{self.url} was opened at version {self._index.version}, and a purge has made version"
                f" {version} of it: open it again"
            ) from error

    def _row(self, doc_id: DocId) -> DocumentRow:
        """The facts of a document. Of several records with its id, of the one that is kept, else of one that
        has a text and is no repetition: another source may have turned the same record down."""
        found = Lookup(self._folder).documents([id_of(doc_id)])
        if not found:
            raise LookupError(f"no document {id_of(doc_id).hex()} in {self.url}")
        return min(
            found, key=lambda row: (row.status != "kept", row.part_row is None, row.stage == "identity")
        )


def _text_rows(output: Output, parts: list[tuple[PartFile, PartFile]]) -> Iterator[dict[str, object]]:
    """The rows of some parts, each a dict."""
    for part, kept in parts:
        for table in output._texts_of(part, kept):
            yield from table.to_pylist()


def _shown_texts(table: pa.Table, source: str) -> pa.Table:
    """Rows of a part of a source as `texts` gives them."""
    others = [name for name in table.column_names if name not in ("doc_id", "source")]
    shown = _with_hex_ids(table.select(["doc_id", *others]))
    return shown.add_column(1, "source", pa.repeat(source, table.num_rows))


def _with_hex_ids(table: pa.Table) -> pa.Table:
    """The table with doc_id, its first column, in hex."""
    ids = pa.array([doc_id.hex() for doc_id in table["doc_id"].to_pylist()], pa.string())
    return table.set_column(0, "doc_id", ids)


def _array(values: Sequence[object]) -> pa.Array:
    """A column of an answer. Whole numbers beyond int64, as hash() and sum() give them, are uint64 or
    decimal."""
    try:
        return pa.array(values)
    except OverflowError:
        fits = all(value is None or (isinstance(value, int) and 0 <= value < 1 << 64) for value in values)
        if fits:
            return pa.array(values, pa.uint64())
        return pa.array([Decimal(value) if isinstance(value, int) else value for value in values])
