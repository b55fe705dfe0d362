"""spaCy's blank tokenizers, asked for many white-space chunks at once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

ENDS_SENTENCE, IS_PUNCT = 1, 2
"""Kinds of token, as bits: spaCy's sentencizer ends a sentence with it; it is of Unicode category P throughout."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class SpacyTokens:
    """The tokenizer of `spacy.blank(language)`, on a vocabulary without lexical attributes: the same tokens, sooner."""

    def __init__(self, language: str) -> None:
        import spacy  # takes a second: only where words are split
        from spacy.attrs import LENGTH, SPACY
        from spacy.pipeline import Sentencizer
        from spacy.vocab import Vocab

        self._columns = (LENGTH, SPACY)
        self._vocab = Vocab(lex_attr_getters={})
        self._tokenizer = _copy(spacy.blank(language).tokenizer, self._vocab, with_rules=True)
        self.rules: frozenset[str] = frozenset(self._tokenizer.rules)
        self._sentence_ends = frozenset(Sentencizer.default_punct_chars)
        self._any_sentence_end = re.compile("[" + re.escape("".join(sorted(self._sentence_ends))) + "]")
        pairs = self._neighbours()
        self._lasts = {token: number for number, token in enumerate(sorted({last for last, _ in pairs}), 1)}
        self._firsts = {token: number for number, token in enumerate(sorted({first for _, first in pairs}), 1)}
        self.neighbours = np.zeros((len(self._lasts) + 1, len(self._firsts) + 1), bool)
        for last, first in pairs:
            self.neighbours[self._lasts[last], self._firsts[first]] = True

    def _neighbours(self) -> set[tuple[str, str]]:
        """The neighbours in what spaCy's matcher of special cases looks for: the tokens that a special case with an
        affix becomes when it is split as other text is (Tokenizer.add_special_case)."""
        asked = self._tokenizer
        plain = _copy(asked, self._vocab, with_rules=False)
        matched = [
            rule
            for rule in sorted(self.rules)
            if not asked.faster_heuristics
            or asked.find_prefix(rule) or asked.find_infix(rule) or asked.find_suffix(rule) or " " in rule
        ]  # fmt: skip
        return {pair for rule in matched for pair in pairwise(token.text for token in plain(rule))}

    def split(self, chunks: Sequence[str]) -> list[list[str]]:
        """The tokens of each chunk; a chunk holds no white space but single spaces.

        The chunks go to spaCy as lines of one text (a line feed is a token of its own and in no special case), in a
        memory zone, so that its vocabulary does not grow. In such a zone spaCy 3.8 fails on its second "IS_ALPHA" (a
        symbol with the id 1), so a look-alike stands in; so does U+FFFD for lone surrogates. Both keep the lengths."""
        text = _SURROGATE.sub("\ufffd", "\n".join(chunks)).replace("IS_ALPHA", "IS_ALPHB")
        with self._vocab.memory_zone():
            lengths, spaces = self._tokenizer(text).to_array(self._columns).astype(np.int64).T
        ends = np.cumsum(lengths + spaces) - spaces
        marks = list(zip((ends - lengths).tolist(), ends.tolist(), strict=True))
        split: list[list[str]] = []
        start, at = 0, 0
        for chunk in chunks:
            tokens = []
            while at < len(marks) and marks[at][0] < start + len(chunk):
                token = chunk[marks[at][0] - start : marks[at][1] - start]
                if not token.isspace():
                    tokens.append(token)
                at += 1
            split.append(tokens)
            start += len(chunk) + 1
            at += at < len(marks) and marks[at][0] < start
        return split

    def ends(self, tokens: Sequence[str]) -> tuple[int, int]:
        """Numbers of the first token (as the second of a pair) and of the last one (as the first); 0: in no pair."""
        return (self._firsts.get(tokens[0], 0), self._lasts.get(tokens[-1], 0)) if tokens else (0, 0)

    def kind(self, token: str) -> int:
        """The token's kinds, as bits."""
        is_punct = all(unicodedata.category(character).startswith("P") for character in token)
        return (ENDS_SENTENCE if token in self._sentence_ends else 0) | (IS_PUNCT if is_punct else 0)

    def has_sentence_end(self, text: str) -> bool:
        """Whether a character of `text` can end a sentence."""
        return self._any_sentence_end.search(text) is not None


def _copy(tokenizer: Any, vocab: Any, *, with_rules: bool) -> Any:
    from spacy.tokenizer import Tokenizer

    return Tokenizer(
        vocab, rules=tokenizer.rules if with_rules else {}, prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search, infix_finditer=tokenizer.infix_finditer,
        token_match=tokenizer.token_match, url_match=tokenizer.url_match,
        faster_heuristics=tokenizer.faster_heuristics,
    )  # fmt: skip
