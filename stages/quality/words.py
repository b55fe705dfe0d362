"""Words as spaCy's blank tokenizers split them, from a bounded memo of what each substring between white
space becomes.

spaCy splits a text at white space and then each substring on its own: what a substring becomes depends on its
characters alone. So each distinct substring is split once and remembered as numbers (`memo.pyx`: lengths,
kinds, sums over its tokens), and a document is a sum over them. One thing reaches across substrings: spaCy
looks for its special cases (such as ":)") over neighbouring tokens, and a match across a single space can
hide one inside a substring. Substrings whose touching tokens are neighbours in some special case are
therefore split together.

The memo changes no result: it only saves work, and it is emptied when it is full. Text without white space is
where spaCy's time grows with the square of the length, so the work that one text may cause there is bounded
(`WORK`): where its long substrings exceed it, they are cut every 64 characters, and special cases are not
looked for across substrings."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from stages.quality.characters import PUNCTUATION, TERMINAL_PUNCTUATION
from stages.quality.memo import Memo, join_touching, longest
from stages.quality.spacy_tokens import ENDS_SENTENCE, IS_PUNCT, SpacyTokens

MEMO_BYTES: Final = 16 * 2**20
"""What one language's memo weighs, about, before it is emptied: some 50,000 substrings. With four times as much, words
were counted at most 4% faster (27,000 pages of 11 languages), and a worker grew for hundreds of thousands of pages."""
WORK: Final = 20_000_000
"""Characters times marks, summed over a text's different substrings of over 64 characters: a second of
spaCy's time."""
MAX_STOP_WORDS: Final = 63
_SEGMENT: Final = 65_536
_SHORT: Final = 64

_NOT_ALPHANUMERIC: Final = re.compile(r"[\W_]")
_SENTENCE_ENDS: Final = re.compile("[" + re.escape("".join(sorted(TERMINAL_PUNCTUATION))) + "]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over a text's tokens. A *word* is a token with a character that is no punctuation; `word_chars`
    are the characters of words; an alphabetic token has a letter; `num_stop_words` counts distinct stop
    words."""

    num_tokens: int
    num_words: int
    word_chars: int
    num_alphabetic: int
    num_stop_words: int


Part = tuple[Memo, "array[int]"]
"""Substrings of a text, as their numbers in a memo."""


class Split:
    """One text split into words; `lengths` and `solid` are worked out when asked for."""

    __slots__ = ("_joined", "_part", "_splitter", "counts", "substrings")

    def __init__(
        self, splitter: Splitter, substrings: list[str], part: Part | None, counts: Counts, *, joined: bool
    ) -> None:
        """`part`: all of the substrings, if they were looked up together."""
        self._splitter = splitter
        self._joined = joined
        self.substrings = substrings
        self._part = part
        self.counts = counts

    def solid(self) -> str:
        """The tokens one after the other: the text without the white space between them. (A few special
        cases, as Spanish "EE. UU.", hold a space.)"""
        if not self._joined:
            return "".join(self.substrings)
        return "".join(
            self._splitter.solid(substring) if " " in substring else substring
            for substring in self.substrings
        )

    def lengths(self) -> array[int]:
        """Characters of every token; shape (num_tokens,)."""
        lengths = array("i")
        for memo, numbers in self.parts():
            lengths += memo.lengths(numbers)
        return lengths

    def parts(self) -> Iterable[Part]:
        """The substrings as numbers, segment by segment."""
        return self._splitter.parts_of(self.substrings) if self._part is None else (self._part,)


class Splitter:
    """Splits texts of one language into words; `language` None: every substring between white space is a
    word."""

    def __init__(
        self,
        language: str | None,
        stop_words: Sequence[str] = (),
        memo_bytes: int = MEMO_BYTES,
        work: int = WORK,
    ) -> None:
        if len(stop_words) > MAX_STOP_WORDS:
            raise ValueError(
                f"{len(stop_words)} stop words for {language}: expected at most {MAX_STOP_WORDS}"
            )
        self._stop_bits = {word: 1 << position for position, word in enumerate(dict.fromkeys(stop_words))}
        self._spacy = SpacyTokens(language) if language is not None else None
        self.runs_per_word: float = 1 if self._spacy is None else self._spacy.runs_per_token
        """Runs between white space that one word holds at most; each run lies in a word."""
        self._memo_bytes = memo_bytes
        self._work = work
        self._memo = Memo(self._stop_bits, self._bits_of)

    @property
    def memo_bytes_used(self) -> int:
        """What the memo weighs, about."""
        return self._memo.num_bytes

    def forget(self) -> None:
        """Empties the memo, which changes no result."""
        self._memo = Memo(self._stop_bits, self._bits_of)

    def split(self, text: str) -> Split:
        """The words of `text`."""
        substrings = text.split()
        whole = longest(substrings) <= _SHORT or self._is_affordable(substrings)
        if not whole:
            substrings = [piece for substring in substrings for piece in _cut(substring)]
        split, touching = self._split(substrings)
        if whole and touching:
            joined = join_touching(text, substrings, touching)
            if len(joined) < len(substrings):
                split, _ = self._split(joined, joined=True)
        return split

    def _split(self, substrings: list[str], *, joined: bool = False) -> tuple[Split, list[int]]:
        """The words of substrings, and the positions k for which the last token of substring k - 1 and the
        first of substring k are neighbours in a special case."""
        sums: list[tuple[int, int, int, int, int]] = []
        touching: list[int] = []
        part: Part | None = None
        start = last = 0
        for part in self.parts_of(substrings):
            memo, numbers = part
            sums.append(memo.sums(numbers))
            if self._spacy is not None:
                found, last = memo.touching(numbers, self._spacy.neighbours, last)
                touching += [start + place for place in found]
            start += len(numbers)
        return Split(
            self, substrings, part if len(sums) == 1 else None, _counts(sums), joined=joined
        ), touching

    def solid(self, substring: str) -> str:
        """The tokens of substrings that were joined, one after the other."""
        assert self._spacy is not None
        (tokens,) = self._spacy.split([substring])
        return "".join(tokens)

    def parts_of(self, substrings: list[str]) -> Iterator[Part]:
        """One text's substrings as numbers in the memo, segment by segment: between two the memo may begin
        anew."""
        for start in range(0, len(substrings), _SEGMENT):
            part = substrings[start : start + _SEGMENT] if len(substrings) > _SEGMENT else substrings
            if self._memo.num_bytes > self._memo_bytes:
                self._memo = Memo(self._stop_bits, self._bits_of)
            yield self._memo, self._memo.numbers(part, self._learn)

    def num_sentences(self, line: str) -> int:
        """Sentences of `line` as spaCy's sentencizer counts them after its tokenizer; at least 1.

        A sentence starts at the first token after a sentence-ending one that is neither punctuation nor ends
        a sentence itself; white space other than one space is such a token. Where words are split at white
        space, runs of sentence-ending characters are counted."""
        if self._spacy is None:
            return max(1, len(_SENTENCE_ENDS.findall(line)))
        if not self._spacy.has_sentence_end(line):
            return 1
        split = self.split(line)
        count, seen, position, substrings = 1, False, 0, iter(split.substrings)
        for memo, numbers in split.parts():
            for number, substring in zip(numbers, islice(substrings, len(numbers)), strict=True):
                found = line.index(substring, position)
                if seen and line[position:found] not in ("", " "):
                    count, seen = count + 1, False
                position = found + len(substring)
                for kind in memo.kinds(number):
                    if seen and not kind:
                        count, seen = count + 1, False
                    elif kind & ENDS_SENTENCE:
                        seen = True
        return count + (seen and line[position:] not in ("", " "))

    def _learn(self, substrings: list[str]) -> None:
        """Remembers what new substrings become."""
        spacy, add = self._spacy, self._memo.add
        if spacy is None:
            for substring in substrings:
                add(substring, (substring,), 0, 0)
            return
        spacy.learn(substrings, add)

    def _is_affordable(self, substrings: Sequence[str]) -> bool:
        """Whether the long ones of a text's substrings may be split whole."""
        if self._spacy is None:
            return True
        long = {substring for substring in substrings if len(substring) > _SHORT and not substring.isalpha()}
        return (
            sum(len(substring) * (1 + len(_NOT_ALPHANUMERIC.findall(substring))) for substring in long)
            <= self._work
        )

    def _bits_of(self, char: str) -> int:
        """What is counted of a character, as `Memo` asks it; words split at white space have no kinds."""
        bits = 4 * (char in PUNCTUATION) | 8 * char.isalpha()
        if self._spacy is None:
            return bits
        is_punct = unicodedata.category(char).startswith("P")
        return bits | ENDS_SENTENCE * (char in self._spacy.sentence_ends) | IS_PUNCT * is_punct


def _cut(substring: str) -> list[str]:
    if len(substring) <= _SHORT or substring.isalpha():
        return [substring]
    return [substring[start : start + _SHORT] for start in range(0, len(substring), _SHORT)]


def _counts(sums: Sequence[tuple[int, int, int, int, int]]) -> Counts:
    tokens, words, chars, alphabetic = (sum(part[column] for part in sums) for column in range(4))
    stop = 0
    for part in sums:
        stop |= part[4]
    return Counts(
        num_tokens=tokens,
        num_words=words,
        word_chars=chars,
        num_alphabetic=alphabetic,
        num_stop_words=stop.bit_count(),
    )
