"""Items of a list in texts: which are found, and by what."""

from __future__ import annotations

from stages.contamination import Finder
from stages.dedup.options import DedupTable
from stages.pii.options import PiiTable
from stages.pii.scrub import scrub


def found(items: list[str], text: str) -> list[tuple[int, str]]:
    finder = Finder(items, "13w", DedupTable(), PiiTable(kinds=("phone",)))
    return [(evidence.item, evidence.kind) for evidence in finder.find(text)]


def test_an_item_that_a_list_has_twice_is_found_twice_by_the_same_evidence() -> None:
    item = "Which of these rivers is the longest?"
    assert found([item, "Another question of this long list.", item], item) == [(0, "exact"), (2, "exact")]


def test_an_item_that_is_short_only_without_its_number_is_looked_for() -> None:
    items = ["Call +1 212 555 0187", "Yes or no"]
    assert found(items, "You may call +1 212 555 0187 at night.") == [(0, "ngram")]
    assert Finder(items, "13w", DedupTable(), PiiTable(kinds=("phone",))).skipped == (1,)


def test_an_item_is_scrubbed_by_the_phone_formats_of_the_run() -> None:
    item = "Ruf 030 901820 an und frag"
    text = scrub(item, ("phone",), "DE").text
    assert text == "Ruf <PHONE> an und frag"
    for region, expected in (("DE", ["exact"]), ("US", [])):
        finder = Finder([item], "13w", DedupTable(), PiiTable(kinds=("phone",), phone_region=region))
        assert [evidence.kind for evidence in finder.find(text)] == expected
