"""Verify, part 4: the rows of `documents` against texts, placements, dedup state, edits and the tables that
index them.

Everything about a document meets in one bucket of `k` (lineage.store.shuffle); a bucket is compared in
memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import sort_keys, text_hash
from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE, added_columns
from lineage.store.delta import open_table
from lineage.store.purged_spans import PurgedSpans
from lineage.store.rows import shard_source
from lineage.store.shuffle import Shuffle
from lineage.store.tables import DEDUP, PART, SCHEMAS, TABLES, conform
from lineage.store.write import index_rows
from lineage.verify.problems import Problem, guarded
from lineage.verify.rows import CheckedDocument, DedupRow, EditCount, PartText, Placement, rows_of
from lineage.verify.steps import Tally

TEXTS: Final = pa.schema([
    ("k", pa.int64()), ("doc_id", pa.binary()), ("source", pa.string()), ("part", pa.int64()), ("part_row", pa.int64()),
    ("clean_hash", pa.binary()), ("bare", pa.bool_()),
])  # fmt: skip

DUPLICATES: Final = pa.schema([
    ("k", pa.int64()), *((name, SCHEMAS["documents"].field(name).type) for name in (
        "doc_id", "source", "url", "clean_hash", "stage", "similarity", "threshold", "duplicate_of", "cluster_id",
        "part", "part_row",
    ))
])  # fmt: skip
"""A duplicate, `k` being that of the document it repeats."""

_INDEXES: Final = tuple(name for name, table in TABLES.items() if table.kind == "index")
_BATCH: Final = 65_536


@dataclass(slots=True)
class Facts:
    """What is gathered on the way through the documents, besides the rows that are shuffled."""

    tally: Tally = field(default_factory=Tally)
    excerpts: set[bytes] = field(default_factory=set)
    purged_texts: set[bytes] = field(default_factory=set)
    notes: list[Problem] = field(default_factory=list)
    num_tokens_purged: int = 0


def shuffle_documents(out: Folder, shuffle: Shuffle, facts: Facts, purged: PurgedSpans) -> Iterator[Problem]:
    """Shuffle `documents`, the index rows that it should have, and its duplicates; a problem where it is
    damaged."""
    dataset = open_table(out, "documents").to_pyarrow_dataset()
    schema = SCHEMAS["documents"]
    for batch in dataset.to_batches(schema.names, batch_size=_BATCH):
        rows = pa.Table.from_batches([batch]).cast(schema)
        wrong = rows.filter(pc.not_equal(rows["k"], pa.array(sort_keys(rows["doc_id"].to_pylist()))))
        for doc_id in wrong["doc_id"].to_pylist():
            yield Problem("documents.k", _document(doc_id), "k is not that of its id: lookups do not find it")
        facts.tally.add(rows)
        facts.notes += _timeouts(rows)
        facts.purged_texts |= _texts_of(rows, purged)
        shuffle.add("documents", conform(rows, SCHEMAS["documents"]))
        for name, derived in index_rows(rows).items():
            shuffle.add(name, derived)
        shuffle.add("duplicates", _duplicates(rows))


def _texts_of(rows: pa.Table, purged: PurgedSpans) -> set[bytes]:
    """The hashes of the texts among these rows that were purged with all their copies; nothing is no text."""
    ids = pa.array(sorted(purged.with_text), rows.schema.field("doc_id").type)
    of_purged = rows.filter(pc.is_in(rows["doc_id"], ids))
    hashes = {*of_purged["text_hash"].to_pylist(), *of_purged["clean_hash"].to_pylist()}
    return hashes - {None, text_hash("")}


def _timeouts(rows: pa.Table) -> list[Problem]:
    late = rows.filter(pc.equal(rows["rule"], "parse.timeout")).select(["doc_id", "warc_file", "warc_offset"])
    return [
        Problem(
            "parse.timeout",
            _document(row["doc_id"]),
            f"{row['warc_file']} at {row['warc_offset']} took too long: "
            "rejected by the clock, another machine might keep it",
        )
        for row in late.to_pylist()
    ]


def _duplicates(rows: pa.Table) -> pa.Table:
    repeated = pc.and_(pc.equal(rows["status"], "duplicate"), pc.is_valid(rows["duplicate_of"]))
    found = rows.filter(pc.and_(repeated, pc.not_equal(rows["stage"], "identity")))
    keys = pa.array(sort_keys(found["duplicate_of"].to_pylist()))
    return pa.table([keys, *(found[name] for name in DUPLICATES.names[1:])], schema=DUPLICATES)


def shuffle_parts(out: Folder, index: Index, shuffle: Shuffle) -> Iterator[Problem]:
    """Shuffle what the parts hold: the hash of each clean text, under its document's `k`."""
    for part in index.documents:
        yield from guarded(
            "documents.unreadable", part.file, _shuffle_part(out, part.source, part.part, part.file, shuffle)
        )


def _shuffle_part(out: Folder, source: str, part: int, name: str, shuffle: Shuffle) -> Iterator[Problem]:
    first = 0
    with out.open(name) as stream:
        file = pq.ParquetFile(stream)
        columns = file.schema_arrow.names
        own = [column for column in columns if column not in added_columns(columns)]
        if own != PART.names:
            yield Problem(
                "documents.schema", name, f"columns {columns}, expected {PART.names} and added ones"
            )
        for batch in file.iter_batches(_BATCH // 16, columns=["doc_id", "text", "metadata"]):
            ids = batch["doc_id"].to_pylist()
            hashes = [None if text is None else text_hash(text) for text in batch["text"].to_pylist()]
            size = len(ids)
            columns = [
                sort_keys(ids),
                ids,
                [source] * size,
                [part] * size,
                range(first, first + size),
                hashes,
                batch["metadata"].is_null(),
            ]
            shuffle.add(
                "texts",
                pa.table([pa.array(c, f.type) for c, f in zip(columns, TEXTS, strict=True)], schema=TEXTS),
            )
            first += size


def shuffle_others(out: Folder, index: Index, shuffle: Shuffle) -> Iterator[Problem]:
    """Shuffle `placements`, the dedup state, `edits` and the index tables as they stand."""
    for entry in index.dedup:
        yield from guarded(
            "dedup.unreadable", entry.file, _shuffle_dedup(out, entry.file, entry.num_rows, shuffle)
        )
    for name in ("placements", "edits", *_INDEXES):
        yield from guarded("table.unreadable", f"lineage/{name}", _shuffle_table(out, name, shuffle))


def _shuffle_dedup(out: Folder, name: str, num_rows: int, shuffle: Shuffle) -> Iterator[Problem]:
    with out.open(name) as file:
        rows = pq.read_table(file, schema=DEDUP)
    shuffle.add("dedup", rows.append_column("k", pa.array(sort_keys(rows["doc_id"].to_pylist()))))
    if rows.num_rows != num_rows:
        yield Problem("dedup.rows", name, f"{rows.num_rows} rows, index.json says {num_rows}")


def _shuffle_table(out: Folder, name: str, shuffle: Shuffle) -> Iterator[Problem]:
    schema = SCHEMAS[name]
    for batch in open_table(out, name).to_pyarrow_dataset().to_batches(schema.names, batch_size=_BATCH):
        rows = pa.Table.from_batches([batch]).cast(schema)
        if name == "placements":
            rows = rows.append_column("k", pa.array(sort_keys(rows["doc_id"].to_pylist())))
        shuffle.add(f"{name}.written" if name in _INDEXES else name, rows)
    yield from ()


def check_indexes(shuffle: Shuffle) -> Iterator[Problem]:
    """The index tables hold exactly what follows from `documents`."""
    for name in _INDEXES:
        schema = SCHEMAS[name]
        for bucket in range(shuffle.num_buckets(name)):
            expected = _rows(shuffle.read(name, bucket, schema))
            written = _rows(shuffle.read(f"{name}.written", bucket, schema))
            if (
                name == "hash_index"
            ):  # two records with one id may each have brought the same row, or share it
                expected, written = Counter(set(expected)), Counter(set(written))
            if expected == written:
                continue
            for row, number in _first(expected - written):
                yield Problem(f"{name}.missing", f"lineage/{name}", f"{number} times {_shown(row)}")
            for row, number in _first(written - expected):
                yield Problem(f"{name}.extra", f"lineage/{name}", f"{number} times {_shown(row)}")


def _rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _first(rows: Counter[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], int]]:
    return sorted(rows.items(), key=lambda item: _shown(item[0]))[:20]


def _shown(row: Iterable[Any]) -> str:
    return "(" + ", ".join(value.hex() if isinstance(value, bytes) else str(value) for value in row) + ")"


def check_documents(
    shuffle: Shuffle, facts: Facts, purged: PurgedSpans, *, has_tokens: bool = True
) -> Iterator[Problem]:
    """Each document against its text, its place (where the OUT `has_tokens`), its dedup row and its edits;
    ids against one another."""
    for bucket in range(shuffle.num_buckets("documents")):
        yield from _Bucket(shuffle, bucket, facts, purged, has_tokens=has_tokens).problems()
    for doc_id in sorted(facts.excerpts):
        yield Problem(
            "excerpts.document", _document(doc_id), "excerpts.parquet shows a document that does not exist"
        )


class _Bucket:
    """All that is known about the documents of one bucket."""

    def __init__(
        self, shuffle: Shuffle, bucket: int, facts: Facts, purged: PurgedSpans, *, has_tokens: bool
    ) -> None:
        self._num_places = 1 if has_tokens else 0
        self._documents = [*rows_of(shuffle.read("documents", bucket, SCHEMAS["documents"]), CheckedDocument)]
        texts = rows_of(shuffle.read("texts", bucket, TEXTS), PartText)
        self._texts: dict[tuple[str, int | None, int | None], PartText] = {
            (row.source, row.part, row.part_row): row for row in texts
        }
        placements = rows_of(shuffle.read("placements", bucket, SCHEMAS["placements"]), Placement)
        self._placements: defaultdict[bytes, list[Placement]] = defaultdict(list)
        self._dedup: defaultdict[bytes, list[DedupRow]] = defaultdict(list)
        for placement in placements:
            self._placements[placement.doc_id].append(placement)
        for compared in rows_of(shuffle.read("dedup", bucket, DEDUP), DedupRow):
            self._dedup[compared.doc_id].append(compared)
        self._edits = [*rows_of(shuffle.read("edits", bucket, SCHEMAS["edits"]), EditCount)]
        self._excerpts, self._purged, self._purged_texts = facts.excerpts, purged, facts.purged_texts

    def problems(self) -> Iterator[Problem]:
        kept = Counter(row.doc_id for row in self._documents if row.status == "kept")
        # A place in the crawl is no name: one member of a file may hold several records. (Rejected rows that
        # came twice show in the balance of the steps.)
        places = Counter(
            (row.source, row.part, row.part_row) for row in self._documents if row.part is not None
        )
        for doc_id in sorted(doc_id for doc_id, number in kept.items() if number > 1):
            yield Problem("documents.unique", _document(doc_id), f"{kept[doc_id]} kept rows have this id")
        for (source, part, part_row), number in sorted(places.items()):
            if number > 1:
                where = f"{number} rows for {source}, row {part_row} of part {part}"
                yield Problem("documents.repeated", "lineage/documents", where)
        for row in self._documents:
            yield from self._check_status(row)
            yield from self._check_text(row)
            yield from self._check_place(row)
            yield from self._check_dedup(row)
            self._excerpts.discard(row.doc_id)
        yield from self._check_edits(set(kept))
        yield from self._check_rest()

    def _check_status(self, row: CheckedDocument) -> Iterator[Problem]:
        where = _document(row.doc_id)
        if row.status not in ("kept", "rejected", "duplicate"):
            yield Problem("documents.status", where, f"has the status {row.status!r}")
        if (row.status == "kept") != (row.stage is None) or (row.status == "kept") != (row.rule is None):
            yield Problem("documents.status", where, f"is {row.status} by {row.stage}/{row.rule}")
        if row.status == "duplicate" and row.duplicate_of is None and row.stage != "identity":
            yield Problem("duplicates.edge", where, "is a duplicate of nothing")
        if row.cluster_id is not None and row.cluster_id > row.doc_id:
            yield Problem("documents.cluster", where, "its cluster_id is not the least id of the cluster")

    def _check_text(self, row: CheckedDocument) -> Iterator[Problem]:
        where, place = _document(row.doc_id), (row.source, row.part, row.part_row)
        if row.doc_id not in self._purged.doc_ids and {row.text_hash, row.clean_hash} & self._purged_texts:
            yield Problem("purged.copy", where, "has the very text of a document that was purged")
        if row.part is None:
            if row.status != "rejected":
                yield Problem("documents.part", where, f"is {row.status} and has no text in a part")
            return
        text = self._texts.pop(place, None)
        if text is None or text.doc_id != row.doc_id:
            yield Problem("documents.part", where, f"is not at row {place[2]} of part {place[0]}/{place[1]}")
        elif row.doc_id in self._purged.doc_ids:
            if text.clean_hash is not None or not text.bare:
                yield Problem("purged.text", where, f"was purged; its text is in part {place[0]}/{place[1]}")
        elif text.clean_hash != row.clean_hash:
            yield Problem(
                "documents.clean_hash", where, f"its text in part {place[0]}/{place[1]} has another hash"
            )

    def _check_place(self, row: CheckedDocument) -> Iterator[Problem]:
        where = _document(row.doc_id)
        if row.status != "kept":
            if row.shard is not None:
                yield Problem("documents.place", where, f"is {row.status} and says that it is in a shard")
            return
        placements = self._placements.get(row.doc_id, [])
        if len(placements) != self._num_places:
            yield Problem("placements.unique", where, f"is kept and placed {len(placements)} times")
        elif placements and (
            placements[0].source != shard_source(row.source, row.bucket)
            or placements[0][2:] != (row.shard, row.start, row.num_tokens, row.tokens_hash)
        ):
            yield Problem("documents.place", where, "`documents` and `placements` name different places")

    def _check_dedup(self, row: CheckedDocument) -> Iterator[Problem]:
        where, there = _document(row.doc_id), self._dedup.get(row.doc_id, [])
        if row.status != "kept":
            return
        if row.doc_id in self._purged.doc_ids:
            if there:
                yield Problem("purged.dedup", where, "was purged and is still in dedup/")
        elif len(there) != 1:
            yield Problem("dedup.rows", where, f"is kept and has {len(there)} rows in dedup/")
        elif there[0] != (row.doc_id, row.source, row.part, row.part_row, row.clean_hash):
            yield Problem("dedup.document", where, "`documents` and dedup/ differ")

    def _check_edits(self, kept: set[bytes]) -> Iterator[Problem]:
        kinds = Counter((row.doc_id, row.stage, row.kind) for row in self._edits)
        for (doc_id, stage, kind), number in sorted(kinds.items()):
            if doc_id not in kept:
                yield Problem(
                    "edits.document", "lineage/edits", f"edits of {doc_id.hex()}, which is not kept"
                )
            if number > 1 and stage != INSIDE:  # each cut is a row
                yield Problem(
                    "edits.repeated", "lineage/edits", f"{number} rows for {doc_id.hex()}, {stage}, {kind}"
                )

    def _check_rest(self) -> Iterator[Problem]:
        kept = {row.doc_id for row in self._documents if row.status == "kept"}
        for source, part, part_row in sorted(self._texts):
            yield Problem(
                "documents.part", f"part {source}/{part} row {part_row}", "belongs to no row of `documents`"
            )
        for doc_id in sorted(self._placements.keys() - kept):
            yield Problem("placements.document", _document(doc_id), "is placed in a shard and not kept")
        for doc_id in sorted(self._dedup.keys() - kept):
            yield Problem("dedup.document", _document(doc_id), "is in dedup/ and not kept")


def _document(doc_id: bytes) -> str:
    return f"document {doc_id.hex()}"
