"""`sluice recipe`: files to start from that run, what is wrong with a file, and what differs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from lineage.recipe import as_plain
from pipeline.cli.main import main
from pipeline.recipe.load import load
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.differ import differences
from pipeline.recipe_help.named import KINDS, template
from pipeline.recipe_help.new import new_recipe
from stages.quality.options import limits
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from trainer.options import load_train_recipe


def written(folder: Path, kind: str, text: str | None = None) -> Path:
    path = folder / f"{kind}.toml"
    path.write_text(text if text is not None else new_recipe(kind))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_recipe_has_nothing_wrong_and_all_its_defaults_are_true(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, kind)
    assert main(["recipe", "check", str(path)]) == 0
    capsys.readouterr()
    spelt = re.sub(r"^#(?=\w+ = )", "", path.read_text(), flags=re.MULTILINE)
    assert spelt.count("\n#") < path.read_text().count("\n#")
    again = written(tmp_path, f"{kind}-spelt-out", spelt)
    if kind_of(template(kind).tables) == "data":
        assert differences(load(path), load(again)) == []
        assert limits(load(again).quality) == limits(load(path).quality)
    else:
        assert as_plain(load_train_recipe(again)) == as_plain(load_train_recipe(path))


def test_texts_become_shards_and_a_training_in_three_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small_ray: None
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


def test_a_recipe_is_checked_as_set_would_change_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "text")
    assert main(["recipe", "check", str(path), "--set", "dedup.threshold=7"]) == 2
    assert capsys.readouterr().out.startswith(f"{path}: dedup.threshold = 7.0: expected at most 1")
    assert main(["recipe", "check", str(path), "--set", "source.0.name=other"]) == 0


def test_a_wrong_recipe_is_named_by_file_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_group_of_parameters_that_the_model_lacks_is_named_by_file_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "train")
    path.write_text(path.read_text() + '\n[[train.optimizer.group]]\nmatch = "sink"\nlr_factor = 0.5\n')
    line = path.read_text().split("\n").index('match = "sink"') + 1
    assert main(["recipe", "check", str(path)]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f'{path}:{line}:1: train.optimizer.group[0].match = "sink": no parameter')
    assert "expected one of matrix, embedding, norm, or a pattern" in told
    assert main(["recipe", "check", str(path), "--set", "train.model=gpt-oss-debug"]) == 0


@pytest.mark.parametrize(
    ("value", "column", "says"),
    [
        ("1" + "0" * 400, 2, "limits.max_document_bytes = 1000"),
        ("1" + "0" * 5000, 23, "a number of thousands of digits"),
        ("[" * 3000 + "]" * 3000, 23, "nested too deep"),
    ],
)
def test_what_no_recipe_can_hold_is_named_by_file_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, column: int, says: str
) -> None:
    path = tmp_path / "r.toml"
    plain = '[run]\nname = "a"\noutput = "out"\n[[source]]\nname = "web"\ninputs = ["a"]\n'
    path.write_text(f"{plain}[limits]\n max_document_bytes = {value}\n")
    assert main(["recipe", "check", str(path)]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f"{path}:8:{column}: ") and says in told
    assert main(["run", str(path)]) == 2
    told = capsys.readouterr().err
    assert says in told and len(told) < 500


def test_two_recipes_differ_in_effective_values_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path, "text"), tmp_path / "b.toml"
    plain = tomllib.loads(a.read_text())
    assert "min_words" not in plain["quality"]
    text = a.read_text().replace("#min_words = 50", "min_words = 50").replace("#seed = 0", "seed = 3")
    b.write_text(text.replace("[quality]", '[quality]\nvariant = "dolma"').replace("#variant", "# variant"))
    assert main(["recipe", "diff", str(a), str(b), "--json"]) == 0
    found = {
        entry["key"]: (entry["a"], entry["b"]) for entry in json.loads(capsys.readouterr().out)["differences"]
    }
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


CLASSIFIER = '[[classifier]]\nname = "{}"\nmodel = "a.bin"\nlabel = "high"\nthreshold = 0.4\n'
SOURCE = '[[source]]\nname = "{}"\ninputs = ["a.jsonl"]\n'


@pytest.mark.parametrize(("key", "table"), [("classifier", CLASSIFIER), ("source", SOURCE)])
def test_tables_in_another_order_are_a_difference(
    key: str, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[run]\nname = "a"\noutput = "out"\n' + SOURCE.format("web") * (key == "classifier")
    a, b = (written(tmp_path, kind, text + "".join(map(table.format, kind))) for kind in ("xyz", "zxy"))
    assert main(["recipe", "diff", str(a), str(b)]) == 0
    assert capsys.readouterr().out == f'{key}: the order differs: ["x", "y", "z"] → ["z", "x", "y"]\n'
    assert main(["recipe", "diff", str(a), str(b), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert found == {"key": key, "a": list("xyz"), "b": list("zxy"), "is_order": True}


def test_a_table_more_is_no_other_order_of_the_rest(tmp_path: Path) -> None:
    text = '[run]\nname = "a"\noutput = "out"\n' + SOURCE.format("web")
    none, one, two = (
        written(tmp_path, f"f{s}", text + "".join(map(CLASSIFIER.format, s))) for s in ("", "y", "xy")
    )
    assert [found.key for found in differences(load(one), load(two))] == ["classifier.x"]
    assert [found.key for found in differences(load(none), load(two))] == ["classifier.x", "classifier.y"]


def test_lists_of_tables_without_names_are_shown_whole_where_their_order_differs(tmp_path: Path) -> None:
    sides = ['[{out="a"},{out="b"}]', '[{out="b"},{out="a"}]']
    texts = [new_recipe("train", [f"train.data={data}"]) for data in sides]
    a, b = (load_train_recipe(written(tmp_path, f"t{n}", text)) for n, text in enumerate(texts))
    assert [found.key for found in differences(a, b)] == ["train.data"]


def test_both_values_of_a_threshold_are_shown_as_its_type_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path, "text")
    changed = ["quality.min_words=8", "quality.min_word_length=2", "quality.max_top_2_gram=1"]
    b = written(tmp_path, "changed", new_recipe("text", changed))
    assert main(["recipe", "diff", str(a), str(b)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "quality.max_top_2_gram: 0.2 → 1.0",
        "quality.min_word_length: 3.0 → 2.0",
        "quality.min_words: 50 → 8",
    ]


def test_a_recipe_with_a_byte_order_mark_has_nothing_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "text", "\ufeff" + new_recipe("text"))
    assert main(["recipe", "check", str(path)]) == 0
    capsys.readouterr()
    path.write_text("\ufeff[run]\nnmae = 1\n[[source]]\n")
    assert main(["recipe", "check", str(path)]) == 2
    assert f"{path}:2:1: unknown key 'run.nmae'" in capsys.readouterr().out


def test_a_recipe_is_written_with_a_table_of_a_chosen_name_and_a_list_of_tables(tmp_path: Path) -> None:
    data, train = tmp_path / "n1.toml", tmp_path / "n2.toml"
    assert main(["recipe", "new", "fineweb", "--set", "ray.stages.read.cpus=2", "--to", str(data)]) == 0
    assert load(data).ray.stages["read"].cpus == 2
    outputs = 'train.data=[{out="a"},{out="b",prefix="c"}]'
    assert main(["recipe", "new", "train", "--set", outputs, "--to", str(train)]) == 0
    assert [(table.out, table.prefix) for table in load_train_recipe(train).train.outs] == [
        ("a", ""),
        ("b", "c"),
    ]


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
