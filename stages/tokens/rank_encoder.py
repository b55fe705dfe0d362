"""Byte-level BPE by rank: tiktoken's ids, by the fastest encoder that is proven to give them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import regex
import tiktoken

from stages.tokens.vocabulary import Vocabulary, bundled_encoding

Tokens = npt.NDArray[np.uint32]

# Assigned in Unicode 17, and classed differently by quicktok 0.4.0 and tiktoken 0.14.0: found by encoding
# every code point with both (tests/stages/tokens/test_tokenizer.py repeats it). A text with one of these goes
# to tiktoken.
_DISPUTED: Final = re.compile(
    "[\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce-\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959"
    "\U00010ec5-\U00010ec7\U00010efa-\U00010efb\U00011b60-\U00011b67\U00011db0-\U00011ddb\U00011de0-\U00011de9"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e"
    "\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe-\U0001e6ff\U0002b73a-\U0002b73f"
    "\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)


class RankEncoder:
    """The ids of a vocabulary of ranks. Immutable; cheap to keep, a fraction of a second to make."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape (num_tokens,), special tokens' names read as plain text.

        UnicodeEncodeError for a lone surrogate, which no UTF-8 text holds."""
        if self._fast is not None and not _disputed(text):
            ids, _ = self._fast.encode_batch([checked(text)], 1, False)
            return np.asarray(ids, dtype=np.uint32)
        try:
            ids = self._exact.encode_to_numpy(checked(text), disallowed_special=())
        except UnicodeEncodeError:
            raise
        except (
            ValueError
        ):  # tiktoken's regex engine gives up on a run of white space of hundreds of thousands
            return self._encode_pieces(text)
        return np.asarray(ids, dtype=np.uint32)

    def _encode_pieces(self, text: str) -> Tokens:
        """What tiktoken does, with an engine that has no limit: split by the pattern, merge each piece."""
        found = regex.finditer(self._vocabulary.pattern, text.translate(_unassigned(text)))
        pieces = (text[match.start() : match.end()] for match in found)
        ids = [token for piece in pieces for token in self._exact._encode_single_piece(piece)]
        return np.array(ids, dtype=np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text; faster for many short ones."""
        if self._fast is None or any(map(_disputed, texts)):
            return [self.encode(text) for text in texts]
        ids, ends = self._fast.encode_batch([checked(text) for text in texts], 1, False)
        return np.split(np.asarray(ids, dtype=np.uint32), ends[1:-1]) if texts else []

    def decode_bytes(self, tokens: Tokens) -> bytes:
        """The bytes that the ids stand for; KeyError for an id that the vocabulary does not have."""
        table = self.table
        return b"".join([table[token] for token in tokens.tolist()])

    def keeps(self, _text: str) -> bool:
        """Whether the ids of a text give it back: bytes are lost by no split and no merge."""
        return True

    @functools.cached_property
    def _fast(self) -> Any:
        """quicktok's encoding, None where it has none. Made for the first text: to decode, ranks are
        enough."""
        bundled = self._vocabulary.bundled
        return bundled_encoding(bundled) if bundled else None

    @functools.cached_property
    def _exact(self) -> tiktoken.Encoding:
        vocabulary = self._vocabulary
        return tiktoken.Encoding(
            vocabulary.name,
            pat_str=vocabulary.pattern,
            mergeable_ranks=dict(vocabulary.ranks),
            special_tokens=dict(vocabulary.special),
        )

    @functools.cached_property
    def table(self) -> dict[int, bytes]:
        """The bytes of each token; of a special one, its name."""
        special = {token: text.encode() for text, token in self._vocabulary.special.items()}
        return special | {rank: token for token, rank in self._vocabulary.ranks.items()}


def _unassigned(text: str) -> dict[int, str]:
    """The characters of `text` that tiktoken's Unicode does not assign, each with a noncharacter to stand for it.

    regex follows a later Unicode, where such a character may be a letter and the split falls elsewhere. A
    noncharacter is unassigned for ever."""
    asked = "".join(set(text))
    return {
        ord(character): "\ufdd0"
        for character in bytes(_unassigned_encoding().encode_ordinary(asked)).decode()
    }


@functools.cache
def _unassigned_encoding() -> tiktoken.Encoding:
    """Encodes nothing but unassigned characters, as their bytes."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("unassigned", pat_str=r"\p{Cn}", mergeable_ranks=ranks, special_tokens={})


def _disputed(text: str) -> bool:
    return not text.isascii() and _DISPUTED.search(text) is not None


def checked(text: str) -> str:
    """quicktok and tokenizers answer a lone surrogate with a TypeError, and tiktoken replaces it: all must
    refuse it alike."""
    if not text.isascii():
        text.encode("utf-8")
    return text
