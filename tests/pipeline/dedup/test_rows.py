"""What the phases of deduplication share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dedup.rows import are_among

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.sets(INT64 | st.integers(-3, 3)), st.lists(INT64 | st.integers(-5, 5)))
def test_a_hash_is_among_others_if_it_is_one_of_them(hashes: set[int], others: list[int]) -> None:
    wanted = np.array([[*hashes, *others], [*others, *hashes]], np.int64)
    found = are_among(np.array(sorted(hashes), np.int64), wanted)
    assert found.tolist() == [[number in hashes for number in row] for row in wanted.tolist()]
