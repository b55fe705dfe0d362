"""The documents of a row that are read once more: exactly so many, whoever the documents come with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import parse_table
from pipeline.phases.repeats import CountedRows, Firsts, OfSource, own_tables, plan_repeats
from stages.tokens.repeats import RepeatTable, num_more, rows_of

SOURCES = (
    OfSource("web", None), OfSource("web", "de"), OfSource("posts", None), OfSource("web", None, "deu_Latn"),
    OfSource("web", "de", "deu_Latn"), OfSource("posts", None, "ita_Latn"),
)  # fmt: skip


@st.composite
def corpora(draw: st.DrawFn) -> list[tuple[int, int, tuple[int, int]]]:
    """(source, cluster size, key) of documents: keys that differ, many in their last bits alone."""
    highs = st.sampled_from([0, 1, 1 << 51, (1 << 52) - 1, 1 << 52, (1 << 64) - 1]) | st.integers(
        0, 2**64 - 1
    )
    lows = st.integers(0, 2) | st.integers(0, 2**64 - 1)
    keys = draw(st.lists(st.tuples(highs, lows), unique=True, max_size=80))
    return [(draw(st.integers(0, len(SOURCES) - 1)), draw(st.integers(1, 9)), each) for each in keys]


def pieces(corpus: list[tuple[int, int, tuple[int, int]]], firsts: Firsts, num: int) -> Iterator[CountedRows]:
    for piece in range(num):
        for source, of in enumerate(SOURCES):
            chosen = [each for each in corpus[piece::num] if each[0] == source]
            if not chosen:
                continue
            yield CountedRows(
                of,
                rows_of(np.array([size for _, size, _ in chosen]), firsts[of.language]),
                np.array([key for *_, key in chosen], np.uint64).reshape(-1, 2),
                np.full(len(chosen), 7),
            )


TABLES = st.dictionaries(st.integers(2, 9).map(str), st.decimals(0, 5, places=2).map(float), max_size=4)


@given(corpora(), st.tuples(TABLES, TABLES, TABLES), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_first_by_their_keys_are_read_once_more_and_they_are_exactly_so_many(
    corpus: list[tuple[int, int, tuple[int, int]]],
    rows: tuple[dict[str, float], ...],
    num: int,
    drawn: random.Random,
) -> None:
    of_all, german, italian = ({"1": once, **each} for once, each in zip((0.5, 2.25, 0), rows, strict=True))
    own = {"deu_Latn": {"table": german}, "ita_Latn": {"table": italian}}
    table = parse_table(RepeatTable, {"by": "cluster_size", "table": of_all, "language": own})
    firsts = {name: table.rows_for(name).firsts for name in (None, *own)}
    repeats = plan_repeats(table, firsts, lambda: pieces(corpus, firsts, num))
    shuffled = drawn.sample(corpus, len(corpus))
    assert repeats == plan_repeats(table, firsts, lambda: pieces(shuffled, firsts, 1))
    said = {(size.source, size.language, size.first): size for size in repeats.sizes}
    for source, of in enumerate(SOURCES):
        of_rows = table.rows_for(of.language)
        for row, (first, times) in enumerate(zip(of_rows.firsts, of_rows.times, strict=True)):
            keys = sorted(
                key
                for which, size, key in corpus
                if which == source and rows_of(np.array([size]), of_rows.firsts)[0] == row
            )
            name = of.source if of.bucket is None else f"{of.source}.{of.bucket}"
            if not keys:
                assert (name, of.language, first) not in said
                continue
            found = repeats.times[of][row].of(np.array(keys, np.uint64)).tolist()
            more = num_more(Fraction(times), len(keys))
            assert found == [int(times) + 1] * more + [int(times)] * (len(keys) - more)
            size = said[name, of.language, first]
            assert (size.num_documents, size.num_tokens) == (len(keys), 7 * len(keys))
            assert size.num_readings == sum(found)


def test_a_language_follows_its_own_table_by_whatever_label_it_is_named() -> None:
    own = {"nob_Latn": {"table": {"1": 2}}, "de": {"table": {"1": 3}}}
    table = parse_table(RepeatTable, {"by": "cluster_size", "table": {"1": 1}, "language": own})
    told = ["de", "deu_Latn", "no", "nb", "nn", "en", None, "de-AT"]
    assert own_tables(table, told) == ["de", "de", "nob_Latn", "nob_Latn", None, None, None, "de"]
