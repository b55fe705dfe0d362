"""Whether the file of a fastText model is whole: the library reads one that was cut short as if it were, without
end in its words and as random weights behind them.

The layout is that of version 12 (facebookresearch/fastText, src/fasttext.cc, `loadModel` and what it calls):
magic and version, 12 options and a double, the dictionary, the input matrix, the output matrix."""

from __future__ import annotations

import mmap
import os
import re
import struct
from typing import Final

_MAGIC: Final = 793712314
_OPTIONS: Final = struct.calcsize("<12id")
_CENTROIDS: Final = 256
"""Of each dimension of a product quantizer, a float each."""
_MANY: Final = 10_000
_WORD: Final = rb"[^\0]*+\0.{9}"
"""A word, its count in eight bytes, and whether it is a label."""
_WORDS: Final = re.compile(b"(?:%b){%d}" % (_WORD, _MANY), re.DOTALL)
_ONE_WORD: Final = re.compile(_WORD, re.DOTALL)


class _CutError(Exception):
    """The file ends within this part of the model."""


def cut_part(path: str) -> str | None:
    """The part within which the model of this file ends; None where it is whole, or no fastText model at all, which
    the library tells by its first bytes. OSError if it cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Reader(data, size).pass_over()
            except _CutError as cut:
                return str(cut)
    return None


class _Reader:
    """Walks over a model's file; nothing but sizes is read, and the words are passed over."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data, self._size, self._at = data, size, 0

    def pass_over(self) -> None:
        """_CutError where the file ends before what it says that it holds."""
        [magic, _] = self._next("ii", "version")
        if magic != _MAGIC:
            return
        self._skip(_OPTIONS, "options")
        self._dictionary()
        [is_quantized] = self._next("?", "weights")
        self._matrix(is_quantized=bool(is_quantized))
        [is_output_quantized] = self._next("?", "weights")
        self._matrix(is_quantized=bool(is_quantized and is_output_quantized))

    def _next(self, kinds: str, what: str) -> tuple[int, ...]:
        length = struct.calcsize(f"<{kinds}")
        if self._at + length > self._size:
            raise _CutError(what)
        found = struct.unpack_from(f"<{kinds}", self._data, self._at)
        self._at += length
        return found

    def _skip(self, length: int, what: str) -> None:
        if length < 0 or self._at + length > self._size:
            raise _CutError(what)
        self._at += length

    def _dictionary(self) -> None:
        size, _, _, _, num_pruned = self._next("iiiqq", "words")
        left = size
        while left > 0:
            pattern, num = (_WORDS, _MANY) if left >= _MANY else (_ONE_WORD, 1)
            found = pattern.match(self._data, self._at)
            if found is None:
                raise _CutError("words")
            self._at, left = found.end(), left - num
        self._skip(8 * max(num_pruned, 0), "words")

    def _matrix(self, *, is_quantized: bool) -> None:
        if not is_quantized:
            rows, columns = self._next("qq", "weights")
            self._skip(4 * rows * columns, "weights")
            return
        has_norms, rows, _, num_codes = self._next("?qqi", "weights")
        self._skip(num_codes, "weights")
        self._quantizer()
        if has_norms:
            self._skip(rows, "weights")
            self._quantizer()

    def _quantizer(self) -> None:
        [dimensions, *_] = self._next("iiii", "weights")
        self._skip(4 * dimensions * _CENTROIDS, "weights")
