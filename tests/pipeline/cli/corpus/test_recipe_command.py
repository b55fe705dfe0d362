"""`sluice recipe`: files to start from that run, what is wrong with a file, and what differs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from lineage.recipe import as_plain, load_recipe
from pipeline.cli.main import main
from pipeline.recipe import load
from pipeline.recipe_help.differ import differences
from pipeline.recipe_help.new import TEMPLATES, new_recipe
from stages.quality.options import limits
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from trainer.options import TrainRecipe


def written(folder: Path, kind: str, text: str | None = None) -> Path:
    path = folder / f"{kind}.toml"
    path.write_text(text if text is not None else new_recipe(kind))
    return path


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_new_recipe_has_nothing_wrong_and_all_its_defaults_are_true(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, kind)
    assert main(["recipe", "check", str(path)]) == 0
    capsys.readouterr()
    spelt = re.sub(r"^#(?=\w+ = )", "", path.read_text(), flags=re.MULTILINE)
    assert spelt.count("\n#") < path.read_text().count("\n#")
    again = written(tmp_path, f"{kind}-spelt-out", spelt)
    if TEMPLATES[kind].kind == "data":
        assert differences(load(path), load(again)) == []
        assert limits(load(again).quality) == limits(load(path).quality)
    else:
        assert as_plain(load_recipe(again, TrainRecipe)) == as_plain(load_recipe(path, TrainRecipe))


def test_texts_become_shards_and_a_training_in_three_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tiny_crawl(tmp_path)
    monkeypatch.chdir(tmp_path)
    change = ["--set", 'source.0.inputs=["posts-*.jsonl"]', "--set", "run.output=out", "--to", "text.toml"]
    assert main(["recipe", "new", "text", *change]) == 0
    assert main(["run", "text.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["num_kept"] > 20


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "train", "mine")
    assert main(["recipe", "new", "train", "--to", str(path)]) == 2
    assert "there already" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_a_wrong_recipe_is_named_by_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "text")
    path.write_text(path.read_text().replace("[dedup]", "[dedup]\n threshhold = 0.7"))
    line = path.read_text().split("\n").index(" threshhold = 0.7") + 1
    assert main(["recipe", "check", str(path)]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f"{path}:{line}:2: unknown key 'dedup.threshhold'")
    assert "did you mean 'dedup.threshold'" in told
    assert main(["recipe", "check", str(path), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["line"], problem["column"], problem["key"]) == (line, 2, "dedup.threshhold")


def test_two_recipes_differ_in_effective_values_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path, "text"), tmp_path / "b.toml"
    plain = tomllib.loads(a.read_text())
    assert "min_words" not in plain["quality"]
    text = a.read_text().replace("#min_words = 50", "min_words = 50").replace("#seed = 0", "seed = 3")
    b.write_text(text.replace("[quality]", '[quality]\nvariant = "dolma"').replace("#variant", "# variant"))
    assert main(["recipe", "diff", str(a), str(b), "--json"]) == 0
    found = {entry["key"]: (entry["a"], entry["b"]) for entry in json.loads(capsys.readouterr().out)["differences"]}
    assert found.pop("run.seed") == (0, 3)
    assert found.pop("quality.variant") == ("datatrove", "dolma")
    assert found.pop("quality.max_duplicate_line_chars") == (0.2, 0.3)
    assert "quality.min_words" not in found
    assert main(["recipe", "diff", str(a), str(a)]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_source_that_one_recipe_lacks_is_one_difference(tmp_path: Path) -> None:
    a, b = written(tmp_path, "text"), tmp_path / "b.toml"
    b.write_text(a.read_text() + '[[source]]\nname = "more"\ninputs = ["more.jsonl"]\n')
    ((key, before),) = [(found.key, found.a) for found in differences(load(a), load(b))]
    assert (key, before) == ("source.more", None)


def test_a_data_recipe_and_a_training_recipe_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    both = [str(ROOT / "recipes" / name) for name in ("crawl.toml", "train.toml")]
    assert main(["recipe", "diff", *both]) == 2
    assert "give two of a kind" in capsys.readouterr().err


def test_keys_of_no_such_name_suggest_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "keys", "qualty"]) == 2
    assert "did you mean 'quality'" in capsys.readouterr().err
    assert main(["recipe", "keys", "quality.min_words", "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert (key["default"], key["shown_default"], key["unit"]) == (None, "50", "words")
    assert "Gopher" in key["source"]
