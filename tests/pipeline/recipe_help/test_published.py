"""The published recipes by name: templates that parse, rows that hang together, the diff, the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lineage.recipe import parse_table
from pipeline.cli.corpus.recipe import NAMED
from pipeline.cli.main import main
from pipeline.recipe import PipelineRecipe, check_steps_of, checked
from pipeline.recipe_help.new import TEMPLATES
from pipeline.recipe_help.published import PUBLISHED, with_tables
from stages.dedup.minhash import scheme_name

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"


def recipe(name: str) -> PipelineRecipe:
    return checked(parse_table(PipelineRecipe, TEMPLATES[name].tables))


def test_each_published_recipe_has_a_template_and_its_rows() -> None:
    assert tuple(PUBLISHED) == NAMED
    for name in NAMED:
        check_steps_of(recipe(name))
        for step in PUBLISHED[name].steps:
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
        step.step for step in PUBLISHED[name].steps if step.here != "same"
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
