"""The tokens of spaCy's blank tokenizers, for many substrings between white space at once.

`affix_loop.pyx` tells what most substrings become from the characters at their edges; spaCy itself is asked
of long ones, and of those joined across a space."""

from __future__ import annotations

import importlib
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from stages.quality.affix_loop import AffixLoop
from stages.quality.affixes import Affixes, characters_needed
from stages.surrogates import without_surrogates

LONGEST: Final = 64
"""Characters of a substring that is told from its edges."""
ENDS_SENTENCE, IS_PUNCT = 1, 2
"""Kinds of token, as bits: spaCy's sentencizer ends a sentence with it; it is of Unicode category P
throughout."""


def _import_spacy() -> None:
    """Import spaCy, which takes half a second: only where words are split.

    Its layers import torch wherever there is one: a second more, and 180 MB a process, for nothing that
    splits words. None in `sys.modules` is Python's own way to say that there is none; a later import of torch
    finds it. And it imports its command line with the libraries of that, a fifth of what is left, for one
    function of its own top. That function stands there still, and imports them when it is called."""
    if "spacy" in sys.modules:
        return
    absent = {} if "torch" in sys.modules else {"torch": None}
    command_line = {name: ModuleType(name) for name in ("spacy.cli", "spacy.cli.info")}
    command_line["spacy.cli.info"].info = _info  # type: ignore[attr-defined]
    sys.modules.update({**absent, **command_line})  # type: ignore[dict-item]
    try:
        import spacy  # noqa: F401
    finally:
        for name in (*absent, *command_line):
            del sys.modules[name]


def _info(*given: Any, **options: Any) -> Any:
    return importlib.import_module("spacy.cli.info").info(*given, **options)


class SpacyTokens:
    """The tokenizer of `spacy.blank(language)`, on a vocabulary without lexical attributes: the same tokens,
    sooner."""

    def __init__(self, language: str) -> None:
        _import_spacy()
        from spacy.attrs import LENGTH, ORTH, SPACY
        from spacy.pipeline import Sentencizer
        from spacy.vocab import Vocab

        self._columns, self._orth = (LENGTH, SPACY), ORTH
        self._vocab = Vocab(lex_attr_getters={})
        self._tokenizer = _blank_tokenizer(language, self._vocab)
        self.sentence_ends = frozenset(Sentencizer.default_punct_chars)
        self._any_sentence_end = re.compile("[" + re.escape("".join(sorted(self.sentence_ends))) + "]")
        self._patterns = self._matched()
        self._lengths = sorted({len(rule) for rule in self._patterns})
        self._pairs = {pair for pattern in self._patterns.values() for pair in pairwise(pattern)}
        self._rights = frozenset(right for _, right in self._pairs)
        self._lefts = frozenset(left for left, _ in self._pairs)
        self._first_sets: dict[frozenset[str], int] = {frozenset(): 0}
        self._last_sets: dict[frozenset[str], int] = {frozenset(): 0}
        self.neighbours = np.zeros((1, 1), np.uint8)
        parts = (part[ORTH] for parts in self._tokenizer.rules.values() for part in parts)
        # Only a special case, as Spanish "EE. UU.", makes one token of what white space parts.
        self.runs_per_token = max((len(part.split()) for part in parts), default=1)
        self._loop = self._affix_loop()

    def _affix_loop(self) -> AffixLoop:
        """The tokenizer's expressions and special cases as tables."""
        asked = self._tokenizer
        prefix, suffix, infix, url = (
            _pattern_of(search)
            for search in (asked.prefix_search, asked.suffix_search, asked.infix_finditer, asked.url_match)
        )
        return AffixLoop(
            asked,
            Affixes(prefix=prefix, suffix=suffix, infix=infix),
            {rule: [part[self._orth] for part in parts] for rule, parts in asked.rules.items()},
            self._patterns,
            LONGEST,
            "" if url is None else "".join(sorted(characters_needed(url))),
        )

    def _matched(self) -> dict[str, list[str]]:
        """What spaCy's matcher of special cases looks for, by special case: the tokens that one with an affix
        becomes when it is split as other text is (Tokenizer.add_special_case)."""
        asked = self._tokenizer
        plain = _without_rules(asked, self._vocab)
        matched = [
            rule
            for rule in sorted(asked.rules)
            if not asked.faster_heuristics
            or asked.find_prefix(rule)
            or asked.find_infix(rule)
            or asked.find_suffix(rule)
            or " " in rule
        ]
        return {rule: [token.text for token in plain(rule)] for rule in matched}

    def learn(self, substrings: list[str], add: Callable[[str, Sequence[str], int, int], None]) -> None:
        """Call `add` with each substring, its tokens, and its column and row in `neighbours`; a substring
        holds no white space but single spaces."""
        asked = self._loop.learn(substrings, add, self._column, self._row)
        for substring, tokens in zip(asked, self.split(asked), strict=True):
            add(substring, tokens, self._column(substring, tokens[0]), self._row(substring, tokens[-1]))

    def split(self, substrings: Sequence[str]) -> list[Sequence[str]]:
        """What spaCy itself makes of each substring.

        The substrings go to spaCy as lines of one text (a line feed is a token of its own and in no special
        case), in a memory zone, so that its vocabulary does not grow. In such a zone spaCy 3.8 fails on its
        second "IS_ALPHA" (a symbol with the id 1), so a look-alike stands in; so does U+FFFD for lone
        surrogates. Both keep the lengths."""
        if not substrings:
            return []
        text = without_surrogates("\n".join(substrings)).replace("IS_ALPHA", "IS_ALPHB")
        with self._vocab.memory_zone():
            lengths, spaces = self._tokenizer(text).to_array(self._columns).astype(np.int64).T
        ends = np.cumsum(lengths + spaces) - spaces
        marks = list(zip((ends - lengths).tolist(), ends.tolist(), strict=True))
        split: list[Sequence[str]] = []
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

    # The matcher sees tokens as they are before special cases replace them: the first of those is the first
    # token of the substring, or of a special case that it starts with. So each end is a set of tokens, mostly
    # empty.

    def _column(self, substring: str, first: str) -> int:
        """The column in `neighbours` of a substring whose first token is `first`: for what it may begin with,
        as the right of a pair."""
        cases = {self._patterns[rule][0] for rule in self._cases(substring, 1)}
        return self._first_number(self._rights & {first, *cases})

    def _row(self, substring: str, last: str) -> int:
        """The row in `neighbours` of a substring whose last token is `last`: for what it may end with, as the
        left."""
        cases = {self._patterns[rule][-1] for rule in self._cases(substring, -1)}
        return self._last_number(self._lefts & {last, *cases})

    def _cases(self, substring: str, step: int) -> list[str]:
        """The special cases that a substring begins with (`step` 1), or ends with (-1)."""
        lengths = self._lengths[: bisect_right(self._lengths, len(substring))]
        edges = (substring[:length] if step > 0 else substring[-length:] for length in lengths)
        return [edge for edge in edges if edge in self._patterns]

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

    def has_sentence_end(self, text: str) -> bool:
        """Whether a character of `text` can end a sentence."""
        return self._any_sentence_end.search(text) is not None


def _pattern_of(search: Any) -> re.Pattern[str] | None:
    """The expression of which `search` is a method."""
    pattern = getattr(search, "__self__", None)
    return pattern if isinstance(pattern, re.Pattern) else None


def _blank_tokenizer(language: str, vocab: Any) -> Any:
    """The tokenizer of `spacy.blank(language)` on another vocabulary, without the pipeline around it, which
    takes twice as long as the tokenizer."""
    from spacy.language import create_tokenizer
    from spacy.util import get_lang_class

    return create_tokenizer()(SimpleNamespace(Defaults=get_lang_class(language).Defaults, vocab=vocab))


def _without_rules(tokenizer: Any, vocab: Any) -> Any:
    from spacy.tokenizer import Tokenizer

    return Tokenizer(
        vocab,
        rules={},
        prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search,
        infix_finditer=tokenizer.infix_finditer,
        token_match=tokenizer.token_match,
        url_match=tokenizer.url_match,
        faster_heuristics=tokenizer.faster_heuristics,
    )
