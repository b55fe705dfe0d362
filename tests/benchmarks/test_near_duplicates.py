"""The schemes of the named recipes: their chances by theory, and what they find."""

from __future__ import annotations

import random

import pytest

from benchmarks.near_duplicates import found_by_theory, named_schemes, print_schemes
from pipeline.demo.pages import write_article


@pytest.mark.parametrize(
    ("name", "similarity", "chance"),
    # fineweb: as datatrove 0.10.1 prints it (pipeline/dedup/minhash.py); the others by hand.
    [("fineweb", 0.8, 0.924), ("dolma3", 0.5, 0.0126), ("nemotron-cc", 0.9, 0.9973), ("text", 1.0, 1.0)],
)
def test_the_chance_that_a_pair_shares_a_band(name: str, similarity: float, chance: float) -> None:
    assert found_by_theory(similarity, named_schemes()[name]) == pytest.approx(chance, abs=6e-4)


def test_every_scheme_finds_pairs_that_differ_in_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [write_article("en", random.Random(seed), 20).text for seed in range(12)]
    texts += [text.rsplit(" ", 1)[0] + " otherwise." for text in texts]
    print_schemes(texts)
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if "share a band," in line]
    assert [line.split()[0] for line in found] == list(named_schemes())
    assert all("12 of 0.8 and more, 12 of them share a band" in line for line in found)
