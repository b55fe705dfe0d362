"""Each recipe that `sluice recipe new` knows, as a user meets it in an empty folder: written, checked, run from
a crawl to shards in one call, held beside its original."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.named import KINDS, NAMED, template
from tests.support.inputs.tiny_crawl import make_tiny_crawl

ROOT = Path(__file__).parents[3]
DATA = tuple(name for name in KINDS if kind_of(template(name).tables) == "data")
EXTRAS = {"fineweb2": "ftfy"}
"""Packages of an extra that a recipe's steps need."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the templates read, under the names that they have there, and nothing else."""
    folder: Path = tmp_path_factory.mktemp("fresh")
    for name in ("crawl", "texts", "code"):
        (folder / name).mkdir()
    make_tiny_crawl(folder / "crawl")
    for file in sorted((folder / "crawl").glob("*.jsonl")):
        file.rename(folder / "texts" / file.name)
    sources = sorted((ROOT / "stages" / "tokens").glob("*.py"))
    rows = {"path": [file.name for file in sources], "content": [file.read_text() for file in sources]}
    pq.write_table(pa.table(rows), folder / "code" / "a.parquet")
    return folder


@pytest.mark.parametrize("name", DATA)
def test_a_recipe_of_each_name_runs_in_one_call(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name])
    monkeypatch.chdir(here)
    assert main(["recipe", "new", name, "--to", f"{name}.toml"]) == 0
    said = capsys.readouterr().out
    assert f"sluice recipe check {name}.toml, then sluice run {name}.toml" in said
    assert main(["recipe", "check", f"{name}.toml"]) == 0
    capsys.readouterr()
    out = f"out/{name}"
    call = ["run", f"{name}.toml", "--set", f"run.output={out}", "--set", 'ray.address="none"', "--json"]
    assert main(call) == 0
    summary = json.loads(capsys.readouterr().out)
    # FineWeb-2 has no English: it keeps the crawl's Italian pages.
    assert summary["num_kept"] > 0 and summary["num_unreadable"] == 0
    folder = Folder(out)
    assert read_index(folder).num_tokens == summary["num_tokens"] > 0
    assert verify(folder, verify_hooks(folder)).problems == ()
    if name not in NAMED:
        return
    for file in (f"{name}.toml", out):
        assert main(["recipe", "diff", file, "--against", name]) == 0
        shown = capsys.readouterr().out
        assert "What that recipe is not the same in as" in shown
    assert main(["recipe", "diff", f"{name}.toml", "--against", name]) == 0
    assert "  no difference\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", DATA)
def test_in_an_empty_folder_the_missing_inputs_are_told_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "new", name, "--to", "mine.toml"]) == 0
    capsys.readouterr()
    assert main(["run", "mine.toml", "--set", 'ray.address="none"']) == 2
    inputs = template(name).tables["source"][0]["inputs"][0]
    said = capsys.readouterr().err
    assert (
        f"{inputs!r} cannot be listed: the pattern matches no file ({tmp_path}/{inputs}). Name yours" in said
    )
    assert """by --set 'source.0.inputs=["/data/crawl/*.warc.gz"]'""" in said
    assert not (tmp_path / "out").exists()
