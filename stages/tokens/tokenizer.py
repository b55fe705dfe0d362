"""Text to token ids and back, exactly as tiktoken does it, by the fastest encoder that is proven to give its ids."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import quicktok
import regex
import tiktoken
from tokenizers import Regex
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from lineage.ids import content_hash, length_prefixed
from lineage.recipe import RecipeError, key
from stages.tokens.vocabulary import Vocabulary, byte_level_alphabet, format_ranks, load_vocabulary

Tokens = npt.NDArray[np.uint32]

_TRAINING_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""cl100k_base's split without possessive quantifiers, which Oniguruma (inside `tokenizers`) reads differently."""

# Assigned in Unicode 17, and classed differently by quicktok 0.4.0 and tiktoken 0.14.0: found by encoding every code
# point with both (tests/stages/tokens/test_tokenizer.py repeats it). A text with one of these goes to tiktoken.
_DISPUTED: Final = re.compile(
    "[\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce-\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959"
    "\U00010ec5-\U00010ec7\U00010efa-\U00010efb\U00011b60-\U00011b67\U00011db0-\U00011ddb\U00011de0-\U00011de9"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e"
    "\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe-\U0001e6ff\U0002b73a-\U0002b73f"
    "\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeTable:
    """[tokenize]: how texts become tokens and tokens become shards."""

    encoding: str = key(
        "cl100k_base", help="a tiktoken encoding's name, or the path of a .tiktoken or tokenizer.json file"
    )
    off: bool = key(
        False,
        help="end after deduplication, with texts and without shards; a tokenizer may follow (sluice run --from OUT)",
    )
    shard_tokens: int = key(2**28, at_least=1, help="tokens of a shard at most (a longer document is its own shard)")
    group_files: int = key(1000, at_least=1, help="input files whose documents share shards")


class Tokenizer:
    """An encoding, with its identity. Immutable; cheap to keep, a fraction of a second to make.

    `hash` is the BLAKE3-128 (hex) of pattern, ranks, special tokens and end-of-text id: equal hashes encode alike.
    Ids lie below `vocab_size`; `eot_id` is never made from text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.eot_id not in vocabulary.ranks.values(), "the end-of-text id must not be a rank"
        self.name = vocabulary.name
        self.eot_id = vocabulary.eot_id
        self.vocab_size = max([*vocabulary.ranks.values(), *vocabulary.special.values()]) + 1
        self.hash = _identity(vocabulary)
        self._vocabulary = vocabulary
        self._fast: Any = quicktok.get_encoding(vocabulary.bundled) if vocabulary.bundled else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._vocabulary,)

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape (num_tokens,), special tokens' names read as plain text.

        UnicodeEncodeError for a lone surrogate, which no UTF-8 text holds."""
        if self._fast is not None and not _disputed(text):
            ids, _ = self._fast.encode_batch([_checked(text)], 1, False)
            return np.asarray(ids, dtype=np.uint32)
        try:
            ids = self._exact.encode_to_numpy(_checked(text), disallowed_special=())
        except UnicodeEncodeError:
            raise
        except ValueError:  # tiktoken's regex engine gives up on a run of white space of hundreds of thousands
            return self._encode_pieces(text)
        return np.asarray(ids, dtype=np.uint32)

    def _encode_pieces(self, text: str) -> Tokens:
        """What tiktoken does, with an engine that has no limit: split by the pattern, merge each piece.

        The ids are tiktoken's but next to a letter that Unicode 17 added."""
        pieces = (match.group() for match in regex.finditer(self._vocabulary.pattern, text))
        ids = [token for piece in pieces for token in self._exact._encode_single_piece(piece)]
        return np.array(ids, dtype=np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text; faster for many short ones."""
        if self._fast is None or any(map(_disputed, texts)):
            return [self.encode(text) for text in texts]
        ids, ends = self._fast.encode_batch([_checked(text) for text in texts], 1, False)
        return np.split(np.asarray(ids, dtype=np.uint32), ends[1:-1]) if texts else []

    def decode_bytes(self, tokens: Tokens) -> bytes:
        """The bytes that the ids stand for; ValueError names an id that the encoding does not have."""
        table = self._table
        try:
            return b"".join([table[token] for token in tokens.tolist()])
        except KeyError as error:
            raise ValueError(
                f"{self.name} has no token {error.args[0]}: was this made by another tokenizer?"
            ) from error

    def decode(self, tokens: Tokens) -> str:
        """The text of the ids; `decode(encode(text)) == text`. A cut character becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def rank_bytes(self) -> bytes:
        """The ranks as a .tiktoken file."""
        return format_ranks(self._vocabulary.ranks)

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
    def _table(self) -> dict[int, bytes]:
        special = {token: text.encode() for text, token in self._vocabulary.special.items()}
        return special | {rank: token for token, rank in self._vocabulary.ranks.items()}


def load_tokenizer(encoding: str) -> Tokenizer:
    """The tokenizer that `encoding` names (see TokenizeTable); RecipeError says how to provide what is missing."""
    return Tokenizer(load_vocabulary(encoding))


def train_bpe(texts: Iterable[str], vocab: int) -> bytes:
    """A byte-level BPE of `vocab` ids, end-of-text included, learnt from `texts`: the bytes of a .tiktoken file.

    Split as cl100k_base splits. The same texts in any order give the same bytes. RecipeError if `vocab` is below 257
    or the texts are too few for so many merges."""
    if vocab < 257:
        raise RecipeError(f"vocab = {vocab}: expected at least 257 (256 bytes and end-of-text)")
    tokenizer = HfTokenizer(BPE())
    tokenizer.pre_tokenizer = PreTokenizers(
        [Split(Regex(_TRAINING_PATTERN), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=vocab - 1, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer=trainer)
    alphabet = byte_level_alphabet()
    ranks = {bytes(alphabet[char] for char in token): rank for token, rank in tokenizer.get_vocab().items()}
    if len(ranks) < vocab - 1:
        raise RecipeError(
            f"vocab = {vocab}: these texts give only {len(ranks) + 1} ids; set a smaller vocab or give more text"
        )
    return format_ranks(ranks)


def _identity(vocabulary: Vocabulary) -> str:
    special = json.dumps(sorted(vocabulary.special.items()), ensure_ascii=True).encode()
    parts = (vocabulary.pattern.encode(), format_ranks(vocabulary.ranks), special, b"%d" % vocabulary.eot_id)
    return content_hash(length_prefixed(*parts)).hex()


def _disputed(text: str) -> bool:
    return not text.isascii() and _DISPUTED.search(text) is not None


def _checked(text: str) -> str:
    """quicktok answers a lone surrogate with a TypeError, and tiktoken replaces it: both must refuse it alike."""
    if not text.isascii():
        text.encode("utf-8")
    return text
