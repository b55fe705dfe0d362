"""Which parts of the inputs a sample reads: drawn by a seed, spread over all files, none twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.inputs.files import Input
from pipeline.pricing.sample import NUM_REPLICATES, SourceSample, draw, sample_bytes
from pipeline.recipe.tables import SourceTable

SIZES = st.lists(st.integers(0, 5_000_000), min_size=1, max_size=12)


def sampled(sizes: list[int], most_bytes: int, seed: int = 0, **keys: int) -> SourceSample:
    inputs = [
        Input(source="web", index=at, name=f"{at}.warc.gz", url=f"/{at}", size=size)
        for at, size in enumerate(sizes)
    ]
    return draw([SourceTable(name="web", inputs=("x",), **keys)], [inputs], most_bytes, seed)[0]


@given(SIZES, st.integers(1, 20_000_000), st.integers(0, 5))
def test_cells_lie_in_their_files_and_none_is_drawn_twice(sizes: list[int], most: int, seed: int) -> None:
    sample = sampled(sizes, most, seed)
    drawn = Counter((cell.found.name, cell.begin, cell.end) for cell in sample.cells)
    assert max(drawn.values()) == 1
    assert all(0 <= cell.begin <= cell.end <= cell.found.size for cell in sample.cells)
    assert len(sample.cells) >= min(NUM_REPLICATES, sample.num_cells)
    assert sampled(sizes, most, seed) == sample


@given(SIZES)
def test_where_all_is_read_each_file_is_one_cell(sizes: list[int]) -> None:
    sample = sampled(sizes, sum(sizes) + 1)
    assert sample.is_all
    cells = sorted((cell.found.index, cell.begin, cell.end) for cell in sample.cells)
    assert cells == [(number, 0, size) for number, size in enumerate(sizes)]


def test_replicates_have_as_many_cells_from_everywhere() -> None:
    sample = sampled([50_000_000] * 8, 16 << 20)
    of_replicate = Counter(cell.replicate for cell in sample.cells)
    assert len(of_replicate) == NUM_REPLICATES
    assert len(set(of_replicate.values())) == 1
    assert {cell.found.index for cell in sample.cells} == set(range(8))


def test_another_seed_draws_other_cells() -> None:
    first, second = (sampled([50_000_000] * 8, 4 << 20, seed) for seed in (1, 2))
    assert first.cells != second.cells


def test_where_each_file_has_a_limit_a_file_is_a_cell() -> None:
    sample = sampled([50_000_000] * 40, 16 << 20, limit_documents=3)
    assert (sample.num_cells, sample.by_file) == (40, True)
    assert {(cell.begin, cell.end) for cell in sample.cells} == {(0, 50_000_000)}


def test_a_sample_is_a_quarter_of_little_and_no_more_of_much() -> None:
    assert sample_bytes(40_000_000, None) == 10_000_000
    assert sample_bytes(10**15, None) == 16 << 20
    assert sample_bytes(500, None) == 1 << 20
    assert sample_bytes(10**9, 7) == 7
