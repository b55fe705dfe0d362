"""The documents of a row that are read once more: exactly so many, whoever the documents come with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.phases.repeats import RowsOfUnit, plan_repeats
from stages.tokens.repeats import RepeatTable, num_more, rows_of

SOURCES = (("web", None), ("web", "de"), ("posts", None))


@st.composite
def corpora(draw: st.DrawFn) -> list[tuple[int, int, tuple[int, int]]]:
    """(source, cluster size, key) of documents: keys that differ, many in their last bits alone."""
    highs = st.sampled_from([0, 1, 1 << 51, (1 << 52) - 1, 1 << 52, (1 << 64) - 1]) | st.integers(
        0, 2**64 - 1
    )
    lows = st.integers(0, 2) | st.integers(0, 2**64 - 1)
    keys = draw(st.lists(st.tuples(highs, lows), unique=True, max_size=80))
    return [(draw(st.integers(0, 2)), draw(st.integers(1, 9)), each) for each in keys]


def pieces(
    corpus: list[tuple[int, int, tuple[int, int]]], firsts: tuple[int, ...], num: int
) -> Iterator[RowsOfUnit]:
    for piece in range(num):
        for source, of in enumerate(SOURCES):
            chosen = [each for each in corpus[piece::num] if each[0] == source]
            if not chosen:
                continue
            yield RowsOfUnit(
                of,
                rows_of(np.array([size for _, size, _ in chosen]), firsts),
                np.array([key for *_, key in chosen], np.uint64).reshape(-1, 2),
                np.full(len(chosen), 7),
            )


@given(
    corpora(),
    st.dictionaries(st.integers(2, 9).map(str), st.decimals(0, 5, places=2).map(float), max_size=4),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_the_first_by_their_keys_are_read_once_more_and_they_are_exactly_so_many(
    corpus: list[tuple[int, int, tuple[int, int]]], rows: dict[str, float], num: int, drawn: random.Random
) -> None:
    table = RepeatTable(by="cluster_size", table={"1": 0.5, **rows})
    repeats = plan_repeats(table, table.firsts, lambda: pieces(corpus, table.firsts, num))
    shuffled = drawn.sample(corpus, len(corpus))
    assert repeats == plan_repeats(table, table.firsts, lambda: pieces(shuffled, table.firsts, 1))
    said = {(size.source, size.first): size for size in repeats.sizes}
    for source, of in enumerate(SOURCES):
        for row, (first, times) in enumerate(zip(table.firsts, table.times, strict=True)):
            keys = sorted(
                key
                for which, size, key in corpus
                if which == source and rows_of(np.array([size]), table.firsts)[0] == row
            )
            name = ".".join(filter(None, of))
            if not keys:
                assert (name, first) not in said
                continue
            found = repeats.times[of][row].of(np.array(keys, np.uint64)).tolist()
            more = num_more(Fraction(times), len(keys))
            assert found == [int(times) + 1] * more + [int(times)] * (len(keys) - more)
            size = said[name, first]
            assert (size.num_documents, size.num_tokens) == (len(keys), 7 * len(keys))
            assert size.num_readings == sum(found)
