"""Words and shingles: the sets whose Jaccard similarity decides what is a near-duplicate.

A text is first normalised as `dedup.normalise` says. A word is then a maximal run of non-white-space
characters (`str.split`); in scripts that are written without spaces each character is a word. A shingle is
`dedup.shingle` consecutive words. A text with fewer words has one shingle, all of them, but normalised as
FineWeb does none, as there: with its numbers and marks gone, a line such as "1,024 likes" would repeat every
other one. A text without words has none. With `dedup.shingle_unit = "character"` a shingle is so many
characters of the normalised text, white space too. With "code" a word is a maximal run of ASCII letters,
digits and underscores: what stands between them, the formatting of source code, counts for nothing
(bigcode-project/bigcode-dataset, near_deduplication/minhash_deduplication.py, whose empty tokens between two
marks are left out here). A text without any has the words that white space parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stages.dedup.normalise import normalised
from stages.dedup.options import DedupTable
from stages.ngrams import window_hashes

U64 = npt.NDArray[np.uint64]

_NOT_ZERO: Final = np.uint64(0x9E3779B97F4A7C15)
"""Added to a character's number, so that no character is 0, which the finaliser leaves as it is."""
_CODE_TOKEN: Final = re.compile(r"[A-Za-z0-9_]+")
_SPACE: Final = re.compile(r"\s")
_PIECE_CHARS: Final = 1 << 16
_UNSPACED: Final = re.compile(
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "]"
)


def words(text: str) -> list[bytes]:
    """The words of `text` as UTF-8 (a lone surrogate as its escape), in order."""
    if not text.isascii() and _UNSPACED.search(text):
        text = _UNSPACED.sub(r" \g<0> ", text)
    found = " ".join(text.split())
    return found.encode("utf-8", "surrogatepass").split(b" ") if found else []


def _code_tokens(text: str) -> list[bytes]:
    """The runs of ASCII letters, digits and underscores in `text`, in order."""
    return [token.encode() for token in _CODE_TOKEN.findall(text)]


def _compared_words(text: str, table: DedupTable) -> Iterator[list[bytes]]:
    """The words that `text` is compared by, piece after piece: those of a text of 10 MB take a hundred at once.

    Nothing that normalising does reaches across white space, so the pieces give the words of the whole."""
    is_code = table.shingle_unit == "code" and any(map(_CODE_TOKEN.search, _compared_pieces(text, table)))
    return map(_code_tokens if is_code else words, _compared_pieces(text, table))


def _compared_pieces(text: str, table: DedupTable) -> Iterator[str]:
    begin = 0
    while cut := _SPACE.search(text, begin + _PIECE_CHARS):
        yield normalised(text[begin : cut.start()], table.normalise)
        begin = cut.end()
    yield normalised(text[begin:], table.normalise)


def _compared_characters(text: str, table: DedupTable) -> str:
    compared = normalised(text, table.normalise)
    is_too_short = table.normalise == "fineweb" and len(compared) < table.shingle
    return "" if is_too_short or compared.isspace() else compared


def _fewest(table: DedupTable) -> int:
    """The words of a text that has a shingle."""
    return table.shingle if table.normalise == "fineweb" else 1


def shingle_strings(text: str, table: DedupTable) -> list[bytes]:
    """The shingles of `text` in order as UTF-8, each its words joined by one space, or its characters: what
    the datasketch scheme hashes."""
    size = table.shingle
    if table.shingle_unit == "character":
        compared = _compared_characters(text, table)
        places = range(max(1, len(compared) - size + 1)) if compared else ()
        return [compared[start : start + size].encode("utf-8", "surrogatepass") for start in places]
    found = list(chain.from_iterable(_compared_words(text, table)))
    if len(found) < _fewest(table):
        return []
    return [b" ".join(found[start : start + size]) for start in range(max(1, len(found) - size + 1))]


def shingle_hashes(text: str, table: DedupTable, key: int = 0) -> U64:
    """A 64-bit hash of each shingle of `text`, in order, shape (num_shingles,).

    XXH3-64 of each word under `key`, or a bijection of each character's number and `key`, then a polynomial
    over a shingle's hashes and a bijective finaliser. Under a known key a hostile author can build words that
    collide. So signatures, which must be comparable between runs and use key 0, only propose pairs; the
    Jaccard that decides is taken under a key that no author can foresee (`pipeline/dedup`)."""
    if table.shingle_unit == "character":
        data = _compared_characters(text, table).encode("utf-32-le", "surrogatepass")
        numbers = np.frombuffer(data, "<u4").astype(np.uint64)
        hashed = mix(mix(numbers + _NOT_ZERO) + np.uint64(key))
    else:
        pieces = [
            np.fromiter(map(xxh3_64_intdigest, found, repeat(key)), np.uint64, len(found))
            for found in _compared_words(text, table)
        ]
        hashed = np.concatenate(pieces)
        hashed = hashed if len(hashed) >= _fewest(table) else hashed[:0]
    return mix(window_hashes(hashed, min(table.shingle, max(len(hashed), 1))))


def shingles(text: str, table: DedupTable, key: int = 0) -> U64:
    """The set of shingles of `text`: their 64-bit hashes, sorted and unique."""
    return np.unique(shingle_hashes(text, table, key))


def jaccard(left: U64, right: U64) -> float:
    """Shared elements over all elements of two sets given as sorted unique arrays; two empty sets give 0."""
    if not len(left) or not len(right):
        return 0.0
    merged = np.concatenate((left, right))
    merged.sort(kind="stable")  # radix or merge sort: two sorted runs are its best case
    num_shared = int(np.count_nonzero(merged[1:] == merged[:-1]))
    return num_shared / (len(merged) - num_shared)


def mix(values: U64) -> U64:
    """A bijection on 64-bit values after which every bit depends on every bit (MurmurHash3's 64-bit
    finaliser)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
