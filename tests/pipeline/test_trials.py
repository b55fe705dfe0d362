"""limit_documents and `run --try`: the first documents of each file, told and in balance, into a place of
their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline import same_run
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe.load import load, trial_of
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe

Sources = dict[str, tuple[str, ...]]
NONE = {"address": "none"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


def limited(out: str, sources: Sources, num: int | None, **tables: Any) -> dict[str, Any]:
    plain = recipe(out, sources, ray=NONE, **tables)
    for source in plain["source"]:
        source.update({} if num is None else {"limit_documents": num})
    return plain


def test_a_limited_run_balances_and_says_that_it_was_limited(sources: Sources, tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    summary = run(tmp_path, limited(out.url, sources, 5))
    assert summary["num_documents"] == 5 * 6
    assert not verify(out, verify_hooks(out)).problems
    [(documents,)] = query(out, "SELECT sum(num_documents)::INT FROM inputs").rows
    [(first_in,)] = query(out, "SELECT sum(num_in)::INT FROM steps WHERE position = 0").rows
    assert documents == first_in == 30
    report = out.read("report.html").decode()
    assert report.count('class="limited"') == 2 and "only the first 5 documents were read" in report


def test_the_documents_are_the_first_of_each_file(sources: Sources, tmp_path: Path) -> None:
    places = "SELECT warc_file, warc_offset FROM documents ORDER BY 1, 2"
    found = {}
    for num in (5, None):
        out = tmp_path / f"out-{num}"
        run(tmp_path / f"{num}", limited(str(out), sources, num))
        found[num] = [tuple(row) for row in query(Folder(str(out)), places).rows]
    files = {file for file, _ in found[None]}
    first = [place for file in sorted(files) for place in [one for one in found[None] if one[0] == file][:5]]
    assert found[5] == first


def test_another_limit_is_another_run_and_no_refilter_of_this_one(sources: Sources, tmp_path: Path) -> None:
    run(tmp_path, limited(str(tmp_path / "out"), sources, 5, run={"keep_text": True}))
    with pytest.raises(RecipeError, match=r"source\[0\]\.limit_documents is 4 now and was 5"):
        run(tmp_path, limited(str(tmp_path / "out"), sources, 4, run={"keep_text": True}))
    with pytest.raises(RecipeError, match=r"the reading of source .*limit_documents"):
        run(tmp_path, limited(str(tmp_path / "other"), sources, None), str(tmp_path / "out"))


def test_a_trial_leaves_the_whole_run_its_output_and_makes_room_for_the_next(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    path = str(write_recipe(tmp_path / "recipe.toml", limited(str(out), sources, None)))
    assert main(["run", path, "--try", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_documents"] == 18
    assert not out.exists()
    first = fingerprint(f"{out}-try")
    assert main(["run", path, "--try", "3"]) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err
    assert main(["run", path, "--try", "4", "--set", "quality.min_words=20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_documents"] == 24
    assert fingerprint(f"{out}-try") != first
    assert not verify(Folder(f"{out}-try"), verify_hooks(Folder(f"{out}-try"))).problems
    assert main(["run", path, "--try", "3"]) == 0
    assert fingerprint(f"{out}-try") == first
    assert main(["run", path]) == 0
    assert out.exists()


def test_a_trial_takes_the_place_of_no_whole_run(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = str(write_recipe(tmp_path / "whole.toml", limited(str(tmp_path / "out-try"), sources, None)))
    assert main(["run", whole]) == 0
    before = fingerprint(str(tmp_path / "out-try"))
    path = str(write_recipe(tmp_path / "recipe.toml", limited(str(tmp_path / "out"), sources, None)))
    assert main(["run", path, "--try", "3"]) == 2
    assert "limit_documents is 3 now and was not given" in capsys.readouterr().err
    assert fingerprint(str(tmp_path / "out-try")) == before


def test_a_trial_killed_while_it_makes_room_goes_on(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_recipe(tmp_path / "recipe.toml", limited(str(tmp_path / "out"), sources, None)))
    assert main(["run", path, "--try", "3"]) == 0

    class GoneError(BaseException):
        """The process is gone."""

    removed: list[str] = []
    remove = Folder.remove

    def gone_at_the_fifth(folder: Folder, name: str) -> None:
        removed.append(name)
        if len(removed) == 5:
            raise GoneError
        remove(folder, name)

    with monkeypatch.context() as patched:
        patched.setattr(same_run.Folder, "remove", gone_at_the_fifth)
        with pytest.raises(GoneError):
            main(["run", path, "--try", "4"])
    assert removed[0] == "index.json"
    assert main(["run", path, "--try", "4"]) == 0
    assert not verify(
        Folder(str(tmp_path / "out-try")), verify_hooks(Folder(str(tmp_path / "out-try")))
    ).problems


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--try", "0"], "--try 0: expected at least one document"),
        (["--try", "3", "--from", "out/x"], "--try goes without --from"),
        (["--set", "source.0.limit_documents=0"], "source[0].limit_documents = 0: expected at least 1"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(
    sources: Sources, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_recipe(tmp_path / "recipe.toml", limited(str(tmp_path / "out"), sources, None)))
    assert main(["run", path, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_trial_widens_no_limit(sources: Sources, tmp_path: Path) -> None:
    wanted = load(write_recipe(tmp_path / "recipe.toml", limited("s3://bucket/out/", sources, 5)))
    assert [source.limit_documents for source in trial_of(wanted, 9).source] == [5, 5]
    assert trial_of(wanted, 2).source[0].limit_documents == 2
    assert trial_of(wanted, 2).run.output == "s3://bucket/out-try"
