"""A finished OUT with shards of random documents of uneven length over a small vocabulary: all that training
reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from lineage.ids import content_hash
from lineage.index.blocks import as_bytes, block_digest
from lineage.index.output_index import Shard, TokenizerIdentity, make_index, publish_index
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import commit_tables

VOCAB = 250
END_OF_TEXT = VOCAB - 1


def make_corpus(
    url: str,
    shards: Mapping[str, Sequence[int]],
    seed: int = 0,
    repeats: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Folder:
    """Write an OUT whose sources have shards of these numbers of tokens (each below one block), of which an
    epoch reads each so often."""
    out = Folder(url)
    entries = [
        replace(
            _write_shard(out, source, number, make_tokens(num_tokens, hash_seed(seed, source, number))),
            repeats=repeats[source][number] if source in repeats else 1,
        )
        for source, lengths in shards.items()
        for number, num_tokens in enumerate(lengths)
    ]
    tokenizer = TokenizerIdentity(name="tiny", hash="00" * 16, vocab_size=VOCAB, eot_id=END_OF_TEXT)
    commit_tables(out, {})
    index = make_index(tokenizer, entries, [], [])
    cover_output(out, index)
    publish_index(out, index)
    return out


def hash_seed(*parts: object) -> int:
    """A seed from anything that prints."""
    return int.from_bytes(content_hash(repr(parts).encode())[:8], "little")


def make_tokens(num_tokens: int, seed: int) -> np.ndarray:
    """Documents of 2 to 40 tokens, each with its end-of-text id; tokens follow each other predictably enough
    to be learnt."""
    rng = np.random.default_rng(seed)
    tokens = (np.cumsum(rng.integers(1, 4, num_tokens)) % (VOCAB - 1)).astype(np.uint32)
    ends = np.cumsum(rng.integers(3, 41, num_tokens))
    tokens[ends[ends < num_tokens]] = END_OF_TEXT
    tokens[-1] = END_OF_TEXT
    return tokens


def _write_shard(out: Folder, source: str, number: int, tokens: np.ndarray) -> Shard:
    file, data = f"shards/{source}/{number:05d}.bin", bytes(as_bytes(tokens))
    blocks = block_digest(data)
    out.publish(file, data)
    out.publish(file.replace(".bin", ".blocks"), blocks)
    return Shard(
        source=source,
        shard=number,
        file=file,
        num_tokens=len(tokens),
        num_documents=int((tokens == END_OF_TEXT).sum()),
        hash=content_hash(data).hex(),
        blocks_file=file.replace(".bin", ".blocks"),
        blocks_hash=content_hash(blocks).hex(),
        index_file=file.replace(".bin", ".idx.parquet"),
        index_hash="00" * 16,
    )
