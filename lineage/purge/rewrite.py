"""The files of an OUT written again without purged documents: lengths, order and all else stay as they are.

A new file has the next generation's name, so the old one serves readers until the index names the new one.
Writing it twice gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import content_hash
from lineage.index.blocks import BLOCK_TOKENS, TOKEN_BYTES, ShardHasher
from lineage.index.output_index import PartFile, Shard, generation_of, part_name, shard_names
from lineage.index.parsed_texts import ParsedPart, texts_name
from lineage.storage.folder import Folder
from lineage.storage.hashing_file import HashingFile
from lineage.store.tables import PARSED_TEXTS, PART

TokenRange = tuple[int, int]
"""Tokens [start, start + num_tokens) of a shard."""

RowGroups = Callable[[pq.ParquetFile], Iterator[pa.Table]]
"""The row groups to write, made from the old file one at a time."""

_ERASED: Final = ("text", "metadata")


def rewrite_shard(out: Folder, shard: Shard, spans: Sequence[TokenRange], eot_id: int) -> Shard:
    """Publish the shard's next generation with the tokens of `spans` replaced by end-of-text."""
    file, blocks_file, _ = shard_names(shard.source, shard.shard, generation_of(shard.file) + 1)
    hasher = ShardHasher()
    # Block by block: a shard of any size takes one block of memory, and digests are by block anyway.
    with out.open(shard.file) as old, out.writing(file) as new:
        for first in range(0, shard.num_tokens, BLOCK_TOKENS):
            tokens = np.frombuffer(old.read(BLOCK_TOKENS * TOKEN_BYTES), dtype="<u4").copy()
            # A span may reach over several blocks; a slice that ends at or before 0 would count from the block's end.
            for start, num_tokens in spans:
                tokens[max(start - first, 0) : max(start + num_tokens - first, 0)] = eot_id
            hasher.update(tokens.data.cast("B"))
            new.write(tokens.data.cast("B"))
    digests = hasher.digests()
    out.write(blocks_file, digests.blocks)
    blocks_hash = content_hash(digests.blocks).hex()
    return replace(shard, file=file, hash=digests.hash, blocks_file=blocks_file, blocks_hash=blocks_hash)


def rewrite_part(out: Folder, part: PartFile, rows: Collection[int]) -> PartFile:
    """Publish the next generation of a part of documents/ with `text` and `metadata` of these rows null."""
    erased = np.zeros(part.num_rows, dtype=bool)
    erased[list(rows)] = True

    def groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
        first = 0
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            mask = pa.array(erased[first : first + len(table)])
            for name in _ERASED:
                at = table.schema.get_field_index(name)
                table = table.set_column(
                    at, PART.field(name), pc.if_else(mask, pa.scalar(None, pa.string()), table[name])
                )
            first += len(table)
            yield table

    name = part_name("documents", part.source, part.part, generation_of(part.file) + 1)
    digest, num_rows = _rewrite(out, part.file, name, groups)
    assert num_rows == part.num_rows, f"{part.file} has {num_rows} rows, the index says {part.num_rows}"
    return replace(part, file=name, hash=digest)


def rewrite_parsed_texts(out: Folder, part: ParsedPart, doc_ids: Collection[bytes]) -> ParsedPart:
    """Publish the next generation of a file of parsed texts with `text` and `metadata` of these documents
    null; the part itself where they are null already."""
    name = texts_name(part.source, part.part, generation_of(part.file) + 1)
    erased = erase_parsed_texts(out, part.file, name, doc_ids)
    assert erased.num_rows == part.num_rows, (
        f"{part.file} has {erased.num_rows} rows, texts.json says {part.num_rows}"
    )
    if not erased.found:
        out.remove(name)
        return part
    return replace(part, file=name, hash=erased.hash, bytes=out.size(name))


class ErasedFile(NamedTuple):
    """A file of parsed texts that was written again: its BLAKE3-128 in hex, its rows, and whether any row
    changed."""

    hash: str
    num_rows: int
    found: bool


def erase_parsed_texts(out: Folder, old: str, new: str, doc_ids: Collection[bytes]) -> ErasedFile:
    """Publish `new` with the rows of `old`, `text` and `metadata` of these documents null. Both may be one
    name."""
    purged = pa.array(sorted(doc_ids), pa.binary())
    found = False

    def groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
        nonlocal found
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            mask = pc.is_in(table["doc_id"], purged)
            for name in _ERASED:
                found = found or bool(pc.any(pc.and_(mask, pc.is_valid(table[name]))).as_py())
                erased = pc.if_else(mask, pa.scalar(None, pa.string()), table[name])
                table = table.set_column(table.schema.get_field_index(name), PARSED_TEXTS.field(name), erased)
            yield table

    digest, num_rows = _rewrite(out, old, new, groups)
    return ErasedFile(digest, num_rows, found)


def rewrite_dedup(out: Folder, entry: PartFile, doc_ids: Collection[bytes]) -> PartFile:
    """Publish the next generation of a file of dedup/ without the rows of these documents."""
    purged = pa.array(sorted(doc_ids), pa.binary())

    def groups(file: pq.ParquetFile) -> Iterator[pa.Table]:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            yield table.filter(pc.invert(pc.is_in(table["doc_id"], purged)))

    name = part_name("dedup", entry.source, entry.part, generation_of(entry.file) + 1)
    digest, num_rows = _rewrite(out, entry.file, name, groups)
    return replace(entry, file=name, hash=digest, num_rows=num_rows)


def drop_excerpts(out: Folder, name: str, doc_ids: Collection[bytes]) -> bool:
    """Publish the excerpts `name` without those of these documents; False if it showed none of them."""
    with out.open(name) as file:
        rows = pq.read_table(file)
    left = rows.filter(pc.invert(pc.is_in(rows["doc_id"], pa.array(sorted(doc_ids), pa.binary()))))
    if len(left) == len(rows):
        return False
    buffer = io.BytesIO()
    pq.write_table(left, buffer, compression="zstd", write_page_checksum=True)
    out.publish(name, buffer.getvalue())
    return True


def _rewrite(out: Folder, old: str, new: str, groups: RowGroups) -> tuple[str, int]:
    """Publish `new` with the `groups` of `old`: its BLAKE3-128 in hex, and its rows."""
    num_rows = 0
    with out.open(old) as stream, out.writing(new) as sink:
        hashing = HashingFile(sink)
        file = pq.ParquetFile(stream)
        with pq.ParquetWriter(
            pa.PythonFile(hashing, "w"),
            file.schema_arrow,
            compression="zstd",
            compression_level=3,
            write_page_index=True,
            write_page_checksum=True,
        ) as writer:
            # A row group for each old one: memory is that of one, whatever the file's size.
            for table in groups(file):
                writer.write_table(table, row_group_size=max(len(table), 1))
                num_rows += len(table)
    return hashing.hexdigest(), num_rows
