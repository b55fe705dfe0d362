"""The comparison of the named recipes with datatrove's blocks: it finds none on our own texts, and would find
one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import recipes
from benchmarks.peers.recipes import Judged, RecipeName
from benchmarks.recipes import Comparison, Text, is_judged, made_texts
from pipeline.demo import prose
from pipeline.demo.pages import write_article
from stages.composition import clean_text
from stages.quality.fineweb2.configurations import configuration_of

PERSONAL = (
    "Write to jane.doe@example.net or john@example.com, from 8.8.4.4 and 93.184.216.34, or to 10.0.0.1.\n"
)
SYMBOLS = "\n| | |\n|\nThe lines between these tables are of â€œmarksâ€\x9d alone.\n| |\n"


def articles(language: str, num: int) -> list[Text]:
    """Texts that pass, a few of them with personal data, tables and mojibake."""
    rng = random.Random(language)
    if not (Path(prose.__file__).parent / "texts" / f"{language}.json").exists():
        return []  # made texts alone are in it
    texts = [write_article(language, rng).text for _ in range(num)]
    texts += [texts[0][:200], "\n".join([texts[1]] * 3)]
    return [
        Text(
            text=(PERSONAL if number % 2 else "") + text + (SYMBOLS if number % 3 == 0 else ""),
            language=language,
        )
        for number, text in enumerate(texts)
    ]


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize(
    ("recipe", "languages"),
    [("fineweb", ["en"]), ("fineweb2", ["de", "fr", "es", "it", "nl", "ru", "tr"])],
)
def test_each_text_has_one_verdict_reason_and_edited_text_on_both_sides(
    recipe: RecipeName, languages: list[str]
) -> None:
    pytest.importorskip("datatrove", reason="the recipes are held against datatrove, an extra of the tests")
    found = Comparison(recipe)
    for language in languages:
        configuration = configuration_of(language)
        made = [] if configuration is None else made_texts(configuration, 8)
        for each in (*articles(language, 6), *made):
            assert is_judged(recipe, each.language)
            found.add(Text(text=clean_text(each.text)[0], language=each.language))
    assert found.faults == []
    assert found.num_kept >= 4 and found.num_replaced >= 2
    assert len(found.rules) >= (2 if recipe == "fineweb" else 5), "several rules decide"


def test_what_one_side_does_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Judged(rule=None, edited="a jane@example.net 1", clean="a email@example.com 1")
    answers = [
        (replace(passed, rule="c4.empty"), passed),
        (passed, replace(passed, edited="a jane@example.net 2")),
        (passed, replace(passed, clean=passed.edited)),
        (passed, passed),
    ]
    monkeypatch.setattr(recipes, "judged_by_us", lambda *_: answers[0][0])
    monkeypatch.setattr(recipes, "judged_by_datatrove", lambda *_: answers.pop(0)[1])
    found = Comparison("fineweb")
    for _ in range(4):
        found.add(Text(text="x", language="en"))
    wrong_rule, wrong_text = found.faults
    assert "c4.empty here, None there" in wrong_rule and "edited otherwise" in wrong_text
    assert (found.num_kept, found.num_apart, found.pieces) == (3, 1, {"here alone": 1, "there alone": 0})


def test_made_texts_are_the_same_in_every_run_and_of_many_kinds() -> None:
    configuration = configuration_of("de")
    assert configuration is not None
    first, second = ([each.text for each in made_texts(configuration, 40)] for _ in range(2))
    assert first == second and len(set(first)) >= 38
    assert any("\n" in text for text in first) and any("…" in text for text in first)
