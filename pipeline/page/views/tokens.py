"""A document's tokens with their ids, read from its shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lineage.index.blocks import TOKEN_BYTES
from lineage.index.output_index import Index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.rows import DocumentRow
from stages.tokens.tokenizer import Tokenizer

TOKENS_A_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """A token's id, and what it stands for: as text, or as hex digits where its bytes are no text by
    themselves."""

    id: int
    text: str
    is_bytes: bool


def tokens_of(
    out: Folder, index: Index, row: DocumentRow, first: int, tokenizer: Tokenizer | None
) -> list[ShownToken]:
    """Some tokens of a placed document from its token `first` on. RecipeError for one that has none."""
    shard = next(
        (each for each in index.shards if (each.source, each.shard) == (row.shard_source, row.shard)), None
    )
    if shard is None or row.start is None or row.num_tokens is None:
        raise RecipeError("this document lies in no shard")
    num = max(0, min(TOKENS_A_PAGE, row.num_tokens - first))
    data = out.read_range(shard.file, (row.start + first) * TOKEN_BYTES, num * TOKEN_BYTES)
    return [_shown(token, tokenizer, index.tokenizer.eot_id) for token in np.frombuffer(data, "<u4").tolist()]


def _shown(token: int, tokenizer: Tokenizer | None, eot_id: int) -> ShownToken:
    if token == eot_id:
        return ShownToken(id=token, text="end of text", is_bytes=True)
    if tokenizer is None:
        return ShownToken(id=token, text="", is_bytes=True)
    data = tokenizer.decode_bytes(np.array([token], np.uint32))
    try:
        return ShownToken(id=token, text=data.decode(), is_bytes=False)
    except UnicodeDecodeError:
        return ShownToken(id=token, text=data.hex(" "), is_bytes=True)
