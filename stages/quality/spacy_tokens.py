"""spaCy's blank tokenizers, run on many substrings between white space at once."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

ENDS_SENTENCE, IS_PUNCT = 1, 2
"""Kinds of token, as bits: spaCy's sentencizer ends a sentence with it; it is of Unicode category P throughout."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _import_without_torch() -> Any:
    """spaCy, which takes half a second: only where words are split.

    Its layers import torch wherever there is one: a second more, and 180 MB a process, for nothing that splits words.
    None in `sys.modules` is Python's own way to say that there is none; a later import of torch finds it."""
    if "torch" in sys.modules:
        import spacy

        return spacy
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import spacy
    finally:
        del sys.modules["torch"]
    return spacy


class SpacyTokens:
    """The tokenizer of `spacy.blank(language)`, on a vocabulary without lexical attributes: the same tokens, sooner."""

    def __init__(self, language: str) -> None:
        spacy = _import_without_torch()
        from spacy.attrs import LENGTH, SPACY
        from spacy.pipeline import Sentencizer
        from spacy.vocab import Vocab

        self._columns = (LENGTH, SPACY)
        self._vocab = Vocab(lex_attr_getters={})
        self._tokenizer = _copy(spacy.blank(language).tokenizer, self._vocab, with_rules=True)
        self.rules: frozenset[str] = frozenset(self._tokenizer.rules)
        self._sentence_ends = frozenset(Sentencizer.default_punct_chars)
        self._any_sentence_end = re.compile("[" + re.escape("".join(sorted(self._sentence_ends))) + "]")
        patterns = self._patterns()
        self._pairs = {pair for pattern in patterns.values() for pair in pairwise(pattern)}
        self._rights = frozenset(right for _, right in self._pairs)
        self._lefts = frozenset(left for left, _ in self._pairs)
        self._openings = _by_edge((rule, found[0], rule[0]) for rule, found in patterns.items())
        self._closings = _by_edge((rule, found[-1], rule[-1]) for rule, found in patterns.items())
        self._first_sets: dict[frozenset[str], int] = {frozenset(): 0}
        self._last_sets: dict[frozenset[str], int] = {frozenset(): 0}
        self.neighbours = np.zeros((1, 1), np.uint8)

    def _patterns(self) -> dict[str, list[str]]:
        """What spaCy's matcher of special cases looks for, by special case: the tokens that one with an affix becomes
        when it is split as other text is (Tokenizer.add_special_case)."""
        asked = self._tokenizer
        plain = _copy(asked, self._vocab, with_rules=False)
        matched = [
            rule
            for rule in sorted(self.rules)
            if not asked.faster_heuristics
            or asked.find_prefix(rule)
            or asked.find_infix(rule)
            or asked.find_suffix(rule)
            or " " in rule
        ]
        return {rule: [token.text for token in plain(rule)] for rule in matched}

    def split(self, substrings: Sequence[str]) -> list[list[str]]:
        """The tokens of each substring; a substring holds no white space but single spaces.

        The substrings go to spaCy as lines of one text (a line feed is a token of its own and in no special case), in a
        memory zone, so that its vocabulary does not grow. In such a zone spaCy 3.8 fails on its second "IS_ALPHA" (a
        symbol with the id 1), so a look-alike stands in; so does U+FFFD for lone surrogates. Both keep the lengths."""
        text = _SURROGATE.sub("\ufffd", "\n".join(substrings)).replace("IS_ALPHA", "IS_ALPHB")
        with self._vocab.memory_zone():
            lengths, spaces = self._tokenizer(text).to_array(self._columns).astype(np.int64).T
        ends = np.cumsum(lengths + spaces) - spaces
        marks = list(zip((ends - lengths).tolist(), ends.tolist(), strict=True))
        split: list[list[str]] = []
        start, at = 0, 0
        for substring in substrings:
            tokens = []
            while at < len(marks) and marks[at][0] < start + len(substring):
                token = substring[marks[at][0] - start : marks[at][1] - start]
                if not token.isspace():
                    tokens.append(token)
                at += 1
            split.append(tokens)
            start += len(substring) + 1
            at += at < len(marks) and marks[at][0] < start
        return split

    def ends(self, substring: str, tokens: Sequence[str]) -> tuple[int, int]:
        """Column and row of the substring in `neighbours`: for the token it may begin with, as the right of a pair, and
        for the one it may end with, as the left.

        The matcher sees tokens as they are before special cases replace them; the first of those is the first token of
        the substring, or of a special case that it starts with. So each end is a set of tokens, mostly empty."""
        first = {token for token, rules in self._openings.get(substring[0], ()) if substring.startswith(rules)}
        last = {token for token, rules in self._closings.get(substring[-1], ()) if substring.endswith(rules)}
        first.update(tokens[:1])
        last.update(tokens[-1:])
        rights, lefts = self._rights & first, self._lefts & last
        return (self._first_number(rights), self._last_number(lefts)) if rights or lefts else (0, 0)

    def _first_number(self, rights: frozenset[str]) -> int:
        """The number of a set of first tokens; a new one gets its column of `neighbours`."""
        if rights not in self._first_sets:
            column = [self._touch(lefts, rights) for lefts in self._last_sets]
            self.neighbours = np.column_stack([self.neighbours, column])
            self._first_sets[rights] = len(self._first_sets)
        return self._first_sets[rights]

    def _last_number(self, lefts: frozenset[str]) -> int:
        """The number of a set of last tokens; a new one gets its row of `neighbours`."""
        if lefts not in self._last_sets:
            row = [self._touch(lefts, rights) for rights in self._first_sets]
            self.neighbours = np.vstack([self.neighbours, row])
            self._last_sets[lefts] = len(self._last_sets)
        return self._last_sets[lefts]

    def _touch(self, lefts: frozenset[str], rights: frozenset[str]) -> bool:
        return any((left, right) in self._pairs for left in lefts for right in rights)

    def kind(self, token: str) -> int:
        """The token's kinds, as bits."""
        is_punct = all(unicodedata.category(character).startswith("P") for character in token)
        return (ENDS_SENTENCE if token in self._sentence_ends else 0) | (IS_PUNCT if is_punct else 0)

    def has_sentence_end(self, text: str) -> bool:
        """Whether a character of `text` can end a sentence."""
        return self._any_sentence_end.search(text) is not None


def _by_edge(rules: Iterable[tuple[str, str, str]]) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """For (special case, its token at an edge, its character there): by character, the tokens with their cases."""
    found: dict[str, dict[str, list[str]]] = {}
    for rule, token, character in rules:
        found.setdefault(character, {}).setdefault(token, []).append(rule)
    return {edge: [(token, tuple(cases)) for token, cases in tokens.items()] for edge, tokens in found.items()}


def _copy(tokenizer: Any, vocab: Any, *, with_rules: bool) -> Any:
    from spacy.tokenizer import Tokenizer

    return Tokenizer(
        vocab,
        rules=tokenizer.rules if with_rules else {},
        prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search,
        infix_finditer=tokenizer.infix_finditer,
        token_match=tokenizer.token_match,
        url_match=tokenizer.url_match,
        faster_heuristics=tokenizer.faster_heuristics,
    )
