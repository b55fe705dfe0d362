"""Purged text that is there again: files of a backup laid over an output, with their index or beside the new
one.

What was purged is known from the audit rows, which no old file contradicts. So a purge takes out again what
is there again, and `verify` names the documents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.blocks import TOKEN_BYTES
from lineage.index.names import EXCERPTS_FILE
from lineage.index.output_index import Index, shard_of
from lineage.index.parsed_texts import TEXTS_FILE, ParsedTexts, parsed_text_files
from lineage.storage.folder import Folder, ForbiddenError, UnreachableError
from lineage.store.damage import DAMAGE
from lineage.store.delta import corpus_version, read_table
from lineage.store.purged_spans import PurgedSpans, read_purged
from lineage.store.rows import DocumentRow

_HOLDING: Final = ("shards/", "documents/", "texts/", "dedup/")
_WITHOUT_TEXT: Final = (TEXTS_FILE, "texts/facts/")
_TOKENS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedDocument:
    """A purged document that `file` holds."""

    doc_id: bytes
    file: str


def is_as_purges_left_it(out: Folder, index: Index) -> bool:
    """Whether `index` is what the last purge published (or the run, without one), and not one from a
    backup."""
    after = read_table(out, "purges")["content_fingerprint_after"].to_pylist()
    left = not after or index.content_fingerprint in after
    return left and index.version == corpus_version(out)


def strays(out: Folder, index: Index) -> list[str]:
    """Files of other generations of what `index` and texts.json name, sorted: readers open none of them."""
    named = {**index.files(), **parsed_text_files(out)}
    found = (name for top in _HOLDING for name in out.names(top.rstrip("/")))
    return [name for name in found if name not in named and not name.startswith(_WITHOUT_TEXT)]


def finished_purges(out: Folder) -> PurgedSpans:
    """What the purges that ended took."""
    ended = read_table(out, "purges")["purge_id"].to_pylist()
    return read_purged(out, frozenset(ended))


def files_of(index: Index, texts: ParsedTexts | None, rows: Sequence[DocumentRow]) -> list[str]:
    """The files that `index` names, and of the parsed texts, that hold, or held, these documents."""
    shards = {(row.shard_source, row.shard) for row in rows if row.shard is not None}
    parts = {(row.source, row.part) for row in rows if row.part is not None}
    found = [shard.file for shard in index.shards if (shard.source, shard.shard) in shards]
    found += [entry.file for entry in (*index.documents, *index.dedup) if (entry.source, entry.part) in parts]
    if texts is not None and texts.kept:
        inputs = {(row.source, row.warc_file) for row in rows if row.warc_file is not None}
        held = {part.file for part in texts.parts_of(inputs).values()}
        found += [part.file for part in texts.parts if part.file in held]
    return [*found, EXCERPTS_FILE]


def find_returned(
    out: Folder, eot_id: int, purged: PurgedSpans, files: Iterable[str], only: Collection[bytes] | None = None
) -> Iterator[ReturnedDocument]:
    """Which purged documents (of `only`, or all) these `files` hold text, tokens or signatures of.

    A file that is damaged is passed over: `verify` names it. UnreachableError and ForbiddenError where the
    store does not let the file be read: nobody may conclude that nothing is there."""
    wanted = purged.doc_ids if only is None else purged.doc_ids & frozenset(only)
    ids = pa.array(sorted(wanted), pa.binary())
    for name in files:
        try:
            if name.endswith(".bin"):
                yield from _in_shard(out, eot_id, purged, wanted, name)
            elif name.startswith(("documents/", "texts/")):
                yield from _in_rows(out, name, ids, ("text", "metadata"))
            elif name == EXCERPTS_FILE or name.startswith("dedup/"):
                yield from _in_rows(out, name, ids, ())
        except (UnreachableError, ForbiddenError):
            raise
        except DAMAGE:
            continue


def _in_shard(
    out: Folder, eot_id: int, purged: PurgedSpans, wanted: Collection[bytes], name: str
) -> Iterator[ReturnedDocument]:
    place = shard_of(name)
    spans = sorted(purged.spans.get(place, ())) if place is not None else []
    with out.open(name) as file:
        for doc_id, start, num_tokens in spans:
            if doc_id in wanted and not _is_blank(file, start, num_tokens, eot_id):
                yield ReturnedDocument(doc_id=doc_id, file=name)


def _is_blank(file: IO[bytes], start: int, num_tokens: int, eot_id: int) -> bool:
    """Whether every token of the span is end-of-text."""
    file.seek(start * TOKEN_BYTES)
    for first in range(0, num_tokens, _TOKENS_AT_ONCE):
        size = min(_TOKENS_AT_ONCE, num_tokens - first) * TOKEN_BYTES
        data = file.read(size)
        if (np.frombuffer(data[: len(data) // TOKEN_BYTES * TOKEN_BYTES], dtype="<u4") != eot_id).any():
            return False
    return True


def _in_rows(out: Folder, name: str, ids: pa.Array, erased: tuple[str, ...]) -> Iterator[ReturnedDocument]:
    """The documents that have a row here; where columns are `erased` by a purge, one in which any of them is
    left."""
    with out.open(name) as stream:
        file = pq.ParquetFile(stream)
        for group in range(file.num_row_groups):
            if not pc.any(pc.is_in(file.read_row_group(group, columns=["doc_id"])["doc_id"], ids)).as_py():
                continue
            rows = file.read_row_group(group, columns=["doc_id", *erased])
            rows = rows.filter(pc.is_in(rows["doc_id"], ids))
            if erased:
                left = pc.is_valid(rows[erased[0]])
                for column in erased[1:]:
                    left = pc.or_(left, pc.is_valid(rows[column]))
                rows = rows.filter(left)
            for doc_id in rows["doc_id"].to_pylist():
                yield ReturnedDocument(doc_id=doc_id, file=name)
