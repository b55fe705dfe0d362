"""Verify, part 2: each shard's tokens, blocks and index, read once, against one another and against the
store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.ids import tokens_hash
from lineage.index.blocks import BLOCK_BYTES, DIGEST_BYTES, TOKEN_BYTES, ShardHasher
from lineage.index.output_index import Index, Shard, TokenizerIdentity
from lineage.storage.folder import Folder
from lineage.store.delta import open_table, state
from lineage.store.purged_spans import PurgedSpans
from lineage.store.tables import SCHEMAS, SHARD_INDEX
from lineage.verify.problems import Problem, guarded


def check_shards(
    out: Folder, index: Index, purged: PurgedSpans | None, damaged: set[str]
) -> Iterator[Problem]:
    """Every shard against its own files and against `placements`. `damaged` names files whose hash is wrong
    already; `purged` is None where the store is damaged: then only the files' own sums are compared."""
    for shard in index.shards:
        if shard.file in damaged:
            continue
        if purged is None or shard.index_file in damaged:
            yield from guarded("shard.unreadable", shard.file, _check_bytes(out, shard))
        else:
            yield from guarded(
                "shard.unreadable", shard.file, _check_shard(out, index.tokenizer, shard, purged)
            )
    if purged is None or any(shard.index_file in damaged for shard in index.shards):
        return
    yield from guarded("placements.unreadable", "lineage/placements", _check_placements(out, index))
    known = {(shard.source, shard.shard) for shard in index.shards}
    for source, number in sorted(purged.spans.keys() - known):
        yield Problem("purged.place", "lineage/purged", f"no shard {source}/{number}")


def _check_bytes(out: Folder, shard: Shard) -> Iterator[Problem]:
    hasher = ShardHasher()
    with out.open(shard.file) as file:
        while block := file.read(BLOCK_BYTES):
            hasher.update(block)
    yield from _check_digests(out, shard, hasher)


def _check_shard(
    out: Folder, tokenizer: TokenizerIdentity, shard: Shard, purged: PurgedSpans
) -> Iterator[Problem]:
    with out.open(shard.index_file) as file:
        rows = pq.read_table(file, schema=SHARD_INDEX)
    yield from _check_tiling(shard, rows)
    spans = purged.spans.get((shard.source, shard.shard), set())
    placed = set(zip(*(rows[name].to_pylist() for name in ("doc_id", "start", "num_tokens")), strict=True))
    for doc_id, start, _ in sorted(spans - placed):
        yield Problem(
            "purged.place", f"{shard.file} at {start}", f"purged document {doc_id.hex()} is not placed here"
        )
    hasher = ShardHasher()
    for row, tokens in _documents(out, shard, rows, hasher):
        yield from _check_tokens(
            shard, tokenizer, row, tokens, (row.doc_id, row.start, row.num_tokens) in spans
        )
    yield from _check_digests(out, shard, hasher)


def _check_tiling(shard: Shard, rows: pa.Table) -> Iterator[Problem]:
    starts, lengths = rows["start"].to_numpy(), rows["num_tokens"].to_numpy()
    ends = np.cumsum(lengths)
    wrong = np.flatnonzero(starts != ends - lengths)
    if len(wrong):
        at = int(wrong[0])
        yield Problem(
            "shard.tiling",
            f"{shard.index_file} row {at}",
            f"starts at {starts[at]}, the rows before it end at {ends[at] - lengths[at]}",
        )
    total = int(ends[-1]) if len(ends) else 0
    if (len(rows), total) != (shard.num_documents, shard.num_tokens):
        yield Problem(
            "shard.tiling",
            shard.index_file,
            f"{len(rows)} documents with {total} tokens, index.json says {shard.num_documents} with"
            f" {shard.num_tokens}",
        )


@dataclass(frozen=True, slots=True)
class _Row:
    doc_id: bytes
    start: int
    num_tokens: int
    tokens_hash: bytes


def _documents(
    out: Folder, shard: Shard, rows: pa.Table, hasher: ShardHasher
) -> Iterator[tuple[_Row, npt.NDArray[np.uint32]]]:
    """Each document's row and tokens, the file read once by blocks; holds a block and the longest
    document."""
    held = memoryview(b"")
    with out.open(shard.file) as file:
        for row in (
            _Row(*values) for values in zip(*(column.to_pylist() for column in rows.columns), strict=True)
        ):
            num_bytes = row.num_tokens * TOKEN_BYTES
            while len(held) < num_bytes and (block := file.read(BLOCK_BYTES)):
                hasher.update(block)
                held = memoryview(bytes(held) + block)
            document = held[:num_bytes]
            yield row, np.frombuffer(document[: len(document) // TOKEN_BYTES * TOKEN_BYTES], dtype="<u4")
            held = held[num_bytes:]
        while block := file.read(BLOCK_BYTES):
            hasher.update(block)


def _check_tokens(
    shard: Shard, tokenizer: TokenizerIdentity, row: _Row, tokens: npt.NDArray[np.uint32], purged: bool
) -> Iterator[Problem]:
    where = f"{shard.file} at {row.start}"
    if len(tokens) != row.num_tokens:
        yield Problem("shard.tokens", where, f"the file ends inside document {row.doc_id.hex()}")
    elif purged:
        if (tokens != tokenizer.eot_id).any():
            yield Problem(
                "purged.tokens", where, f"tokens of the purged document {row.doc_id.hex()} are still there"
            )
    elif tokens_hash(tokens) != row.tokens_hash:
        yield Problem(
            "shard.tokens", where, f"the tokens of document {row.doc_id.hex()} do not have their tokens_hash"
        )
    elif not len(tokens) or tokens[-1] != tokenizer.eot_id or (tokens[:-1] == tokenizer.eot_id).any():
        yield Problem(
            "shard.end_of_text",
            where,
            f"document {row.doc_id.hex()} does not hold end-of-text exactly at its end",
        )
    elif int(tokens.max()) >= tokenizer.vocab_size:
        message = (
            f"document {row.doc_id.hex()} holds token {tokens.max()}, beyond the {tokenizer.vocab_size} ids"
        )
        yield Problem("shard.vocabulary", where, message)


def _check_digests(out: Folder, shard: Shard, hasher: ShardHasher) -> Iterator[Problem]:
    digests = hasher.digests()
    if digests.hash != shard.hash:
        yield Problem("file.hash", shard.file, f"hash is {digests.hash}, expected {shard.hash}")
    written = out.read(shard.blocks_file)
    if digests.blocks != written:
        same = min(len(digests.blocks), len(written)) // DIGEST_BYTES
        pairs = (
            (digests.blocks[i * DIGEST_BYTES :][:DIGEST_BYTES], written[i * DIGEST_BYTES :][:DIGEST_BYTES])
            for i in range(same)
        )
        first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), same)
        yield Problem(
            "shard.blocks",
            f"{shard.file} block {first}",
            f"does not have the digest that {shard.blocks_file} gives",
        )


def _check_placements(out: Folder, index: Index) -> Iterator[Problem]:
    """`placements` holds exactly the rows of the shards' indexes."""
    num_rows, expected = state(out, "placements").num_rows, sum(shard.num_documents for shard in index.shards)
    if num_rows != expected:
        yield Problem(
            "placements.rows", "lineage/placements", f"{num_rows} rows, the shards hold {expected} documents"
        )
    dataset = open_table(out, "placements").to_pyarrow_dataset()
    for shard in index.shards:
        with out.open(shard.index_file) as file:
            ours = pq.read_table(file, schema=SHARD_INDEX)
        here = (pc.field("source") == shard.source) & (pc.field("shard") == shard.shard)
        theirs = (
            dataset.to_table(columns=SCHEMAS["placements"].names, filter=here)
            .select(SHARD_INDEX.names)
            .cast(SHARD_INDEX)
        )
        if not theirs.sort_by("start").equals(ours.combine_chunks()):
            yield Problem(
                "placements.shard",
                f"lineage/placements, {shard.source}/{shard.shard}",
                f"{len(theirs)} rows that are not those of {shard.index_file}",
            )
