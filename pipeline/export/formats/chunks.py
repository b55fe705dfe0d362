"""Samples packed into files of bounded size, as Streaming and LitData do: a count, the places of the samples,
and the samples one behind another."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from pipeline.export.sink import ExportSink
from pipeline.export.units import ExportUnit

CHUNK_BYTES: Final = 1 << 26
"""Streaming's default, and LitData's. A file is held whole in memory until it is written."""


def encode_chunk(samples: list[bytes], between: bytes = b"") -> bytes:
    """uint32 number of samples, uint32 places in bytes from the file's beginning (one more than samples),
    `between`, the samples."""
    sizes = np.array([0, *map(len, samples)], dtype=np.uint64)
    places = np.cumsum(sizes) + np.uint64(4 + 4 * len(sizes) + len(between))
    head: bytes = struct.pack("<I", len(samples))
    return b"".join([head, places.astype("<u4").tobytes(), between, *samples])


class Chunks:
    """The chunks of one unit in one split, numbered from 0. `put` takes a chunk's number, its bytes,
    documents and tokens."""

    def __init__(self, put: Callable[[int, bytes, int, int], None], between: bytes, limit: int) -> None:
        self._put, self._between, self._limit = put, between, limit
        self._samples: list[bytes] = []
        self._num_bytes = 8 + len(between)
        self._num_tokens = self._number = 0

    def add(self, sample: bytes, num_tokens: int = 0) -> None:
        """One more document; a chunk that it would make too large is written before."""
        if self._samples and self._num_bytes + len(sample) + 4 > self._limit:
            self.flush()
        self._samples.append(sample)
        self._num_bytes += len(sample) + 4
        self._num_tokens += num_tokens

    def flush(self) -> None:
        """Write what is held."""
        if not self._samples:
            return
        data = encode_chunk(self._samples, self._between)
        self._put(self._number, data, len(self._samples), self._num_tokens)
        self._samples, self._num_bytes, self._num_tokens = [], 8 + len(self._between), 0
        self._number += 1


@contextmanager
def chunks(
    sink: ExportSink,
    unit: ExportUnit,
    split: str,
    *,
    extension: str,
    between: bytes = b"",
    limit: int = CHUNK_BYTES,
) -> Iterator[Chunks]:
    """Chunks <split>/<source>-NNNNN-KKK<extension>; the last one is written when the block ends."""

    def put(number: int, data: bytes, num_documents: int, num_tokens: int) -> None:
        name = unit.name(f"-{number:03d}{extension}", folder=split, between="-")
        sink.put(name, data, split, num_documents, num_tokens)

    packed = Chunks(put, between, limit)
    yield packed
    packed.flush()
