"""Paragraphs as bff compares them: AI2's big friendly filter, with which DCLM was made (Li et al. 2024, "DataComp-LM",
section 4.3; revbucket/bff, src/main.rs)."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import regex
from xxhash import xxh3_64_intdigest

from lineage.store.column_names import INSIDE
from stages.dedup.inside.anchors import U64
from stages.dedup.inside.options import InsideTable
from stages.ngrams import window_hashes

WHOLE_DOCUMENT: Final = f"{INSIDE}.whole_document"
"""The rule of old-both: too many n-grams of a document, of all its paragraphs, stood before."""

_BORDER: Final = regex.compile(r"(?w)\b")


def words_of(paragraph: str) -> list[str]:
    """What stands between the word boundaries of UAX #29, without pieces of white space alone."""
    borders = sorted({0, len(paragraph), *(found.start() for found in _BORDER.finditer(paragraph))})
    pieces = (paragraph[begin:end] for begin, end in itertools.pairwise(borders))
    return [piece for piece in pieces if not piece.isspace()]


def ngram_hashes(paragraph: str, table: InsideTable) -> U64:
    """The n-grams of a paragraph as 64-bit hashes. One with fewer words than `ngram` is one n-gram, with fewer than
    `min_ngram` none."""
    words = words_of(paragraph)
    size = min(len(words), table.ngram)
    if not size or len(words) < min(table.min_ngram, table.ngram):
        return np.empty(0, np.uint64)
    hashes = np.array([xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for word in words], np.uint64)
    return window_hashes(hashes, size)
