"""Words as spaCy's blank tokenizers split them, from a bounded memo of what each white-space chunk becomes.

spaCy splits a text at white space and then each chunk on its own: what a chunk becomes depends on its characters alone.
So each distinct chunk is split once and remembered as numbers (lengths, hashes, kinds and sums over its tokens), and a
document is a gather over them. One thing reaches across chunks: spaCy looks for its special cases (such as ":)") over
neighbouring tokens, and a match across a single space can hide one inside a chunk. Chunks whose touching tokens are
neighbours in some special case are therefore split together.

The memo changes no result: it only saves work, and it is emptied when it is full. Text without white space is where
spaCy's time grows with the square of the length, so the work that one text may cause there is bounded (`WORK`): where
its long chunks exceed it, they are cut every 64 characters, and special cases are not looked for across chunks.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.quality.characters import PUNCTUATION, TERMINAL_PUNCTUATION
from stages.quality.spacy_tokens import ENDS_SENTENCE, SpacyTokens
from stages.quality.tokens import Counts, Ints, Tokens, hash_of

Facts = npt.NDArray[np.int32]

MEMO_BYTES: Final = 64 * 2**20
WORK: Final = 20_000_000
"""Sum over a text's different chunks of more than 64 characters of characters times marks: a second of spaCy's time."""
MAX_STOP_WORDS: Final = 31
_SEGMENT: Final = 65_536
_SHORT: Final = 64
_ROW_BYTES: Final = 250
_TOKEN_BYTES: Final = 17
_COLUMNS: Final = 8
_START, _TOKENS, _WORDS, _WORD_CHARS, _ALPHABETIC, _STOP, _FIRST, _LAST = range(_COLUMNS)

_WORD_AND_MARK: Final = re.compile(r"[A-Za-z]*[a-z]{2}[,.;:!?]")
_NOT_ALPHANUMERIC: Final = re.compile(r"[\W_]")
_CHUNK: Final = re.compile(r"\S+")
_SENTENCE_ENDS: Final = re.compile("[" + re.escape("".join(sorted(TERMINAL_PUNCTUATION))) + "]+")


class Split:
    """One text split into words; `tokens` is worked out when asked for."""

    __slots__ = ("_generation", "_joined", "_rows", "_splitter", "chunks", "counts")

    def __init__(
        self, splitter: Splitter, chunks: Sequence[str], rows: Ints | None, counts: Counts, *, joined: bool
    ) -> None:
        self._splitter = splitter
        self._joined = joined
        self.chunks = chunks
        self._rows = rows
        self._generation = splitter.generation
        self.counts = counts

    def solid(self) -> str:
        """The tokens one after the other: the text without the white space between them. (A few special cases, as
        Spanish "EE. UU.", hold a space.)"""
        if not self._joined:
            return "".join(self.chunks)
        return "".join(self._splitter.solid(chunk) if " " in chunk else chunk for chunk in self.chunks)

    def tokens(self) -> Tokens:
        """Length and hash of every token."""
        if self._rows is not None and self._generation == self._splitter.generation:
            parts = [self._splitter.gather(self._rows)]
        else:
            parts = [self._splitter.gather(rows) for rows in self._splitter.rows_of(self.chunks)]
        if len(parts) == 1:
            return parts[0]
        return Tokens(
            lengths=np.concatenate([part.lengths for part in parts] or [np.zeros(0, np.int64)]),
            hashes=np.concatenate([part.hashes for part in parts] or [np.zeros(0, np.uint64)]),
        )


class Splitter:
    """Splits texts of one language into words; `language` None: every white-space chunk is a word."""

    def __init__(
        self, language: str | None, stop_words: Sequence[str] = (), memo_bytes: int = MEMO_BYTES, work: int = WORK
    ) -> None:
        if len(stop_words) > MAX_STOP_WORDS:
            raise ValueError(f"{len(stop_words)} stop words for {language}: expected at most {MAX_STOP_WORDS}")
        self._stop_bits = {word: 1 << position for position, word in enumerate(dict.fromkeys(stop_words))}
        self._spacy = SpacyTokens(language) if language is not None else None
        self._memo_bytes = memo_bytes
        self._work = work
        self.generation = 0
        self._marks: dict[str, tuple[int, bool, bool, int]] = {}
        self._memo: dict[str, int] = {}
        self._bytes = 0
        self._table, self._lengths, self._hashes, self._kinds = array("i"), array("q"), array("Q"), array("B")

    @property
    def memo_bytes_used(self) -> int:
        """What the memo weighs, about."""
        return self._bytes

    def split(self, text: str) -> Split:
        """The words of `text`."""
        chunks: Sequence[str] = text.split()
        whole = len(max(chunks, key=len, default="")) <= _SHORT or self._is_affordable(chunks)
        if not whole:
            chunks = [piece for chunk in chunks for piece in _cut(chunk)]
        parts, touching, previous, start = [], [], 0, 0
        rows: Ints | None = None
        for rows in self.rows_of(chunks):
            facts = self._facts(rows)
            parts.append(_sums(facts))
            if self._spacy is not None and whole:
                touching += (self._touching(facts, previous) + (start - 1)).tolist()
                previous, start = int(facts[-1, _LAST]), start + len(rows)
        joined = _joined(text, touching) if touching else None
        if joined is not None:
            parts = []
            for rows in self.rows_of(joined):
                parts.append(_sums(self._facts(rows)))
        rows = rows if len(parts) == 1 else None
        return Split(self, joined or chunks, rows, _counts(parts), joined=joined is not None)

    def solid(self, chunk: str) -> str:
        """The tokens of chunks that were joined, one after the other."""
        assert self._spacy is not None
        (tokens,) = self._spacy.split([chunk])
        return "".join(tokens)

    def rows_of(self, chunks: Sequence[str]) -> Iterator[Ints]:
        """The memo's rows of one text's `chunks`, segment by segment; each is valid until the next is asked for."""
        for start in range(0, len(chunks), _SEGMENT):
            part = chunks[start : start + _SEGMENT] if len(chunks) > _SEGMENT else chunks
            if self._bytes > self._memo_bytes:
                self._clear()
            rows = list(map(self._memo.get, part))
            if None in rows:
                new = [position for position, row in enumerate(rows) if row is None]
                self._learn(dict.fromkeys(part[position] for position in new))
                for position in new:
                    rows[position] = self._memo[part[position]]
            yield np.array(rows, np.int64)

    def gather(self, rows: Ints) -> Tokens:
        """The tokens of chunks given by their rows."""
        facts = self._facts(rows)
        counts = facts[:, _TOKENS].astype(np.int64)
        ends = np.cumsum(counts)
        where = np.repeat(facts[:, _START] - ends + counts, counts) + np.arange(ends[-1])
        return Tokens(
            lengths=np.frombuffer(self._lengths, np.int64)[where],
            hashes=np.frombuffer(self._hashes, np.uint64)[where],
        )

    def num_sentences(self, line: str) -> int:
        """Sentences of `line` as spaCy's sentencizer counts them after its tokenizer; at least 1.

        A sentence starts at the first token after a sentence-ending one that is neither punctuation nor ends a
        sentence itself; white space other than one space is such a token. Where words are split at white space, runs
        of sentence-ending characters are counted."""
        if self._spacy is None:
            return max(1, len(_SENTENCE_ENDS.findall(line)))
        if not self._spacy.has_sentence_end(line):
            return 1
        chunks = self.split(line).chunks
        count, seen, position, at = 1, False, 0, 0
        for rows in self.rows_of(chunks):
            for row in rows.tolist():
                found = line.index(chunks[at], position)
                if seen and line[position:found] not in ("", " "):
                    count, seen = count + 1, False
                position, at = found + len(chunks[at]), at + 1
                start, num = self._table[row * _COLUMNS + _START], self._table[row * _COLUMNS + _TOKENS]
                for kind in self._kinds[start : start + num]:
                    if seen and not kind:
                        count, seen = count + 1, False
                    elif kind & ENDS_SENTENCE:
                        seen = True
        return count + (seen and line[position:] not in ("", " "))

    def _clear(self) -> None:
        self.generation += 1
        self._memo, self._bytes = {}, 0
        self._table, self._lengths, self._hashes, self._kinds = array("i"), array("q"), array("Q"), array("B")

    def _facts(self, rows: Ints) -> Facts:
        facts: Facts = np.frombuffer(self._table, np.int32).reshape(-1, _COLUMNS)[rows]
        return facts

    def _touching(self, facts: Facts, previous: int) -> Ints:
        """Positions k for which the last token of chunk k-1 and the first of chunk k are neighbours in a special case;
        `previous` is the last token of the chunk before position 0."""
        assert self._spacy is not None
        lasts = np.concatenate([[previous], facts[:-1, _LAST]])
        return np.flatnonzero(self._spacy.neighbours[lasts, facts[:, _FIRST]])

    def _learn(self, chunks: Iterable[str]) -> None:
        """Remembers what new chunks become."""
        if self._spacy is None:
            for chunk in chunks:
                self._remember(chunk, [chunk])
            return
        rules = self._spacy.rules
        hard: list[str] = []
        for chunk in chunks:
            if chunk.isalpha() and chunk not in rules:
                self._remember_word(chunk)
            elif _WORD_AND_MARK.fullmatch(chunk) and chunk not in rules and chunk[:-1] not in rules:
                self._remember(chunk, [chunk[:-1], chunk[-1]])
            else:
                hard.append(chunk)
        for chunk, tokens in zip(hard, self._spacy.split(hard), strict=True):
            self._remember(chunk, tokens)

    def _is_affordable(self, chunks: Sequence[str]) -> bool:
        """Whether the long ones of a text's chunks may be split whole."""
        if self._spacy is None:
            return True
        long = {chunk for chunk in chunks if len(chunk) > _SHORT and not chunk.isalpha()}
        return sum(len(chunk) * (1 + len(_NOT_ALPHANUMERIC.findall(chunk))) for chunk in long) <= self._work

    def _remember_word(self, word: str) -> None:
        """`_remember` for a chunk of letters alone, which is one token: most of what is new."""
        start, length = len(self._lengths), len(word)
        self._lengths.append(length)
        self._hashes.append(hash_of(word))
        self._kinds.append(0)
        first, last = (0, 0) if self._spacy is None else self._spacy.ends(word, (word,))
        self._memo[word] = len(self._table) // _COLUMNS
        self._table.extend((start, 1, 1, length, 1, self._stop_bits.get(word, 0), first, last))
        self._bytes += _ROW_BYTES + _TOKEN_BYTES + length

    def _remember(self, chunk: str, tokens: Sequence[str]) -> None:
        num_words = word_chars = num_alphabetic = stop = 0
        start, spacy = len(self._lengths), self._spacy
        for token in tokens:
            length = len(token)
            if token.isalpha():
                kind, is_word, has_letter, code = 0, True, True, hash_of(token)
            else:
                kind, is_word, has_letter, code = self._marks.get(token) or self._odd_token(token)
            self._lengths.append(length)
            self._hashes.append(code)
            self._kinds.append(kind)
            if is_word:
                num_words += 1
                word_chars += length
            num_alphabetic += has_letter
            if token in self._stop_bits:
                stop |= self._stop_bits[token]
        first, last = (0, 0) if spacy is None else spacy.ends(chunk, tokens)
        self._memo[chunk] = len(self._table) // _COLUMNS
        self._table.extend((start, len(tokens), num_words, word_chars, num_alphabetic, stop, first, last))
        self._bytes += _ROW_BYTES + len(chunk) + _TOKEN_BYTES * len(tokens)

    def _odd_token(self, token: str) -> tuple[int, bool, bool, int]:
        """Kind of a token that is not letters alone, whether it is a word, has a letter, and its hash; single
        characters are remembered."""
        kind = 0 if self._spacy is None else self._spacy.kind(token)
        facts = kind, not PUNCTUATION.issuperset(token), any(map(str.isalpha, token)), hash_of(token)
        if len(token) == 1:
            self._marks[token] = facts
        return facts


def _joined(text: str, touching: Sequence[int]) -> list[str] | None:
    """The chunks of `text`, joined where chunk k and k+1 stand one space apart, for each k of `touching`; None where
    none does."""
    spans = [match.span() for match in _CHUNK.finditer(text)]
    glued = {k for k in touching if text[spans[k][1] : spans[k + 1][0]] == " "}
    if not glued:
        return None
    joined, begin = [], 0
    for k, (_, end) in enumerate(spans):
        if k not in glued:
            joined.append(text[spans[begin][0] : end])
            begin = k + 1
    return joined


def _cut(chunk: str) -> list[str]:
    if len(chunk) <= _SHORT or chunk.isalpha():
        return [chunk]
    return [chunk[start : start + _SHORT] for start in range(0, len(chunk), _SHORT)]


def _sums(facts: Facts) -> tuple[int, ...]:
    """Sums of the counting columns, and the union of the stop words as bits."""
    sums = facts[:, _TOKENS : _ALPHABETIC + 1].sum(axis=0).tolist()
    return (*sums, int(np.bitwise_or.reduce(facts[:, _STOP])))


def _counts(parts: Sequence[tuple[int, ...]]) -> Counts:
    tokens, words, chars, alphabetic = (sum(part[column] for part in parts) for column in range(4))
    stop = 0
    for part in parts:
        stop |= part[4]
    return Counts(
        num_tokens=tokens, num_words=words, word_chars=chars, num_alphabetic=alphabetic, num_stop_words=stop.bit_count()
    )
