"""The tokenizer of a recipe or an output, with ids as models take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lineage.storage.folder import Folder, is_remote
from pipeline.report.tokens import tokenizer_of
from sluice.messages import in_python
from sluice.output import Output, open_output
from stages.tokens import tokenizer as by_name
from stages.tokens.tokenizer import TOKENIZER_FILES

Ids = npt.NDArray[np.int64]
"""Ids in the type that torch's embeddings and losses take: `torch.as_tensor` copies nothing."""


class Tokenizer:
    """A tokenizer, with its identity: `name`; `hash` of all that decides ids; `vocab_size`, below which all ids
    lie; and `eot_id`, which ends documents and is never made from text."""

    def __init__(self, tokenizer: by_name.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.name, self.hash = tokenizer.name, tokenizer.hash
        self.vocab_size, self.eot_id = tokenizer.vocab_size, tokenizer.eot_id

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}: {self.vocab_size:,} ids, of which {self.eot_id} ends a document)"

    def encode(self, text: str) -> Ids:
        """The ids of `text`, shape (num_tokens,), special tokens' names read as plain text.

        UnicodeEncodeError for a lone surrogate, which no UTF-8 text holds."""
        return self._tokenizer.encode(text).astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """`encode` of each text; faster for many short ones."""
        return [ids.astype(np.int64) for ids in self._tokenizer.encode_batch(texts)]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> str:
        """The text of ids in a list, an array or a tensor; a cut character becomes U+FFFD. ValueError names an id
        that the tokenizer does not have."""
        return self._tokenizer.decode(np.asarray(ids))

    def decode_bytes(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
        """The bytes that the ids stand for."""
        return self._tokenizer.decode_bytes(np.asarray(ids))

    def keeps(self, text: str) -> bool:
        """Whether the ids of `text` are sure to give it back."""
        return self._tokenizer.keeps(text)


@in_python
def load_tokenizer(of: str | Path | Output, end_of_text: str | None = None) -> Tokenizer:
    """The tokenizer that made the shards of an output, given itself or by its path; or the one that a recipe would
    name: an encoding, or the path of a .tiktoken or tokenizer.json file, whose documents end with the token
    `end_of_text`.

    RecipeError where there is no such tokenizer, or where it is another than the one that made the shards."""
    if not isinstance(of, Output) and not _is_output(str(of)):
        return Tokenizer(by_name.load_tokenizer(str(of), end_of_text))
    output = of if isinstance(of, Output) else open_output(str(of))
    return Tokenizer(tokenizer_of(Folder(output.url), output.index))


def _is_output(path: str) -> bool:
    return not path.endswith(TOKENIZER_FILES) and (is_remote(path) or Path(path).expanduser().is_dir())
