"""Candidate pairs: every pair of a small bucket, few of a large one, never a repetition, whatever the order
of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup import candidates
from stages.dedup.bands import band_keys, band_orders, unpack_signatures
from stages.dedup.candidates import BandRows, candidate_pairs, repeats_earlier
from stages.dedup.options import DedupTable

Row = tuple[int, int, int, int, bool]
"""key, text, k, order, earlier; the node is the row's index."""

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(0, 20), st.integers(-5, 5), st.booleans()),
    max_size=60,
)


def band_rows(
    rows: list[Row], order: list[int] | None = None, preference: dict[int, int] | None = None
) -> BandRows:
    numbered = [(*row, node) for node, row in enumerate(rows)]
    chosen = numbered if order is None else [numbered[index] for index in order]
    key, text, k, place, earlier, node = zip(*chosen, strict=True) if chosen else ((),) * 6
    wanted = [(preference or {}).get(number, 0) for number in node]
    columns = {"key": key, "text": text, "k": k, "order": place, "preference": wanted, "node": node}
    of_earlier = np.array(earlier, np.bool_)
    return BandRows(
        **{n: np.array(v, np.int64) for n, v in columns.items()}, earlier=of_earlier, stays=of_earlier
    )


def pairs_of(rows: list[Row], limit: int = 64, order: list[int] | None = None) -> list[tuple[int, int]]:
    found = candidate_pairs(band_rows(rows, order), limit)
    return list(zip(found.a.tolist(), found.b.tolist(), strict=True))


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_a_value_stands_again_where_another_index_has_it(values: list[int]) -> None:
    times = Counter(values)
    assert repeats_earlier(np.array(values, np.int64)).tolist() == [times[value] > 1 for value in values]


@given(ROWS)
def test_a_small_bucket_gives_every_pair_of_distinct_texts(rows: list[Row]) -> None:
    buckets: dict[int, dict[int, list[tuple[bool, int, int]]]] = defaultdict(lambda: defaultdict(list))
    for node, (key, text, k, _, earlier) in enumerate(rows):
        buckets[key][text].append((earlier, k, node))
    expected = set()
    for texts in buckets.values():
        for left, right in combinations(sorted(min(copies) for copies in texts.values()), 2):
            if not (left[0] and right[0]):
                expected.add(
                    tuple(member[2] for member in sorted((left, right), key=lambda member: member[1:]))
                )
    assert pairs_of(rows) == sorted(expected)


@given(ROWS, st.randoms(use_true_random=False), st.sampled_from([3, 64]))
def test_the_order_of_rows_does_not_matter(rows: list[Row], random: object, limit: int) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert pairs_of(rows, limit) == pairs_of(rows, limit, order)


@given(ROWS, st.sampled_from([3, 64]), st.sampled_from([1, 4]))
def test_pairs_made_distinct_many_times_are_those_made_distinct_once(
    rows: list[Row], limit: int, pairs_at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_PAIRS_AT_ONCE", pairs_at_once)
        found = pairs_of(rows, limit)
    assert found == pairs_of(rows, limit)


def test_a_large_bucket_pairs_each_with_the_one_that_is_kept_first() -> None:
    rows: list[Row] = [(7, k, k, -k, k == 8) for k in range(9)]
    found = candidate_pairs(band_rows(rows[:8], preference={5: -1}), 3)
    assert {(min(5, n), max(5, n)) for n in range(8) if n != 5} <= set(
        zip(found.a.tolist(), found.b.tolist(), strict=True)
    )
    found = candidate_pairs(band_rows(rows, preference={5: -1}), 3)
    assert {(n, 8) for n in range(8)} <= set(zip(found.a.tolist(), found.b.tolist(), strict=True)), (
        "an earlier run's"
    )


def test_a_large_bucket_pairs_each_with_the_least_and_with_its_neighbours() -> None:
    # Document ids 0 to 9; in signature order they stand 9, 8, ..., 0.
    rows: list[Row] = [(7, k, k, -k, False) for k in range(10)]
    expected = {(0, other) for other in range(1, 10)} | {(k, k + 1) for k in range(9)}
    assert set(pairs_of(rows, limit=9)) == expected
    assert len(pairs_of(rows, limit=10)) == 45


def test_capped_buckets_are_counted_after_equal_texts_are_one() -> None:
    equal: list[Row] = [(1, 5, k, 0, False) for k in range(100_000)]
    found = candidate_pairs(band_rows(equal))
    assert (len(found.a), found.num_capped) == (0, 0)
    distinct: list[Row] = [(key, k, k, 0, False) for key in (1, 2) for k in range(65)]
    assert candidate_pairs(band_rows(distinct)).num_capped == 2


def test_pairs_of_a_bucket_of_many_texts_are_linear_in_their_number() -> None:
    rows: list[Row] = [(1, k, k, (k * 7919) % 5000, False) for k in range(5000)]
    assert len(pairs_of(rows)) < 2 * 5000


def test_a_text_of_both_runs_is_compared_for_the_new_copy() -> None:
    rows: list[Row] = [(1, 10, 0, 0, True), (1, 10, 5, 0, False), (1, 11, 9, 0, True)]
    assert pairs_of(rows) == [(1, 2)]


def test_texts_meet_exactly_where_a_whole_band_agrees() -> None:
    table = DedupTable(num_perm=12, bands=3, rows=4)
    left = np.arange(12, dtype=np.uint32)
    right = left.copy()
    right[[0, 11]] = 99  # bands 0 and 2 differ in one value each
    keys = band_keys(np.stack([left, right]), table)
    assert (keys[0] == keys[1]).tolist() == [False, True, False]
    assert len(np.unique(keys)) == 5
    assert (band_keys(np.stack([left[[4, 5, 6, 7] * 3]] * 2), table)[0][:2] != keys[0, 1]).any(), (
        "a band is part of it"
    )


def test_signature_order_goes_by_what_follows_the_band() -> None:
    table = DedupTable(num_perm=12, bands=3, rows=4)
    left = np.zeros(12, np.uint32)
    right = left.copy()
    right[4] = 1
    orders = band_orders(np.stack([left, right]), table).view(np.uint64)
    assert orders[0, 0] < orders[1, 0], "value 4 is the first after band 0"
    assert orders[0, 1] == orders[1, 1], (
        "value 4 is part of band 1: the eight after it are 8 to 11 and 0 to 3"
    )
    assert orders[0, 2] < orders[1, 2], "band 2 goes on at the beginning"


def test_signatures_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"64 values, but dedup\.num_perm = 128"):
        unpack_signatures(pa.array([bytes(512), bytes(256)]), DedupTable())


def test_a_signature_has_the_same_bands_and_orders_among_many_and_alone() -> None:
    table = DedupTable(num_perm=12, bands=3, rows=3)
    signatures = np.random.default_rng(0).integers(0, 2**32, (5000, 12), dtype=np.uint32)
    keys, orders = band_keys(signatures, table), band_orders(signatures, table)
    for place in (0, 1, 2047, 2048, 4999):
        alone = signatures[place : place + 1]
        assert (band_keys(alone, table)[0] == keys[place]).all() and (
            band_orders(alone, table)[0] == orders[place]
        ).all()
