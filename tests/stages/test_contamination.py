"""Items of a list in texts: which are found, and by what."""

from __future__ import annotations

from stages.contamination import Finder
from stages.dedup.options import DedupTable


def found(items: list[str], text: str) -> list[tuple[int, str]]:
    finder = Finder(items, "13w", DedupTable(), ("phone",))
    return [(evidence.item, evidence.kind) for evidence in finder.find(text)]


def test_an_item_that_a_list_has_twice_is_found_twice_by_the_same_evidence() -> None:
    item = "Which of these rivers is the longest?"
    assert found([item, "Another question of this long list.", item], item) == [(0, "exact"), (2, "exact")]


def test_an_item_that_is_short_only_without_its_number_is_looked_for() -> None:
    items = ["Call +1 212 555 0187", "Yes or no"]
    assert found(items, "You may call +1 212 555 0187 at night.") == [(0, "ngram")]
    assert Finder(items, "13w", DedupTable(), ("phone",)).skipped == (1,)
