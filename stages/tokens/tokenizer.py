"""Text to token ids and back: a tokenizer by its name or file, its identity, and training one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from lineage.ids import content_hash, length_prefixed
from lineage.recipe import RecipeError, key
from stages.tokens.end_of_text import OtherEndError
from stages.tokens.library_encoder import LibraryEncoder, proven
from stages.tokens.rank_encoder import RankEncoder, Tokens
from stages.tokens.tokenizer_json import TokenizerJson, identity_of, read_tokenizer_json
from stages.tokens.vocabulary import (
    BUNDLED,
    Vocabulary,
    bundled_ranks,
    byte_level_alphabet,
    format_ranks,
    load_vocabulary,
    read_tokenizer_file,
)
from stages.tokens.written_json import tokenizer_config, write_tokenizer_json

TOKENIZER_FILES: Final = (".tiktoken", ".json")
"""How the name of a tokenizer's file ends, by which `tokenize.encoding` tells it from an encoding's name."""

_TRAINING_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""cl100k_base's split without possessive quantifiers, which Oniguruma (inside `tokenizers`) reads
differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeTable:
    """[tokenize]: how texts become tokens and tokens become shards."""

    encoding: str = key(
        "cl100k_base",
        is_path=True,
        help="name of a tiktoken encoding, or path of a .tiktoken or tokenizer.json file (if "
        "tiktoken cannot express it, the slower tokenizers library encodes)",
    )
    end_of_text: str | None = key(
        None,
        help="the special token that ends each document (the one whose name is known for it, as <|endoftext|>"
        " and </s> are; without special tokens the next free id)",
    )
    off: bool = key(
        False,
        help="end after deduplication, with texts and without shards; tokenize later with sluice run"
        " --from OUT",
    )
    shard_tokens: int = key(
        2**28, at_least=1, help="tokens of a shard at most (a longer document is its own shard)"
    )
    group_files: int = key(1000, at_least=1, help="input files whose documents share shards")


class Tokenizer:
    """An encoding, with its identity. Immutable; cheap to keep, a fraction of a second to make and to pickle.

    `hash` is the BLAKE3-128 (hex) of all that decides ids: equal hashes encode alike. Ids lie below
    `vocab_size`; `end` is never made from text. `unknown_id` stands for what the vocabulary has no token for,
    None where there is none. `why_slow` is why the tokenizers library encodes and not tiktoken, empty where
    tiktoken does."""

    def __init__(self, source: Vocabulary | TokenizerJson) -> None:
        self.name = source.name
        self.end = source.end
        self._source = source
        self._encoder: RankEncoder | LibraryEncoder
        if isinstance(source, TokenizerJson):
            self.vocab_size, self.unknown_id, self.why_slow = (
                source.vocab_size,
                source.unknown_id,
                source.why_not,
            )
            ranks = source.ranks if source.is_plain else None
            self._encoder = LibraryEncoder(source) if ranks is None else RankEncoder(ranks)
            self.hash = _identity_of_file(source) if ranks is None else _identity(ranks)
        else:
            self.vocab_size, self.unknown_id, self.why_slow = source.next_id, None, ""
            self._encoder = RankEncoder(source)
            self.hash = _identity(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._source,)

    @property
    def eot_id(self) -> int:
        """The id that ends documents."""
        return self.end.id

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape (num_tokens,), special tokens' names read as plain text.

        UnicodeEncodeError for a lone surrogate, which no UTF-8 text holds."""
        return self._encoder.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text; faster for many short ones."""
        return self._encoder.encode_batch(texts)

    def decode_bytes(self, tokens: Tokens | Sequence[int]) -> bytes:
        """The bytes that the ids stand for; ValueError names an id that the encoding does not have."""
        try:
            return self._encoder.decode_bytes(np.asarray(tokens))
        except KeyError as error:
            raise ValueError(
                f"{self.name} has no token {error.args[0]}: was this made by another tokenizer?"
            ) from error

    def decode(self, tokens: Tokens | Sequence[int]) -> str:
        """The text of the ids; `decode(encode(text)) == text` where the tokenizer `keeps` it. A cut character
        becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def keeps(self, text: str) -> bool:
        """Whether the ids of `text` are sure to give it back: those of a byte-level tokenizer do; one that
        normalises texts, or does not know each character, may not."""
        return self._encoder.keeps(text)

    def tokens(self) -> dict[int, bytes]:
        """Each id and what it stands for: bytes, the name of a special token, or the name of any token where the
        vocabulary is not of bytes."""
        return {**self._encoder.table, self.end.id: self.end.token.encode()}

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that no text makes."""
        source = self._source
        special = source.hidden if isinstance(source, TokenizerJson) else source.special
        return frozenset({*special.values(), self.end.id})

    @property
    def added_ids(self) -> frozenset[int]:
        """The ids of tokens that are matched in texts as they are, before anything is split or merged."""
        added = self._source.added if isinstance(self._source, TokenizerJson) else ()
        return frozenset(
            id_ for id_, token in self.tokens().items() if token.decode("utf-8", "replace") in added
        )

    def files(self) -> dict[str, bytes]:
        """The tokenizer as files to give along, by the names that other tools look for: the tokenizer.json that
        it was read from, or one that is written from its ranks, and tokenizer_config.json; of ranks a .tiktoken
        file too. Where the tokenizers library gives other ids by the written file, .tiktoken is all."""
        config = {"tokenizer_config.json": tokenizer_config(self.end.token)}
        if isinstance(self._source, TokenizerJson):
            return {"tokenizer.json": self._source.data, **config}
        ranks = {"tokenizer.tiktoken": self.rank_bytes()}
        written = write_tokenizer_json(self._source)
        # tiktoken takes the leftmost of equal pairs, the library the merge that comes first: of a vocabulary whose
        # tokens are made in several ways the ids may differ. The bundled ones are compared in the tests.
        if self._source.bundled is None:
            read = proven(read_tokenizer_json("tokenizer.json", written, self.end.token))
            if Tokenizer(read).hash != self.hash:
                return ranks
        return {"tokenizer.json": written, **config, **ranks}

    def rank_bytes(self) -> bytes:
        """The ranks as a .tiktoken file, of one that has ranks alone."""
        assert isinstance(self._source, Vocabulary), "a tokenizer.json is given along as it is"
        return format_ranks(self._source.ranks)

    def lines(self) -> list[str]:
        """What whoever runs it should know, a line each."""
        end = self.end
        lines = [
            f"Tokenizer {self.name} has {self.vocab_size:,} ids. Each document ends with {end.token} (id"
            f" {end.id}), {end.why}."
        ]
        if self.why_slow:
            lines.append(
                f"tiktoken cannot express {self.name}: {self.why_slow}. So the tokenizers library encodes: to"
                " shards like any others, more slowly."
            )
        return lines


def load_tokenizer(encoding: str, end_of_text: str | int | None = None) -> Tokenizer:
    """The tokenizer that `encoding` names (see TokenizeTable), whose documents end with the token
    `end_of_text`, or with the one of that id, which an index recorded; RecipeError says how to provide what
    is missing."""
    name = Path(encoding).name
    if encoding.endswith(".json"):
        return Tokenizer(proven(read_tokenizer_json(name, read_tokenizer_file(encoding), end_of_text)))
    if encoding.endswith(".model"):
        raise RecipeError(
            f"tokenize.encoding = {encoding!r}: SentencePiece's own files are not read. Give the"
            f" tokenizer.json that"
            ' lies beside it, or make one of it: python -c "from transformers import AutoTokenizer;'
            " AutoTokenizer.from_pretrained('FOLDER').save_pretrained('TO')\" (with sentencepiece installed)"
            " writes TO/tokenizer.json"
        )
    return Tokenizer(load_vocabulary(encoding, end_of_text))


def is_at_hand(encoding: str) -> bool:
    """Whether the tokenizer that `encoding` names is to be had wherever the same libraries and files are: it
    is such a file, or its ranks come with a library."""
    return encoding.endswith(TOKENIZER_FILES) or encoding in BUNDLED


def load_recorded(encoding: str, *, hash_: str, eot_id: int) -> Tokenizer | None:
    """The tokenizer that `encoding` names, if it is the one that an index recorded; None if it is another."""
    try:
        tokenizer = load_tokenizer(encoding, eot_id)
    except OtherEndError:
        return None
    return tokenizer if tokenizer.hash == hash_ else None


def splitter() -> PreTokenizers:
    """How `train_bpe` splits, in the tokenizers library's terms."""
    return PreTokenizers(
        [Split(Regex(_TRAINING_PATTERN), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def train_bpe(texts: Iterable[str], vocab: int) -> bytes:
    """A byte-level BPE of `vocab` ids, end-of-text included, learnt from `texts`: the bytes of a .tiktoken
    file.

    Split as cl100k_base splits. The same texts in any order give the same bytes. RecipeError if `vocab` is
    below 257 or the texts are too few for so many merges."""
    if vocab < 257:
        raise RecipeError(f"vocab = {vocab}: expected at least 257 (256 bytes and end-of-text)")
    tokenizer = HfTokenizer(BPE())
    tokenizer.pre_tokenizer = splitter()
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
    bundled = vocabulary.bundled
    ranks = format_ranks(vocabulary.ranks) if bundled is None else bundled_ranks(bundled)[1]
    parts = (vocabulary.pattern.encode(), ranks, special, b"%d" % vocabulary.end.id)
    return content_hash(length_prefixed(*parts)).hex()


def _identity_of_file(file: TokenizerJson) -> str:
    return content_hash(length_prefixed(b"tokenizer.json", identity_of(file), b"%d" % file.end.id)).hex()
