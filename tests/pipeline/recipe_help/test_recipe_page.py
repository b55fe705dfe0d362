"""docs/recipe.md and `sluice recipe keys` against the tables of the code."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest

from lineage.recipe import as_plain, parse_table
from pipeline.recipe_help.check import check_recipe
from pipeline.recipe_help.keys import SHAPES, Kind, RecipeKey, RecipeTable, recipe_keys, recipe_tables
from pipeline.recipe_help.page import page
from pipeline.recipe_help.rules import with_tables
from pipeline.recipe_help.tables import EXAMPLES, PARAGRAPHS
from stages.quality.options import QualityTable, limits
from tests.support.checkout import ROOT

LEAST = {
    "data": '[run]\nname = "a"\noutput = "out"\n[[source]]\nname = "web"\ninputs = ["a.warc.gz"]\n',
    "train": '[run]\nname = "a"\n[train]\ndata = "out"\noutput = "run"\nmodel = "debug"\nseq_len = 64\n'
    "global_batch = 2\nsteps = 3\n",
}
TABLES = [table for kind in SHAPES for table in recipe_tables(kind)]
KEYS = recipe_keys()


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_the_tables_of_rules_are_what_the_code_says() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == with_tables(text), "run `make docs`"
    assert (
        "| `c4.javascript` | the word `javascript` on a line | yes | not datatrove, paper, dclm, fineweb2 |"
        in text
    )
    with pytest.raises(AssertionError, match="lacks the lines"):
        with_tables("# Rules\n")


def test_each_table_has_a_paragraph_and_an_example_and_none_is_left_over() -> None:
    places = {(table.recipe, table.name) for table in TABLES}
    assert places == PARAGRAPHS.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.recipe} {table.name}")
def test_the_example_of_a_table_is_part_of_a_recipe_that_parses(table: RecipeTable) -> None:
    example = EXAMPLES[table.recipe, table.name]
    top = table.name.split(".")[0]
    chosen = "de" if ".language." in table.name else "compare"
    assert table.header.replace("NAME", chosen) in example
    plain, added = tomllib.loads(LEAST[table.recipe]), tomllib.loads(example)
    if table.name.startswith("train."):
        added = {"train": {**plain["train"], **added["train"]}}
    assert top in added
    recipe = parse_table(SHAPES[table.recipe], {**plain, **added})
    assert getattr(recipe, top) is not None


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.recipe} {key.name}")
def test_a_key_has_help_and_the_default_that_a_recipe_gets(key: RecipeKey) -> None:
    assert key.help
    if key.is_required or key.table in (
        "source",
        "classifier",
        "bucket",
        "step",
        "ray.stages.NAME",
        "quality.language.NAME",
        "repeat.language.NAME",
        "train.data",
        "train.mixture",
        "train.optimizer.group",
        "train.eval",
    ):
        return
    text = LEAST[key.recipe] + ("[mix]\n" if key.name.startswith("mix.") else "")
    value = as_plain(parse_table(SHAPES[key.recipe], tomllib.loads(text)))
    for part in key.name.split("."):
        value = value.get(part)
    assert value == key.default


def test_the_defaults_of_thresholds_are_those_of_each_variant() -> None:
    shown = {key.own_name: key.shown_default for key in KEYS if key.table == "quality"}
    assert shown["min_words"] == "50"
    assert shown["c4_min_sentences"] == "5 (paper, dclm: 3)"
    for variant in ("datatrove", "paper", "dclm", "dolma"):
        for name, value in limits(QualityTable(variant=variant)).items():  # type: ignore[arg-type]
            assert f"{value:g}" in shown[name]


def test_every_threshold_names_its_source_and_every_key_stands_once() -> None:
    thresholds = limits(QualityTable()).keys()
    assert not [
        key.name for key in KEYS if key.own_name in thresholds and key.table == "quality" and not key.source
    ]
    assert len({(key.recipe, key.name) for key in KEYS}) == len(KEYS) > 150


def test_keys_are_found_by_their_beginning() -> None:
    assert {key.table for key in recipe_keys("dedup.")} == {"dedup", "dedup.inside"}
    assert {key.table for key in recipe_keys("[train.float")} == {"train.float8"}
    assert {key.recipe for key in recipe_keys("run.")} == {"data", "train"}


def test_all_faults_of_a_recipe_are_found_each_in_its_place() -> None:
    text = """[run]
nmae = "x"
output = 3
[[source]]
name = "a"
inputs = []
[[source]]
  limit = 0
[quality]
variant = "dcml"
rules = ["c4", "c5"]
"""
    kind, problems = check_recipe(text)
    assert kind == "data"
    found = {(problem.key, dataclasses.astuple(problem.position or ())) for problem in problems}  # type: ignore[arg-type]
    assert found == {
        ("run.name", (1, 1)),
        ("run.nmae", (2, 1)),
        ("run.output", (3, 1)),
        ("source[1].name", (7, 1)),
        ("source[1].inputs", (7, 1)),
        ("source[1].limit", (8, 3)),
        ("quality.variant", (10, 1)),
        ("quality.rules[1]", (11, 16)),
    }
    assert "did you mean 'run.name'" in next(p.message for p in problems if p.key == "run.nmae")


@pytest.mark.parametrize(("kind", "added", "line", "words"), [
    ("data", "[run\n", 7, "not TOML"),
    ("data", '[[source]]\nname = "web"\ninputs = ["b"]\n', 8, "given twice"),
    ("data", '[[source]]\nname = "b"\nsteps = ["parse", "prase"]\ninputs = ["b"]\n', 9, "unknown step 'prase'"),
    ("data", "[dedup]\nbands = 99\n", 8, "dedup.bands = 99"),
    ("data", '[quality]\nvariant = "dolma"\nc4_min_sentences = 3\n', 9, "no such rule"),
    ("data", "[quality]\nmax_bullet_lines = 90\n", 8, "max_bullet_lines = 90.0: expected a share of at most 1"),
    ("data", "[quality]\nmin_words = 9\nmax_words = 8\n", 8, "min_words = 9 is above quality.max_words = 8"),
    ("data", '[quality]\nrules = ["c4", "c4"]\n', 8, "names 'c4' twice"),
    ("data", '[language]\nkeep = ["en", "xmf"]\n', None, "language 'xmf' is kept"),
    ("data", '[pii]\nphone_region = "UK"\n', 8, "phone_region = 'UK': expected"),
    ("train", "workers = 3\n[train.parallel]\ntp = 2\n", 10, "train.workers = 3"),
    ("train", "[train.optimizer]\nlr = 0\n", 11, "more than 0"),
])  # fmt: skip
def test_a_fault_is_told_with_its_line(kind: Kind, added: str, line: int | None, words: str) -> None:
    _, (problem,) = check_recipe(LEAST[kind] + added)
    assert words in problem.message
    assert (problem.position.line if problem.position else None) == line


def test_a_model_of_no_such_name_is_a_fault_with_the_nearest_name() -> None:
    text = LEAST["train"].replace('"debug"', '"125m"')
    _, (problem,) = check_recipe(text)
    assert problem.key == "train.model"
    assert "did you mean '125M'" in problem.message
    assert problem.position is not None
    assert problem.position.line == 6


def test_a_file_that_is_no_recipe_is_told_from_one_that_is_both() -> None:
    assert "neither" in check_recipe("[plan]\n")[1][0].message
    assert "both" in check_recipe(LEAST["data"] + "[train]\n")[1][0].message
    assert [check_recipe(text) for text in LEAST.values()] == [("data", []), ("train", [])]
