"""DSIR and EM on small cases worked by hand, and on a target whose mixture is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lineage.recipe import RecipeError
from trainer.mix.dsir import (
    bucket,
    effective_sample_size,
    features,
    gumbel_top_k,
    length_effect,
    log_ratio,
    log_weights,
    unigrams,
)
from trainer.mix.em import fit_mixture, smoothed


def test_hashes_are_those_of_the_published_code() -> None:
    assert bucket("alice") == 6720
    assert bucket("alice went") == 114


def test_a_text_is_its_lower_cased_words_and_pairs() -> None:
    counts = features("Alice went")
    assert counts.sum() == 3
    assert counts[6720] == counts[114] == counts[bucket("went")] == 1


def test_a_lone_surrogate_is_counted_like_any_text() -> None:
    assert features("abc \ud83d def").sum() == unigrams("abc \ud83d def").sum() + 2 == 5


@pytest.mark.parametrize(
    ("target", "raw", "what"), [(" \n", "a b", "the target"), ("a", " ", r"train\.data")]
)
def test_texts_without_a_word_have_no_ratio(target: str, raw: str, what: str) -> None:
    with pytest.raises(RecipeError, match=f"{what} has no word"):
        log_ratio(features(target), features(raw))


def test_a_weight_is_the_sum_of_its_log_ratios() -> None:
    target, raw = features("a"), features("a b")  # target: a; raw: a, b, "a b"
    ratio = log_ratio(target, raw)
    assert ratio[bucket("a")] == pytest.approx(math.log(3), abs=1e-6)
    weights, lengths = log_weights(["a", "b"], ratio)
    assert weights == pytest.approx([math.log(3), math.log(1e-8 / (1 / 3))], abs=1e-5)
    assert lengths.tolist() == [1, 1]


def test_gumbel_top_k_draws_in_proportion_to_weight() -> None:
    weights = np.log([0.7, 0.2, 0.1])
    drawn = [int(gumbel_top_k(weights, 1, seed)[0]) for seed in range(3000)]
    assert np.bincount(drawn) / 3000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    assert gumbel_top_k(weights, 3, 0).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="expected 1 to 3"):
        gumbel_top_k(weights, 4, 0)


def test_the_effective_sample_size_counts_equal_weights_and_no_dwarfed_ones() -> None:
    assert effective_sample_size(np.zeros(7)) == pytest.approx(7)
    assert effective_sample_size(np.array([0.0, -50.0, -50.0])) == pytest.approx(1)
    assert effective_sample_size(np.array([1000.0, 1000.0])) == pytest.approx(2)


def test_long_documents_sink_where_every_word_counts_against_them() -> None:
    weights, lengths = log_weights(["b " * n for n in range(1, 9)], log_ratio(features("a"), features("a b")))
    told = length_effect(weights, lengths)
    assert told is not None and told < -0.99
    assert length_effect(np.zeros(3), np.arange(3.0)) is None


def test_em_finds_a_known_mixture_from_samples() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([0.6, 0.3, 0.1])
    domains = rng.dirichlet(np.full(200, 0.3), 3)
    counts = np.stack([rng.multinomial(50_000, domain) for domain in domains]).astype(np.float64)
    target = rng.multinomial(20_000, truth @ domains).astype(np.float64)
    assert fit_mixture(target, smoothed(counts)) == pytest.approx(truth, abs=0.02)


def test_em_of_disjoint_domains_is_the_share_of_their_words() -> None:
    domains = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    assert fit_mixture(np.array([3.0, 3.0, 2.0, 9.0]), domains) == pytest.approx([0.75, 0.25])
    with pytest.raises(ValueError, match="no word that any source has"):
        fit_mixture(np.array([0.0, 0.0, 0.0, 4.0]), domains)
