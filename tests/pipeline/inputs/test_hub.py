"""Inputs on a Hugging Face Hub, which is served on loopback: pinned to a commit, private, and over bad connections."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage import clients as storage
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline import process
from pipeline.inputs.files import list_inputs, open_input
from pipeline.inputs.retries import Retries
from pipeline.inputs.revisions import Revisions
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load
from pipeline.recipe.tables import SourceTable
from tests.support.outputs.logical_digest import logical_digest
from tests.support.outputs.runs import recipe, run, write_recipe
from tests.support.stores.hub import TOKEN, Hub, hub_server

FAST = Retries(attempts=4, backoff_seconds=0.01)
NAME = "someone/pages"
ENGLISH = "The lighthouse keeper wrote down the weather of every day, and nobody had read his books since. "


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server(monkeypatch) as hub:
        yield hub


def rows(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text, "id": text[:20]}).encode() + b"\n" for text in texts)


def source(*inputs: str) -> SourceTable:
    return SourceTable(name="hub", inputs=inputs)


def plain(out: Path, *inputs: str) -> dict[str, Any]:
    made = recipe(str(out), {"hub": inputs}, dedup={"near": False})
    made["source"][0]["steps"] = ["url", "parse", "pii", "dedup.url", "dedup.exact"]
    del made["language"]
    return made


FILES = {"data/a.jsonl": rows("one", "two"), "data/b.jsonl": rows("three"), "README.md": b"a page"}


def test_files_of_a_repository_are_listed_at_the_commit_that_its_revision_names(hub: Hub) -> None:
    commit = hub.dataset(NAME, FILES).refs["main"]
    found = list_inputs(source(f"hf://datasets/{NAME}/data/*.jsonl"))
    assert [(each.name, each.url, each.size) for each in found] == [
        (name, f"hf://datasets/{NAME}@{commit}/data/{name}", len(FILES[f"data/{name}"]))
        for name in ("a.jsonl", "b.jsonl")
    ]
    for each in found:
        with open_input(each) as stream:
            assert stream.read() == FILES[f"data/{each.name}"]


def test_a_list_names_files_whose_names_hold_what_would_end_the_path_of_a_web_address(
    hub: Hub, tmp_path: Path
) -> None:
    files = {f"data/a{mark}b.jsonl": rows(mark) for mark in "#?% "}
    commit = hub.dataset(NAME, files).refs["main"]
    (tmp_path / "all.paths").write_text("".join(f"hf://datasets/{NAME}/{name}\n" for name in files))
    found = list_inputs(source(str(tmp_path / "all.paths")))
    assert {each.name: open_input(each).read() for each in found} == {
        f"{NAME}@{commit}/{name}": data for name, data in files.items()
    }


@pytest.mark.parametrize("revision", ["v1.0", "refs/convert/parquet", "refs%2Fconvert%2Fparquet"])
def test_a_tag_and_a_special_ref_name_their_commit(hub: Hub, revision: str) -> None:
    repository = hub.dataset(NAME, {})
    commit = repository.commit(FILES, revision.replace("%2F", "/"))
    (found,) = list_inputs(source(f"hf://datasets/{NAME}@{revision}/data/a.jsonl"))
    assert found.url == f"hf://datasets/{NAME}@{commit}/data/a.jsonl"


def test_a_model_repository_has_no_word_before_its_name(hub: Hub) -> None:
    repository = hub.dataset(NAME, FILES)
    hub.repositories[f"models/{NAME}"] = hub.repositories.pop(f"datasets/{NAME}")
    (found,) = list_inputs(source(f"hf://{NAME}/data/a.jsonl"))
    assert found.url == f"hf://{NAME}@{repository.refs['main']}/data/a.jsonl"
    assert open_input(found).read() == FILES["data/a.jsonl"]


def test_a_bucket_has_no_commit(hub: Hub) -> None:
    hub.buckets[NAME] = dict(FILES)
    revisions = Revisions()
    found = list_inputs(source(f"hf://buckets/{NAME}/data/*.jsonl"), revisions)
    assert [each.url for each in found] == [f"hf://buckets/{NAME}/data/{name}.jsonl" for name in "ab"]
    assert open_input(found[1]).read() == FILES["data/b.jsonl"]
    assert revisions.commits == {}


def test_a_private_repository_is_read_with_the_token_and_not_without(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.dataset(NAME, FILES, is_private=True)
    with pytest.raises(RecipeError, match=r"no such repository or bucket, or hides it: .* set HF_TOKEN"):
        list_inputs(source(f"hf://datasets/{NAME}/data/a.jsonl"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (found,) = list_inputs(source(f"hf://datasets/{NAME}/data/a.jsonl"))
    assert open_input(found).read() == FILES["data/a.jsonl"]
    assert TOKEN not in repr(found)
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    with pytest.raises(OSError, match="the server answers 401"):
        open_input(found)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (f"hf://datasets/{NAME}@v9/data/a.jsonl", "no such revision"),
        (f"hf://datasets/{NAME}/data/absent.jsonl", "there is no file"),
        (f"hf://datasets/{NAME}/data/*.parquet", "matches no file"),
        (f"hf://datasets/{NAME}/data", "it is a folder"),
        ("hf://datasets/pages", "expected hf://datasets/OWNER/NAME"),
        ("hf://buckets/someone/none/a.jsonl", "no such repository or bucket"),
    ],
)
def test_what_is_not_there_is_named(hub: Hub, entry: str, said: str) -> None:
    hub.dataset(NAME, FILES)
    with pytest.raises(RecipeError, match=said) as raised:
        list_inputs(source(entry))
    assert "\n" not in str(raised.value)


def test_a_hub_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RecipeError, match="check HF_ENDPOINT and the network"):
        list_inputs(source(f"hf://datasets/{NAME}/data/a.jsonl"))


def test_a_download_goes_on_where_answers_break_off_and_where_the_hub_is_busy(hub: Hub) -> None:
    data = bytes(range(256)) * 20_000
    hub.dataset(NAME, {"big.bin": data})
    (found,) = list_inputs(source(f"hf://datasets/{NAME}/big.bin"))
    hub.cut, hub.busy, hub.counts["file"] = 3, 2, 0
    with open_input(found, FAST) as stream:
        assert stream.read() == data
    assert hub.counts["file"] == 6  # three that broke off, two refusals, and the last


def test_a_run_reads_the_commit_with_which_it_was_planned(hub: Hub, tmp_path: Path) -> None:
    texts = [f"{ENGLISH} Number {number}." for number in range(6)]
    repository = hub.dataset(NAME, {"a.jsonl": rows(*texts[:3]), "b.jsonl": rows(*texts[3:])})
    first = repository.refs["main"]
    asked = plain(tmp_path / "out", f"hf://datasets/{NAME}/*.jsonl")
    loaded = load(write_recipe(tmp_path / "recipe.toml", asked))

    class KilledError(Exception):
        pass

    class Dying(ProgressReporter):
        def say(self, line: str) -> None:
            if "input file" in line:
                repository.commit({"a.jsonl": rows("another text"), "c.jsonl": rows("one more")})
                raise KilledError

    with pytest.raises(KilledError):
        process.run(loaded, Dying(quiet=True))
    summary = run(tmp_path / "again", asked)
    assert summary["identity"]["revisions"] == {f"hf://datasets/{NAME}": first}
    out = Folder(asked["run"]["output"])
    assert sorted(read_table(out, "inputs")["file"].to_pylist()) == [
        f"hf://datasets/{NAME}@{first}/{name}.jsonl" for name in "ab"
    ]
    assert read_table(out, "documents").num_rows == 6
    # Finished, it stays that run; and one into another folder has the new commit.
    assert run(tmp_path / "done", asked)["identity"]["revisions"] == {f"hf://datasets/{NAME}": first}
    other = run(tmp_path / "new", plain(tmp_path / "other", f"hf://datasets/{NAME}/*.jsonl"))
    assert (
        other["identity"]["revisions"]
        == {f"hf://datasets/{NAME}": repository.refs["main"]}
        != {f"hf://datasets/{NAME}": first}
    )


def test_another_revision_in_the_recipe_is_refused(hub: Hub, tmp_path: Path) -> None:
    repository = hub.dataset(NAME, {"a.jsonl": rows(ENGLISH)})
    repository.commit({"a.jsonl": rows(ENGLISH + " More.")}, "v2")
    run(tmp_path / "first", plain(tmp_path / "out", f"hf://datasets/{NAME}/*.jsonl"))
    with pytest.raises(RecipeError, match="cannot be continued") as raised:
        run(tmp_path / "again", plain(tmp_path / "out", f"hf://datasets/{NAME}@v2/*.jsonl"))
    assert f"revisions: hf://datasets/{NAME}@v2 is new" in str(raised.value)


def test_a_commit_that_the_hub_has_no_more_is_named(hub: Hub, tmp_path: Path) -> None:
    repository = hub.dataset(NAME, {"a.jsonl": rows(ENGLISH)})
    asked = plain(tmp_path / "out", f"hf://datasets/{NAME}/*.jsonl")
    run(tmp_path / "first", asked)
    repository.commits.clear()
    repository.commit({"a.jsonl": rows("of another history")})
    with pytest.raises(
        RecipeError, match="which the Hub has no more: the repository's history was rewritten"
    ):
        run(tmp_path / "again", asked)


def test_shards_and_clean_texts_are_those_of_the_same_files_on_disk(hub: Hub, tmp_path: Path) -> None:
    data = rows(*(f"{ENGLISH} Number {number}." for number in range(5)))
    hub.dataset(NAME, {"a.jsonl": data})
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.jsonl").write_bytes(data)
    run(tmp_path / "1", plain(tmp_path / "hub-out", f"hf://datasets/{NAME}/*.jsonl"))
    run(tmp_path / "2", plain(tmp_path / "disk-out", str(tmp_path / "disk" / "*.jsonl")))
    ours, theirs = Folder(str(tmp_path / "hub-out")), Folder(str(tmp_path / "disk-out"))
    assert ours.read("index.json") == theirs.read("index.json")
    assert logical_digest(ours) == logical_digest(theirs)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "lineage.storage.hub_client", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    storage._filesystem.cache_clear()
    with pytest.raises(
        RecipeError, match=r"hf:// needs the package huggingface_hub.* pip install '\.\[hf\]'"
    ):
        list_inputs(source(f"hf://datasets/{NAME}/a.jsonl"))


def test_a_file_of_a_bucket_that_changed_is_another_input(hub: Hub, tmp_path: Path) -> None:
    hub.buckets[NAME] = {"a.jsonl": rows(ENGLISH)}
    asked = plain(tmp_path / "out", f"hf://buckets/{NAME}/a.jsonl")
    run(tmp_path / "first", asked)
    hub.buckets[NAME] = {"a.jsonl": rows(ENGLISH[:-2] + "! ")}
    with pytest.raises(RecipeError, match=r"inputs: hub/a\.jsonl has changed"):
        run(tmp_path / "again", asked)
