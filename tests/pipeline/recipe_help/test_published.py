"""The published recipes by name: templates that parse, rows that hang together, the diff, the page."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from lineage.recipe import parse_table
from pipeline.cli.main import main
from pipeline.recipe.checks import check_steps_of, checked
from pipeline.recipe.tables import PipelineRecipe
from pipeline.recipe_help.keys import recipe_keys
from pipeline.recipe_help.named import KINDS, NAMED, published, template
from pipeline.recipe_help.new import new_recipe
from pipeline.recipe_help.published import with_tables
from stages.dedup.minhash import scheme_name
from stages.quality.options import RULE_SETS
from stages.quality.step import every_rule

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "recipes.md"


def recipe(name: str) -> PipelineRecipe:
    return checked(parse_table(PipelineRecipe, template(name).tables))


def test_each_published_recipe_has_a_template_and_its_rows() -> None:
    files = {path.name for path in (ROOT / "recipes" / "named").iterdir()}
    assert files == {f"{name}.toml" for name in KINDS} | {f"{name}.departures.toml" for name in NAMED}
    for name in NAMED:
        check_steps_of(recipe(name))
        for step in published(name).steps:
            assert (step.here == "same") == (not step.reason), step
            assert "|" not in step.reason and not step.reason.endswith("."), step


def test_the_bands_are_those_of_each() -> None:
    found = {name: recipe(name).dedup for name in NAMED}
    fineweb, dolma = found["fineweb"], found["dolma3"]
    assert found["fineweb2"] == fineweb
    assert (fineweb.bands, fineweb.rows, fineweb.verify) == (14, 8, False)
    assert scheme_name(fineweb) == "sluice-1/affine32/xxh3/perm=112/shingle=5/normalise=fineweb"
    assert (dolma.bands, dolma.rows, dolma.verify, dolma.threshold, dolma.keep) == (
        26,
        11,
        True,
        0.8,
        "newest",
    )
    assert scheme_name(dolma) == "sluice-1/affine32/xxh3/perm=286/shingle=5/normalise=slimpajama"


@pytest.mark.parametrize("name", NAMED)
def test_a_new_recipe_changes_nothing_and_each_departure_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    assert main(["recipe", "new", name, "--set", "run.output=out/other", "--to", str(path)]) == 0
    capsys.readouterr()
    assert main(["recipe", "diff", str(path), "--against", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == []
    assert [row["step"] for row in told["departures"]] == [
        step.step for step in published(name).steps if step.here != "same"
    ]
    assert all(row["reason"] for row in told["departures"])


def test_what_a_file_changes_is_told_with_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    changed = ["--set", "dedup.verify=true", "--set", "quality.min_words=30", "--set", "source.0.limit=3"]
    assert main(["recipe", "new", "fineweb", *changed, "--to", str(path)]) == 0
    with path.open("a") as file:
        file.write('\n[[source]]\nname = "bare"\ninputs = ["x"]\nsteps = ["parse", "identity"]\n')
    capsys.readouterr()
    assert main(["recipe", "diff", str(path), "--against", "fineweb"]) == 0
    shown = capsys.readouterr().out
    assert "dedup.verify: false → true" in shown and "quality.min_words: 50 → 30" in shown
    assert "source.bare.steps: " in shown and "source.web" not in shown and "run.output" not in shown
    assert "URL lists, near: UT1's hosts" in shown


CHANGES = [
    # a published recipe, a change, and the steps that it belongs to
    ("fineweb", "dedup.verify=true", ["near-duplicates"]),
    ("fineweb", "dedup.shingle=7", ["shingles"]),
    ("fineweb", 'url.match="words"', ["URL lists"]),
    ("fineweb", "quality.min_words=30", ["Gopher's quality rules"]),
    ("fineweb", "quality.max_top_3_gram=0.1", ["Gopher's repetition rules"]),
    ("fineweb", "quality.language.en.c4_min_sentences=1", ["C4's rules"]),
    ("fineweb", 'quality.rules=["gopher_repetition", "gopher_quality", "c4", "length"]', ["FineWeb's rules"]),
    ("fineweb", 'quality.rules=["gopher_quality", "gopher_repetition", "c4", "fineweb"]',
     ["Gopher's repetition rules", "Gopher's quality rules", "C4's rules", "FineWeb's rules"]),
    ("fineweb", 'source.0.steps=["url", "parse", "identity", "language", "quality"]', ["personal data"]),
    ("fineweb2", "repeat.table={1 = 1, 2 = 9}", ["rehydration"]),
    ("fineweb2", 'language.score_table="fineweb2"', ["language"]),
    ("dclm", 'quality.rules=["newlines", "gopher_quality", "gopher_repetition", "line_edits"]', ["URLs in texts"]),
    ("dclm", "quality.line_edits_max_removed_words=0.1", ["line edits"]),
    ("dclm", 'dedup.inside.method="paragraph"', ["paragraph duplicates"]),
    ("dolma3", 'dedup.inside.method="substring"', ["substrings"]),
    ("dolma3", "quality.madlad_min_sentences=2", ["MADLAD's rules 2 and 5"]),
    ("dolma3", 'dedup.keep="longest"', ["near-duplicates"]),
    ("code", "quality.code_max_lines=9", ["lines", "data formats"]),
    ("code", 'pii.kinds=["email"]', ["personal data"]),
    ("code", 'quality.ledger="all"', []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "steps"), CHANGES)
def test_a_changed_key_names_the_steps_of_the_published_recipe_that_depend_on_it(
    name: str, change: str, steps: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(new_recipe(name, [change]))
    assert main(["recipe", "diff", str(path), "--against", name, "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert {step for each in differences for step in each["steps"]} == set(steps)
    assert differences
    assert main(["recipe", "diff", str(path), "--against", name]) == 0
    assert f"[{', '.join(steps) or 'none of its steps'}]" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMED)
def test_every_pattern_of_a_step_matches_a_key_and_every_threshold_has_a_step(name: str) -> None:
    keys = {key.name for key in recipe_keys() if key.recipe == "data"}
    keys |= {f"quality.rules.{each}" for each in RULE_SETS} | {"classifier.", "bucket."}
    steps = published(name).steps
    patterns = {pattern for step in steps for pattern in step.keys}
    assert [pattern for pattern in patterns if not any(fnmatchcase(key, pattern) for key in keys)] == []
    thresholds = [
        key for sets in every_rule(recipe(name).quality) for rule in sets.rules for key in rule.keys
    ]
    assert [key for key in thresholds if not published(name).steps_of([key])] == []


def test_a_diff_wants_one_thing_to_compare_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    assert main(["recipe", "new", "train", "--to", str(path)]) == 0
    assert main(["recipe", "diff", str(path)]) == 2
    assert main(["recipe", "diff", str(path), str(path), "--against", "fineweb"]) == 2
    assert main(["recipe", "diff", str(path), "--against", "fineweb"]) == 2
    assert "is a training recipe" in capsys.readouterr().err


def test_the_page_is_as_the_rows_make_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "make docs writes it anew"
