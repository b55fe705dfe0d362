"""A tokenizer.json's ids as the `tokenizers` library makes them, by tiktoken where that is proven to give the
same."""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from lineage.recipe import RecipeError
from stages.tokens.rank_encoder import RankEncoder, Tokens, checked
from stages.tokens.tokenizer_json import MARK, TokenizerJson, hide
from stages.tokens.vocabulary import Vocabulary, byte_level_alphabet

_PARALLELISM: Final = "TOKENIZERS_PARALLELISM"


class LibraryEncoder:
    """The ids of a tokenizer.json. Immutable; a second to make where the vocabulary is large.

    Texts are encoded one by one: an encoding holds strings and offsets of every token, 100 bytes each and
    more."""

    def __init__(self, file: TokenizerJson) -> None:
        self._file = file
        # Read at each call. Workers share the processors already; the ids are the same either way.
        os.environ.setdefault(_PARALLELISM, "false")
        self._library = HfTokenizer.from_str(hide(file.settings, file.hidden.keys()))
        self._library.encode_special_tokens = True
        self._unmade = set(file.hidden.values()) - {file.unknown_id}
        self._ranks = None if file.ranks is None else RankEncoder(file.ranks)
        in_order = sorted(
            file.added, key=len, reverse=True
        )  # of those that begin at one place the longest is matched
        self._added = re.compile(f"({'|'.join(map(re.escape, in_order))})") if in_order else None
        self._added_ids = {
            token: np.array([self._library.token_to_id(token)], dtype=np.uint32) for token in in_order
        }

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape (num_tokens,), special tokens' names read as plain text;
        UnicodeEncodeError for a lone surrogate."""
        if self._ranks is None or (
            self._file.normalizer == "nfc" and not unicodedata.is_normalized("NFC", text)
        ):
            return self.encode_by_library(text)
        if self._added is None:
            return self._ranks.encode(text)
        # As the library does: what lies between two added tokens is split and merged on its own.
        pieces = self._added.split(checked(text))
        by_rank = self._ranks.encode
        found = [
            self._added_ids[piece] if at % 2 else by_rank(piece) for at, piece in enumerate(pieces) if piece
        ]
        return np.concatenate(found) if found else np.empty(0, dtype=np.uint32)

    def encode_by_library(self, text: str) -> Tokens:
        """What `encode` gives, by the library whatever the text."""
        ids = self._library_ids(checked(text))
        if MARK in text and self._unmade.intersection(ids.tolist()):
            # The text writes a special token's hidden name: a noncharacter has no business in it.
            ids = self._library_ids(text.replace(MARK, "\ufffd"))
        return ids

    def _library_ids(self, text: str) -> Tokens:
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def decode_bytes(self, tokens: Tokens) -> bytes:
        """The bytes that the ids stand for; KeyError for an id that the tokenizer does not have."""
        table = self.table
        if self._file.byte_level:
            return b"".join([table[token] for token in tokens.tolist()])
        for token in set(tokens.tolist()):
            _ = table[token]
        beyond = self._file.end.id if self._original.id_to_token(self._file.end.id) is None else None
        ids = [token for token in tokens.tolist() if token != beyond]
        return self._original.decode(ids, skip_special_tokens=False).encode()

    def keeps(self, text: str) -> bool:
        """Whether the ids of the text are sure to give it back."""
        file = self._file
        if not file.byte_level or file.strips or file.normalizer == "other":
            return False
        return file.normalizer == "none" or unicodedata.is_normalized("NFC", text)

    @functools.cached_property
    def _original(self) -> HfTokenizer:
        return HfTokenizer.from_str(self._file.settings)

    @functools.cached_property
    def table(self) -> dict[int, bytes]:
        """The bytes of each token of a byte-level vocabulary; of another, the names of its tokens."""
        alphabet, added = byte_level_alphabet(), self._original.get_added_tokens_decoder()
        table = {self._file.end.id: self._file.end.token.encode()}
        for token, id_ in self._original.get_vocab(with_added_tokens=True).items():
            plain = id_ in added or not self._file.byte_level
            table[id_] = token.encode() if plain else bytes(alphabet[character] for character in token)
        return table


def proven(file: TokenizerJson) -> TokenizerJson:
    """The tokenizer, without its ranks where they give other ids than the library.

    Ranks merge whatever pair is a token, a merge list only its pairs: so both encode text made of every
    token. RecipeError where the library cannot encode every text."""
    encoder = LibraryEncoder(file)
    try:
        encoder.encode_by_library("a\ue000\U000f0000")
    except Exception as error:  # the library raises nothing narrower
        raise RecipeError(
            f"{file.name}: a text with a character that it does not know cannot be encoded ({error}): give a"
            " tokenizer with an unknown token or with byte fallback"
        ) from error
    if file.ranks is None:
        return file
    try:
        for text in _probes(file.ranks):
            if encoder.encode(text).tolist() != encoder.encode_by_library(text).tolist():
                return replace(file, ranks=None, why_not=f"as ranks it gives other ids, as for {text[:40]!r}")
    except ValueError as error:  # tiktoken's engine does not read the pattern
        return replace(file, ranks=None, why_not=f"tiktoken does not read its pattern ({error})")
    return file


def _probes(vocabulary: Vocabulary) -> Iterator[str]:
    """Every token as text, forwards, backwards and in strides (so most neighbours occur), in pieces of 500
    tokens."""
    pieces = [
        token.decode("utf-8", "ignore")
        for token in sorted(vocabulary.ranks, key=vocabulary.ranks.__getitem__)
    ]
    for order in (pieces, pieces[::-1], *(pieces[start::7] for start in range(7))):
        for first in range(0, len(order), 500):
            yield "".join(order[first : first + 500])
