"""Paths of a recipe and of a call are those that a shell would make of them; what names nothing is refused by
name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage.recipe import RecipeError, expanded_path, load_recipe
from pipeline.cli.commands import parse_command
from pipeline.cli.main import main
from pipeline.recipe.tables import PipelineRecipe
from trainer.options import load_train_recipe


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.delenv("NOT_SET", raising=False)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("~", "/home/me"),
        ("~/x", "/home/me/x"),
        ("$SCRATCH/x", "/scratch/me/x"),
        ("${SCRATCH}/x", "/scratch/me/x"),
        ("/data/${SCRATCH}x/*.gz", "/data//scratch/mex/*.gz"),
        ("file://~/x", "file:///home/me/x"),
        ("out/~x", "out/~x"),
        ("cost$/5$", "cost$/5$"),
        ("s3://bucket/~/$SCRATCH", "s3://bucket/~/$SCRATCH"),
        ("https://${SLUICE_SECRET_LOGIN}@host/a", "https://${SLUICE_SECRET_LOGIN}@host/a"),
        ("bundled", "bundled"),
    ],
)
def test_a_path_is_what_a_shell_makes_of_it(given: str, path: str) -> None:
    assert expanded_path(given, "run.output") == path
    assert expanded_path(path, "run.output") == path, "what a run records is read again as it is"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("$NOT_SET/x", "run.output = '$NOT_SET/x': the variable NOT_SET is not set"),
        ("/a/${NOT_SET}", "run.output = '/a/${NOT_SET}': the variable NOT_SET is not set"),
        ("~nobody-here/x", "run.output = '~nobody-here/x': there is no home of 'nobody-here' here"),
        ("~a\0b/x", "run.output = '~a\\x00b/x': no file's name holds the character NUL"),
    ],
)
def test_what_names_nothing_is_refused_by_key_and_name(given: str, says: str) -> None:
    with pytest.raises(RecipeError) as refused:
        expanded_path(given, "run.output")
    assert str(refused.value).startswith(says)


DATA = """
[run]
name = "r"
output = "~/out"
[[source]]
name = "s"
inputs = ["$SCRATCH/*.jsonl"]
[url]
block_hosts = ["~/hosts"]
[dedup]
against = ["~/earlier"]
[purges]
honour = ["~/earlier"]
[decontaminate]
against = ["$SCRATCH/bench.jsonl"]
[language]
model = "~/lid.bin"
[tokenize]
encoding = "~/my.tiktoken"
[[classifier]]
name = "c"
model = "~/c.bin"
label = "good"
threshold = 0.5
"""


def test_every_key_of_a_data_recipe_that_is_a_path_is_expanded(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(DATA)
    recipe = load_recipe(tmp_path / "r.toml", PipelineRecipe, ["url.block_words=['~/words']"])
    assert recipe.run.output == "/home/me/out"
    assert recipe.source[0].inputs == ("/scratch/me/*.jsonl",)
    assert recipe.url.block_hosts == ("/home/me/hosts",)
    assert recipe.url.block_words == ("/home/me/words",)
    assert recipe.dedup.against == recipe.purges.honour == ("/home/me/earlier",)
    assert recipe.decontaminate.against == ("/scratch/me/bench.jsonl",)
    assert (recipe.language.model, recipe.classifier[0].model) == ("/home/me/lid.bin", "/home/me/c.bin")
    assert recipe.tokenize.encoding == "/home/me/my.tiktoken"


@pytest.mark.parametrize("data", ['"~/out"', '[{out = "~/out", prefix = "$a"}]'])
def test_every_key_of_a_training_recipe_that_is_a_path_is_expanded(tmp_path: Path, data: str) -> None:
    (tmp_path / "t.toml").write_text(
        f'[run]\nname = "$NOT_SET"\n[train]\ndata = {data}\noutput = "~/run"\nmodel = "$SCRATCH/m.json"\n'
        'seq_len = 64\nglobal_batch = 2\nsteps = 4\ninit_from = "~/w"\n[train.checkpoint]\npath = "~/c"\n'
        '[train.cache]\ndir = "$SCRATCH/cache"\n[mix.proxy]\nmodel = "~/p.json"\n'
    )
    recipe = load_train_recipe(tmp_path / "t.toml")
    train = recipe.train
    assert [entry.out for entry in train.outs] == ["/home/me/out"]
    assert (train.output, train.model, train.init_from) == (
        "/home/me/run",
        "/scratch/me/m.json",
        "/home/me/w",
    )
    assert (train.checkpoint.path, train.cache.dir) == ("/home/me/c", "/scratch/me/cache")
    assert recipe.mix is not None and recipe.mix.proxy.model == "/home/me/p.json"
    assert recipe.run.name == "$NOT_SET", "a name is no path"


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (["run", "r.toml", "--from=~/out"], "from_output", "/home/me/out"),
        (["export", "~/out", "--to=~/x", "--format", "hf"], "to", "/home/me/x"),
        (["verify", "$SCRATCH/out"], "out", "/scratch/me/out"),
        (["purge", "OUT", "--from=~/list.csv", "--reason", "$5", "--by", "~me"], "scan", "/home/me/list.csv"),
        (["purge", "OUT", "--from=~/list.csv", "--reason", "$NOT_SET", "--by", "~me"], "reason", "$NOT_SET"),
    ],
)
def test_the_paths_of_a_call_are_expanded_and_nothing_else(call: list[str], name: str, value: str) -> None:
    assert getattr(parse_command(call[0], call[1:]), name) == value


def test_a_call_with_a_variable_that_is_not_set_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "$NOT_SET/out"]) == 2
    assert "sluice verify: OUT = '$NOT_SET/out': the variable NOT_SET is not set" in capsys.readouterr().err
