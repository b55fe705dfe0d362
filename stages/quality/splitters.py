"""Who splits the texts of a language into words: a row of TOKENIZERS is all that the rest of the project
knows of one.

A splitter is named as FineWeb-2's configurations name it: `spacy:de` is spaCy's tokenizer for German
(`words.py`); `indic:hi`, `japanese` and so on look at a whole text, through a library that is an extra of
ours. They give the words that datatrove 0.10.1 gives (utils/word_tokenizers.py)."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import re
import string
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stages.quality.characters import PUNCTUATION, TERMINAL_PUNCTUATION
from stages.quality.words import Counts, Splitter
from stages.surrogates import without_surrogates

WHITE_SPACE: Final = "white space"
"""The splitter of languages whose words stand between white space."""

_SENTENCE_ENDS: Final = re.compile("[" + re.escape("".join(sorted(TERMINAL_PUNCTUATION))) + "]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWords:
    """One text split into words."""

    words: Sequence[str]
    counts: Counts

    def solid(self) -> str:
        """The words one after the other."""
        return "".join(self.words)

    def lengths(self) -> array[int]:
        """Characters of every word; shape (num_tokens,)."""
        return array("i", map(len, self.words))


class TextSplitter:
    """Splits a text as a whole: its words may hang on what stands around them, so that none is remembered."""

    memo_bytes_used = 0
    runs_per_word = math.inf
    """Libraries join what white space parts (Vietnamese compounds, the lines of a list in Hindi) and leave
    characters out: the runs between white space bound no number of words."""

    def __init__(self, words_of: Callable[[str], Iterator[str]], stop_words: Sequence[str] = ()) -> None:
        self._words_of = words_of
        self._stop_words = frozenset(stop_words)

    def forget(self) -> None:
        """There is nothing that it remembers."""

    def split(self, text: str) -> TextWords:
        """The words of `text`, stripped, without those of white space alone."""
        whole = without_surrogates(text)  # libraries take what UTF-8 can hold; this keeps the length
        words = [stripped for word in self._words_of(whole) if (stripped := word.strip())]
        lengths = [len(word) for word in words if not PUNCTUATION.issuperset(word)]
        counts = Counts(
            num_tokens=len(words),
            num_words=len(lengths),
            word_chars=sum(lengths),
            num_alphabetic=sum(any(map(str.isalpha, word)) for word in words),
            num_stop_words=len(self._stop_words.intersection(words)),
        )
        return TextWords(words=words, counts=counts)

    def num_sentences(self, line: str) -> int:
        """Runs of characters that end a sentence in `line`; at least 1."""
        return max(1, len(_SENTENCE_ENDS.findall(line)))


AnySplitter = Splitter | TextSplitter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokenizer:
    """`make` gives, of the name behind the colon, what splits a text. `needs` are the packages that it
    imports."""

    make: Callable[[str], Callable[[str], Iterator[str]]]
    needs: tuple[str, ...] = ()


def _indic(language: str) -> Callable[[str], Iterator[str]]:
    return _urdu_words if language == "ur" else _indic_words


# Ranges and escapes as in the expressions of the IndicNLP library 0.92 (tokenize/indic_tokenize.py, MIT),
# whose `string.punctuation` stands in a class unescaped: the backslash is thus no mark.
_MARKS: Final = string.punctuation.replace("\\", "").replace("]", "\\]").replace("[", "\\[")
_INDIC_MARK: Final = re.compile(
    f"([{_MARKS}\u0964\u0965\uaaf1\uaaf0\uabeb\uabec\uabed\uabee\uabef\u1c7e\u1c7f])"
)
_URDU_MARK: Final = re.compile(f"([{_MARKS}\u0609\u060a\u060c\u061e\u066a\u066b\u066c\u066d\u06d4])")
_SPACES: Final = re.compile(" +")
_PARTED_NUMBER: Final = re.compile(r"(?<![0-9])([0-9]+ [,.:/] )+[0-9]+")  # begins where a number does: linear


def _indic_words(text: str) -> Iterator[str]:
    """Between spaces and marks; numbers that a mark parts are one word, but for one at the very beginning."""
    spaced = _SPACES.sub(" ", _INDIC_MARK.sub(r" \1 ", text.replace("\t", " "))).strip(" ")
    yield from _PARTED_NUMBER.sub(lambda m: m[0].replace(" ", "") if m.start() else m[0], spaced).split(" ")


def _urdu_words(text: str) -> Iterator[str]:
    yield from _SPACES.sub(" ", _URDU_MARK.sub(r" \1 ", text.replace("\t", " "))).strip(" ").split(" ")


_LONG_BLOCK: Final = re.compile(r"[\u4e00-\u9fd5a-zA-Z0-9+#&._%-]{1024}")
"""What jieba looks at as one, in pieces of at most so many characters: it takes the square of them."""


def _chinese(_: str) -> Callable[[str], Iterator[str]]:
    import jieba

    splitter = jieba.Tokenizer()
    # It would read a cache, which is a file of Python's marshal, from a folder that anyone may write to.
    with tempfile.TemporaryDirectory(prefix="sluice-jieba-") as own:
        splitter.tmp_dir = own
        jieba.setLogLevel(logging.WARNING)
        splitter.initialize()
    return lambda text: iter(splitter.cut(_LONG_BLOCK.sub(r"\g<0> ", text), cut_all=False))


_SUDACHI_BYTES: Final = 40_000
"""Sudachi takes up to 49,149 bytes at a time; datatrove gives it these."""


def _japanese(_: str) -> Callable[[str], Iterator[str]]:
    from sudachipy import dictionary, tokenizer

    split = dictionary.Dictionary().create(mode=tokenizer.Tokenizer.SplitMode.A).tokenize

    def words_of(text: str) -> Iterator[str]:
        for piece in pieces_of_bytes(text, _SUDACHI_BYTES):
            for morpheme in split(piece):
                yield morpheme.surface()

    return words_of


def pieces_of_bytes(text: str, most: int) -> Iterator[str]:
    """The text cut into pieces of at most `most` bytes of UTF-8, where datatrove cuts it
    (`chunk_text_on_bytes`): a guess from the mean bytes of a character, grown by ten characters at a time
    while it is too short."""
    num_bytes = len(text.encode())
    guess = int(max(most * (len(text) / num_bytes if num_bytes else 1) - 10, 1))
    step = int(max(min(most * 0.1, 10), 1))
    start = 0
    while start < len(text):
        while (size := len(text[start : start + guess].encode())) > most:
            guess = int(max(guess - min(most * 0.001, 10), 1))
        end = start + guess
        while size < most and end < len(text):
            grown = min(len(text), end + step)
            size += len(text[end:grown].encode())
            end = grown - step if size > most else grown
        yield text[start:end]
        start = end


_LONG_RUN: Final = re.compile(r"\S{1000}(?=\S)")
"""Characters without white space that Korean's, Thai's and Vietnamese's tokenizers look at as one, in pieces
of at most so many: they take the square of them."""
_LONG_NUMBER: Final = re.compile("[0-9,]{20,}")


def _korean(_: str) -> Callable[[str], Iterator[str]]:
    from kiwipiepy import Kiwi

    # FineWeb-2 asked for the skip-bigram model, which Kiwi's packages hold no more: this is their own choice.
    tokenize = Kiwi(num_workers=1).tokenize

    def words_of(text: str) -> Iterator[str]:
        text = _LONG_RUN.sub(r"\g<0> ", text)
        # Kiwi stumbles over very long numbers. datatrove reads the words from the text that still has them.
        for token in tokenize(_LONG_NUMBER.sub("", text)):
            yield text[token.start : token.end]

    return words_of


def _thai(_: str) -> Callable[[str], Iterator[str]]:
    from pythainlp.tokenize import word_tokenize

    def words_of(text: str) -> Iterator[str]:
        yield from word_tokenize(_LONG_RUN.sub(r"\g<0> ", text), keep_whitespace=False, engine="newmm-safe")

    return words_of


def _vietnamese() -> Callable[[str], Iterator[str]]:
    import spacy
    from pyvi import ViTokenizer  # noqa: F401 - spaCy's tokenizer imports it

    tokenize: Any = spacy.blank("vi").tokenizer
    return lambda text: iter(tokenize.pyvi_tokenize(_LONG_RUN.sub(r"\g<0> ", text)) if text else ())


def _of_spacy(language: str) -> Callable[[str], Iterator[str]]:
    return _SPACY_APART[language].make(language)


_SPACY_APART: Final = {
    "zh": _Tokenizer(make=_chinese, needs=("jieba",)),
    "ja": _Tokenizer(make=_japanese, needs=("sudachipy", "sudachidict_core")),
    "vi": _Tokenizer(make=lambda _: _vietnamese(), needs=("pyvi",)),
}
"""Languages whose tokenizer in spaCy is another library's."""

TOKENIZERS: Final = {
    "spacy": _Tokenizer(make=_of_spacy),
    "indic": _Tokenizer(make=_indic),
    "korean": _Tokenizer(make=_korean, needs=("kiwipiepy",)),
    "thai": _Tokenizer(make=_thai, needs=("pythainlp",)),
}
"""What splits a whole text, by the name before the colon. FineWeb-2 names others, that ask for models which
must be downloaded (stanza) or that have no kept release (burmese, khmer, lao, tibetan): they are none of
ours."""


def _tokenizer_of(name: str) -> _Tokenizer | None:
    kind, _, language = name.partition(":")
    return (
        _SPACY_APART.get(language) if kind == "spacy" and language in _SPACY_APART else TOKENIZERS.get(kind)
    )


def is_known(name: str) -> bool:
    """Whether we split words as this name says, the packages given."""
    return name == WHITE_SPACE or _tokenizer_of(name) is not None


@functools.cache
def lacking_packages(name: str) -> tuple[str, ...]:
    """The packages that a splitter needs and that are not installed."""
    found = _tokenizer_of(name)
    return tuple(each for each in (found.needs if found else ()) if importlib.util.find_spec(each) is None)


def make_splitter(name: str, stop_words: tuple[str, ...]) -> AnySplitter:
    """The splitter of this name, which is known, and whose packages are there."""
    kind, _, language = name.partition(":")
    if name == WHITE_SPACE:
        return Splitter(None, stop_words)
    if kind == "spacy" and language not in _SPACY_APART:
        return Splitter(language, stop_words)
    return TextSplitter(TOKENIZERS[kind].make(language), stop_words)
