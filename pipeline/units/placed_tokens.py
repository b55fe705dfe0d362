"""Tokens that an earlier run placed in its shards: a run over the same texts with the same tokenizer copies
them.

A text is the same if its document and its BLAKE3-128 are; what is copied is held against the hash that the
shard's index has of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import text_hash, tokens_hash
from lineage.index.blocks import TOKEN_BYTES
from lineage.index.checksums import DamagedFileError
from lineage.index.output_index import Index, TokenizerIdentity, read_index
from lineage.storage.folder import Folder
from pipeline.results.rows import read_rows

MAX_DOCUMENTS: Final = 1 << 20
"""Kept documents of an earlier output at most whose tokens are copied: the place of each is held in every
process, in some 50 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTokens:
    """The earlier output, the fingerprint of its content, and the tokenizer that made its tokens."""

    out: str
    content_fingerprint: str
    tokenizer: TokenizerIdentity

    def lines(self) -> list[str]:
        """What whoever runs it should know, a line each."""
        found = self.tokenizer
        return [
            f"Tokenizer {found.name} has {found.vocab_size:,} ids, as in {self.out}. Each document ends with id"
            f" {found.eot_id}. Tokens of unchanged texts are copied from there."
        ]


class _EarlierTokens(NamedTuple):
    """A document of the earlier output: its text's hash, and where its tokens lie, end-of-text included."""

    text_hash: bytes
    shard_file: str
    start: int
    num_tokens: int
    tokens_hash: bytes


class EarlierPart:
    """The tokens of the documents that the earlier run kept of one input file: part `part` of `source`."""

    def __init__(self, placed: PlacedTokens, source: str, part: int) -> None:
        self._out = Folder(placed.out)
        self._found = _of_part(placed, source, part)

    def tokens(self, doc_id: bytes, text: str) -> npt.NDArray[np.uint32] | None:
        """The tokens of a document, its end-of-text included; None where that run did not keep it with this
        very text. DamagedFileError where the shard does not hold them."""
        found = self._found.get(doc_id)
        if found is None or found.text_hash != text_hash(text):
            return None
        first, num_bytes = found.start * TOKEN_BYTES, found.num_tokens * TOKEN_BYTES
        data = self._out.read_range(found.shard_file, first, num_bytes)
        tokens = np.frombuffer(data[: len(data) // TOKEN_BYTES * TOKEN_BYTES], dtype="<u4")
        if tokens_hash(tokens) != found.tokens_hash:
            raise DamagedFileError(
                f"{self._out.at(found.shard_file)} does not hold the tokens of {doc_id.hex()} in their place:"
                " run sluice verify"
            )
        return tokens


def _of_part(placed: PlacedTokens, source: str, part: int) -> Mapping[bytes, _EarlierTokens]:
    """What was kept of an input file, by doc_id."""
    index, places = _places(placed.out, placed.content_fingerprint)
    compared = next(one for one in index.dedup if (one.source, one.part) == (source, part))
    kept = read_rows(Folder(placed.out), compared.file, ["doc_id", "clean_hash"], compared.hash)
    rows = places.take(pc.index_in(kept["doc_id"], places["doc_id"]))
    files = [index.shards[number].file for number in rows["shard"].to_pylist()]
    columns = (rows[name].to_pylist() for name in ("start", "num_tokens", "tokens_hash"))
    found = map(_EarlierTokens, kept["clean_hash"].to_pylist(), files, *columns)
    return dict(zip(kept["doc_id"].to_pylist(), found, strict=True))


@functools.lru_cache(maxsize=1)
def _places(url: str, _content_fingerprint: str) -> tuple[Index, pa.Table]:
    """The index of an output, and the rows of all its shards' indexes; `shard` is a shard's number among
    all."""
    out = Folder(url)
    index = read_index(out)
    tables = []
    for number, shard in enumerate(index.shards):
        names = ["doc_id", "start", "num_tokens", "tokens_hash"]
        rows = read_rows(out, shard.index_file, names, shard.index_hash)
        tables.append(rows.append_column("shard", pa.array(np.full(len(rows), number, dtype=np.int64))))
    return index, pa.concat_tables(tables)
