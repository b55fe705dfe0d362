"""The keyed bijection: exact on every size, and unrelated to its argument as far as chi-square can tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainer.ordering.permutation import Int64s, domain, permute, unpermute

LEAST_P = 1e-5
"""The test below makes about 4,000 p-values of fixed keys; the least of 4,000 uniform ones is about
2.5e-4."""


def keyed(size: int, key: int) -> Callable[[Int64s], Int64s]:
    def image(values: Int64s) -> Int64s:
        return permute(
            values, domain(np.full(len(values), size, np.int64), np.full(len(values), key, np.uint64))
        )

    return image


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 64, 1000, 65_536, 65_537, 262_145, 1_048_577])
def test_every_value_is_the_image_of_exactly_one(size: int) -> None:
    image = keyed(size, 0x1234_5678_9ABC_DEF0)(np.arange(size, dtype=np.int64))
    assert np.array_equal(np.sort(image), np.arange(size))


@given(size=st.integers(1, 1 << 55), key=st.integers(0, 2**64 - 1), fraction=st.floats(0, 1))
def test_the_inverse_brings_every_value_back(size: int, key: int, fraction: float) -> None:
    value = np.array([min(int(fraction * size), size - 1)], np.int64)
    where = domain(np.array([size], np.int64), np.array([key], np.uint64))
    image = permute(value, where)
    assert 0 <= image[0] < size
    assert unpermute(image, where)[0] == value[0]


def test_values_of_different_domains_are_permuted_side_by_side() -> None:
    sizes = np.array([5, 1000, 3, 70_000], np.int64)
    keys = np.array([1, 2, 3, 4], np.uint64)
    values = np.array([4, 999, 0, 69_999], np.int64)
    together = permute(values, domain(sizes, keys))
    alone = [
        keyed(int(size), int(key))(np.array([value]))[0]
        for size, key, value in zip(sizes, keys, values, strict=True)
    ]
    assert together.tolist() == alone


def p_of_lags(image: Int64s, size: int, lags: tuple[int, ...], bins: int = 64) -> list[float]:
    """p-values that image(x + lag) - image(x) modulo size is spread evenly over `bins`."""
    found = []
    for lag in lags:
        steps = (image[lag:] - image[:-lag]) % size
        counts = np.bincount(steps * bins // size, minlength=bins)
        expected = np.diff([-(-size * edge // bins) for edge in range(bins + 1)]) / size * len(steps)
        found.append(float(stats.chisquare(counts, expected).pvalue))
    return found


def p_of_bits(image: Int64s, num_outputs: int = 8, num_inputs: int = 17) -> list[float]:
    """p-values that each low bit of the image is independent of each bit of the argument, and of each two
    bits' xor.

    On +-1 the chi-square of a 2 x 2 table with even margins is the number of values times their squared
    correlation."""
    values = np.arange(len(image))
    bits = [(values >> i) & 1 for i in range(num_inputs) if values[-1] >> i]
    inputs = bits + [bits[i] ^ bits[k] for k in range(len(bits)) for i in range(k)]
    signs = 1.0 - 2.0 * np.array(inputs, np.float32)
    outputs = 1.0 - 2.0 * np.array([(image >> j) & 1 for j in range(num_outputs)], np.float32)
    correlation = signs.astype(np.float64) @ outputs.T.astype(np.float64) / len(image)
    return [float(p) for p in stats.chi2.sf(len(image) * correlation**2, 1).ravel()]


@pytest.mark.parametrize("size", [65_536, 65_537, 100_003, 1 << 20])
def test_neighbours_and_low_bits_are_unrelated_in_the_image(size: int) -> None:
    p_values = []
    for key in range(3):
        image = keyed(size, key * 7919 + 1)(np.arange(size, dtype=np.int64))
        p_values += p_of_lags(image, size, (1, 2, 3, 7, 64, 255, 256, 257, 1024)) + p_of_bits(image[:131_072])
    print(
        f"size {size}: {len(p_values)} p-values, least {min(p_values):.2g}, median {np.median(p_values):.2f}"
    )
    assert min(p_values) > LEAST_P
    # A permutation that fills bins more evenly than chance would pass a one-sided test: so the whole shape
    # counts.
    assert stats.kstest(p_values, "uniform").pvalue > LEAST_P


def test_the_same_tests_find_a_linear_congruence_and_a_linear_feistel_network_out() -> None:
    size = 65_536
    x = np.arange(size)
    congruence = (x * 40_503 + 12_345) % size
    left, right = x >> 8, x & 255
    for key in (17, 91, 203, 55):
        left, right = right, (left + right * 5 + key) & 255
    assert max(p_of_lags(congruence, size, (1, 2, 3))) < 1e-100
    assert min(p_of_bits((left << 8) | right)) < 1e-100
