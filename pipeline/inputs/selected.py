"""The records of a WARC file that a source's index selects, and where one request fetches several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

MOST_GAP: Final = 32 << 10
"""Bytes between two records that are fetched in vain rather than by a request of their own: about a page. Between
neighbours of a crawl lie a request and metadata, about 1 KiB."""
MOST_JOINED: Final = 8 << 20
"""Bytes of one request, unless one record alone has more."""


class SelectedRecord(NamedTuple):
    """`length` bytes from `offset` of a WARC file, and the digest of the payload as the index has it."""

    offset: int
    length: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRecords:
    """What an index selects of one WARC file, in order of offset, packed: a source may have millions. `places` are
    pairs of offset and length as int64, little-endian, `digests` the digests, a line each."""

    crawl: str | None
    segment: str | None
    places: bytes
    digests: str

    def __len__(self) -> int:
        return len(self.places) // 16

    def __iter__(self) -> Iterator[SelectedRecord]:
        digests = self.digests.split("\n")
        for (offset, length), digest in zip(self.numbers().tolist(), digests, strict=True):
            yield SelectedRecord(offset, length, digest or None)

    def numbers(self) -> npt.NDArray[np.int64]:
        """Offsets and lengths, a row for each record."""
        return np.frombuffer(self.places, "<i8").reshape(-1, 2)

    def part(self, begin: int, end: int) -> SelectedRecords:
        """The records that begin in bytes [begin, end) of all of them, one behind the other."""
        lengths = self.numbers()[:, 1]
        first, last = np.searchsorted(np.cumsum(lengths) - lengths, [begin, end])
        digests = self.digests.split("\n")[first:last]
        return replace(self, places=self.places[16 * first : 16 * last], digests="\n".join(digests))

    @property
    def num_bytes(self) -> int:
        """Of all records."""
        return int(self.numbers()[:, 1].sum())


def joined(records: Sequence[SelectedRecord]) -> Iterator[list[SelectedRecord]]:
    """The records of a file, in order of offset, in groups that one request fetches."""
    group: list[SelectedRecord] = []
    end = 0
    for record in records:
        is_far = record.offset - end > MOST_GAP
        is_full = group and max(end, record.offset + record.length) - group[0].offset > MOST_JOINED
        if group and (is_far or is_full):
            yield group
            group, end = [], 0
        group.append(record)
        end = max(end, record.offset + record.length)
    if group:
        yield group
