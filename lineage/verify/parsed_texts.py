"""Verify, part 4, where a run kept texts after parse: each document that had one has it there, and no purged
one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import sort_keys, text_hash
from lineage.index.checksums import read_checksums
from lineage.index.parsed_texts import TEXTS_FILE, ParsedPart, ParsedTexts, read_parsed_texts
from lineage.purge.purged_sets import PURGED_RULE
from lineage.storage.folder import Folder
from lineage.store.purged_spans import PurgedSpans
from lineage.store.shuffle import Shuffle
from lineage.store.tables import SCHEMAS
from lineage.verify.problems import Problem, guarded
from lineage.verify.rows import CheckedDocument, ParsedText, rows_of

_HASHES: Final = pa.schema([
    ("k", pa.int64()), ("doc_id", pa.binary()), ("source", pa.string()), ("text_hash", pa.binary()),
    ("bare", pa.bool_()),
])  # fmt: skip

_BATCH: Final = 1024


def check_parsed_texts(out: Folder, shuffle: Shuffle, purged: PurgedSpans) -> Iterator[Problem]:
    """What does not hold of the parsed texts. `shuffle` holds `documents`."""
    texts = read_parsed_texts(out)
    if texts is None or texts.removed is not None:
        return
    yield from _check_hashes(out, texts)
    if not texts.kept:
        return
    for part in texts.parts:
        yield from guarded("texts.unreadable", part.file, _shuffle_part(out, part, shuffle))
    for bucket in range(shuffle.num_buckets("documents")):
        documents = [*rows_of(shuffle.read("documents", bucket, SCHEMAS["documents"]), CheckedDocument)]
        kept = [*rows_of(shuffle.read("parsed_texts", bucket, _HASHES), ParsedText)]
        yield from _check_bucket(documents, kept, purged)


def _check_hashes(out: Folder, texts: ParsedTexts) -> Iterator[Problem]:
    """checksums.json, by which every file was checked, has the hashes that texts.json has."""
    sums = {entry.file: entry.hash for entry in read_checksums(out).files}
    named = texts.files() | {part.facts: part.facts_hash for part in texts.parts}
    for name, digest in named.items():
        if sums.get(name) != digest:
            yield Problem("texts.hash", name, f"{TEXTS_FILE} says {digest}, checksums.json {sums.get(name)}")


def _shuffle_part(out: Folder, part: ParsedPart, shuffle: Shuffle) -> Iterator[Problem]:
    num_rows = 0
    with out.open(part.file) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_BATCH, columns=["doc_id", "text", "metadata"]):
            ids = batch["doc_id"].to_pylist()
            hashes = [None if text is None else text_hash(text) for text in batch["text"].to_pylist()]
            columns = [sort_keys(ids), ids, [part.source] * len(ids), hashes, batch["metadata"].is_null()]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _HASHES, strict=True)]
            shuffle.add("parsed_texts", pa.table(arrays, schema=_HASHES))
            num_rows += len(ids)
    if num_rows != part.num_rows:
        yield Problem("texts.rows", part.file, f"{num_rows} rows, {TEXTS_FILE} says {part.num_rows}")


def _check_bucket(
    documents: list[CheckedDocument], kept: list[ParsedText], purged: PurgedSpans
) -> Iterator[Problem]:
    had_text = {(row.doc_id, row.source): row.text_hash for row in documents if _had_text(row)}
    expected = Counter((row.doc_id, row.source) for row in documents if _had_text(row))
    found = Counter((row.doc_id, row.source) for row in kept)
    for doc_id, source in sorted(expected.keys() | found.keys()):
        number, wanted = found[doc_id, source], expected[doc_id, source]
        if number != wanted:
            message = (
                f"had a text after parse {wanted} times and has it {number} times among the parsed texts"
            )
            yield Problem("texts.document", f"document {doc_id.hex()}", message)
    honoured = {row.doc_id for row in documents if row.rule == PURGED_RULE}
    for row in kept:
        where = f"document {row.doc_id.hex()}"
        if row.doc_id in purged.doc_ids or row.doc_id in honoured:
            if row.text_hash is not None or not row.bare:
                yield Problem("purged.parsed_text", where, "was purged; its text is among the parsed texts")
        elif row.text_hash != had_text.get((row.doc_id, row.source), row.text_hash):
            yield Problem("texts.text_hash", where, "its parsed text has another hash than `documents` says")


def _had_text(row: CheckedDocument) -> bool:
    """Whether parse gave the document a text and let it pass."""
    return row.text_hash not in (None, text_hash("")) and row.stage != "parse"
