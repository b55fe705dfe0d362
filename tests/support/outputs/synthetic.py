"""Small finished outputs with made-up tokens, for tests that need shards and no text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lineage.ids import content_hash
from lineage.index.blocks import ShardHasher, as_bytes
from lineage.index.output_index import (
    Index,
    Shard,
    TokenizerIdentity,
    make_index,
    publish_index,
    read_index,
    shard_names,
)
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import commit_tables

EOT = 500
TOKENIZER = TokenizerIdentity(name="made up", hash="0" * 32, vocab_size=EOT + 1, eot_id=EOT)


def made_up_tokens(num_tokens: int, seed: int = 0, mean_document: int = 60) -> npt.NDArray[np.uint32]:
    """Documents of about `mean_document` tokens, each closed by end-of-text; the last token is one too."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, EOT, num_tokens, dtype=np.uint32)
    tokens[rng.random(num_tokens) < 1 / mean_document] = EOT
    tokens[-1:] = EOT
    return tokens


def write_shard(
    out: Folder, source: str, number: int, tokens: npt.NDArray[np.uint32], generation: int = 0
) -> Shard:
    """One shard on disk, as the pipeline leaves it (its table of documents is empty)."""
    file, blocks_file, index_file = shard_names(source, number, generation)
    hasher = ShardHasher()
    hasher.update(as_bytes(tokens))
    digests = hasher.digests()
    out.publish(file, bytes(as_bytes(tokens)))
    out.publish(blocks_file, digests.blocks)
    out.publish(index_file, b"")
    return Shard(
        source=source,
        shard=number,
        file=file,
        num_tokens=len(tokens),
        num_documents=int((tokens == EOT).sum()),
        hash=digests.hash,
        blocks_file=blocks_file,
        blocks_hash=content_hash(digests.blocks).hex(),
        index_file=index_file,
        index_hash=content_hash(b"").hex(),
    )


def write_output(
    folder: Path | str, sources: dict[str, list[npt.NDArray[np.uint32]]], *, store: bool = False
) -> Index:
    """A finished output with these shards; with `store` also an empty lineage store and its checksums."""
    out = Folder(str(folder))
    shards = [
        write_shard(out, source, number, tokens)
        for source, arrays in sources.items()
        for number, tokens in enumerate(arrays)
    ]
    index = make_index(TOKENIZER, shards, (), ())
    if store:
        commit_tables(out, {})
    publish_index(out, index)
    if store:
        cover_output(out, index)
    return index


def purge_tokens(folder: Path, source: str, number: int, start: int, num_tokens: int) -> Index:
    """What a purge does to a shard: its next generation has end-of-text there, then the old one is
    deleted."""
    out, index = Folder(str(folder)), read_index(str(folder))
    old = next(shard for shard in index.shards if (shard.source, shard.shard) == (source, number))
    tokens = np.frombuffer(out.read(old.file), "<u4").copy()
    tokens[start : start + num_tokens] = EOT
    new = write_shard(out, source, number, tokens, generation=index.version)
    after = dataclasses.replace(
        index,
        version=index.version + 1,
        shards=tuple(new if shard is old else shard for shard in index.shards),
    )
    publish_index(out, after)
    out.remove(old.file)
    out.remove(old.blocks_file)
    return after
