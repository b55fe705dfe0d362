"""Which parts of the inputs a sample reads.

Each input file is cut into cells of about equal length; a file that is a document by itself is one cell. Every
record begins in exactly one cell. Of each source some cells are drawn at random without replacement, spread evenly
over its files, and dealt to at most 16 replicates: each replicate is a sample of the source by itself, so their
spread shows the error of all (Mahalanobis 1946, "interpenetrating samples"; Wolter 2007, "Introduction to Variance
Estimation", chapter 2)."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from pipeline.inputs.bundles import is_read_whole
from pipeline.inputs.files import Input
from pipeline.recipe.tables import SourceTable

NUM_REPLICATES: Final = 16
SAMPLE_BYTES: Final = 16 << 20
"""Read by default: 500 to 1,000 records of a crawl."""
MOST_SHARE: Final = 0.25
"""Of small inputs."""
_LEAST_BYTES: Final = 1 << 20
_CELLS: Final = 64
_SHORTEST: Final = 64 << 10
_LONGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Bytes [begin, end) of an input file, and the replicate that it belongs to."""

    found: Input
    begin: int
    end: int
    replicate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSample:
    """The cells that are drawn of a source, of `num_cells` in `num_files` files with `num_bytes`. `is_all`: they
    are all there are. `by_file`: a file counts as one cell whatever its length."""

    cells: tuple[Cell, ...]
    num_cells: int
    num_files: int
    num_bytes: int
    by_file: bool

    @property
    def is_all(self) -> bool:
        return len(self.cells) == self.num_cells


def sample_bytes(num_bytes: int, given: int | None) -> int:
    """How many bytes of inputs with `num_bytes` are read."""
    if given is not None:
        return min(given, num_bytes)
    return min(SAMPLE_BYTES, max(_LEAST_BYTES, int(MOST_SHARE * num_bytes)))


def draw(
    sources: Sequence[SourceTable], inputs: Sequence[Sequence[Input]], most_bytes: int, seed: int
) -> list[SourceSample]:
    """The sample of each source, `most_bytes` of all together or a little more: each source gives 16 cells at
    least."""
    total = sum(found.size for of_source in inputs for found in of_source)
    length = min(max(most_bytes // _CELLS, _SHORTEST), _LONGEST)
    return [
        _draw(source, of_source, length, most_bytes / max(total, 1), random.Random(f"{seed} {source.name}"))
        for source, of_source in zip(sources, inputs, strict=True)
    ]


def _draw(
    source: SourceTable, inputs: Sequence[Input], length: int, share: float, chance: random.Random
) -> SourceSample:
    by_file = source.limit_documents is not None
    nums = [
        1 if by_file or is_read_whole(found.name, source.format) else max(1, -(-found.size // length))
        for found in inputs
    ]
    ends = list(accumulate(nums))
    total = ends[-1]
    num = min(total, max(NUM_REPLICATES, round(share * total)))
    if num == total:
        # Each file as it lies: a compressed one cannot be read from within, or not just where a cell begins.
        nums, ends, total = [1] * len(inputs), list(range(1, len(inputs) + 1)), len(inputs)
        num = total
    num_strata = max(1, num // NUM_REPLICATES)
    cells = []
    for stratum in range(num_strata):
        first, last = total * stratum // num_strata, total * (stratum + 1) // num_strata
        drawn = chance.sample(range(first, last), min(NUM_REPLICATES, last - first))
        for replicate, number in enumerate(drawn):
            file = bisect_right(ends, number)
            within, parts, size = number - (ends[file] - nums[file]), nums[file], inputs[file].size
            cells.append(
                Cell(
                    found=inputs[file],
                    begin=size * within // parts,
                    end=size * (within + 1) // parts,
                    replicate=replicate,
                )
            )
    return SourceSample(
        cells=tuple(cells),
        num_cells=total,
        num_files=len(inputs),
        num_bytes=sum(found.size for found in inputs),
        by_file=by_file,
    )
