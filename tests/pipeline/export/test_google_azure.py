"""Inputs and exports in Google Cloud Storage and Azure, each served on loopback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.exports.manifest import MANIFEST
from lineage.exports.records import read_exports
from lineage.recipe import RecipeError
from lineage.storage import clients as storage
from lineage.storage.folder import Folder, StorageError, filesystem
from lineage.storage.lock import HeldError, hold
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.export.process import export, in_process
from pipeline.inputs.files import input_version, list_inputs, open_input
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe.load import load
from tests.pipeline.export.conftest import Corpus
from tests.support.outputs import export_readers as readers
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.stores.google_azure import azure_server, google_server, keep_nothing_deleted


@pytest.fixture(params=["gs", "az"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """An empty bucket or container that keeps nothing that is deleted."""
    if request.param == "gs":
        with google_server(monkeypatch):
            keep_nothing_deleted()
            yield "gs://bucket"
    else:
        with azure_server(monkeypatch, tmp_path):
            yield "az://container"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket as Google makes it: what is deleted is kept for seven days."""
    with google_server(monkeypatch):
        yield "gs://bucket"


def purge(corpus: Corpus, *arguments: str) -> int:
    return main(["purge", str(corpus.out), *arguments, "--reason", "a test", "--by", "a test", "--apply"])


def far(corpus: Corpus, tmp_path: Path, place: str, name: str = "far") -> Folder:
    """An export in the store."""
    there = Folder(f"{place}/{name}")
    export(replace(corpus.asked(tmp_path / name, "jsonl"), to=there), in_process)
    return there


def test_a_folder_there_is_read_and_written_as_one_on_disk(place: str, tmp_path: Path) -> None:
    for folder in (Folder(f"{place}/a"), Folder(str(tmp_path / "a"))):
        folder.publish("b/one", b"first")
        folder.publish("b/one", b"second")
        folder.publish("b/two", bytes(range(256)) * 40_000)
        assert folder.names() == ["b/one", "b/two"]
        assert folder.names("b") == folder.names()
        assert folder.read("b/one") == b"second"
        assert folder.read_range("b/two", 250, 10) == bytes([*range(250, 256), *range(4)])
        assert (folder.exists("b/one"), folder.exists("b"), folder.exists("c")) == (True, False, False)
        assert folder.size("b/two") == 256 * 40_000
        with folder.open("b/two") as stream:
            stream.seek(256 * 39_999)
            assert stream.read() == bytes(range(256))
        folder.remove("b/one")
        folder.remove("b/one")
        folder.remove_tree("b")
        assert folder.names() == []
        with pytest.raises(FileNotFoundError):
            folder.read("b/one")


def test_inputs_there_are_listed_and_opened_by_glob(place: str, corpus: Corpus) -> None:
    files = sorted(corpus.crawl.glob("web-*.warc.gz"))
    for file in files:
        Folder(f"{place}/crawl").publish(file.name, file.read_bytes())
    Folder(f"{place}/crawl").publish("other.txt", b"")
    source = load_source(corpus, f"{place}/crawl/*.warc.gz")
    found = list_inputs(source)
    assert [(entry.name, entry.url, entry.size) for entry in found] == [
        (file.name, f"{place}/crawl/{file.name}", file.stat().st_size) for file in files
    ]
    for entry, file in zip(found, files, strict=True):
        with open_input(entry) as stream:
            assert stream.read() == file.read_bytes()
        assert input_version(entry)
    with pytest.raises(RecipeError, match="matches no file"):
        list_inputs(load_source(corpus, f"{place}/crawl/*.jsonl"))
    with pytest.raises(RecipeError, match="there is no file"):
        list_inputs(load_source(corpus, f"{place}/crawl/absent.warc.gz"))


def load_source(corpus: Corpus, pattern: str):  # type: ignore[no-untyped-def]
    path = write_recipe(
        corpus.out.parent / "there.toml", recipe(str(corpus.out.parent / "new"), {"web": (pattern,)})
    )
    return load(str(path)).source[0]


def test_an_export_there_has_the_bytes_of_one_on_disk_and_a_purge_cleans_it(
    place: str, corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    there = far(corpus, tmp_path, place)
    corpus.export(tmp_path / "near", "jsonl")
    near = everywhere(tmp_path / "near")
    assert near.pop(MANIFEST) and near == {
        name: there.read(name) for name in there.names() if name != MANIFEST
    }
    doc_id, _ = next(readers.read_jsonl(tmp_path / "near" / "web"))
    assert purge(corpus, "--doc", doc_id) == 0
    cleaned = everywhere(tmp_path / "near")
    assert cleaned.pop(MANIFEST) and cleaned != near
    assert cleaned == {name: there.read(name) for name in there.names() if name != MANIFEST}
    out = Folder(str(corpus.out))
    assert not verify(out, verify_hooks(out)).problems
    assert {row.version for row in read_exports(out)} == {2}


def test_the_same_call_finds_the_export_done(place: str, corpus: Corpus, tmp_path: Path) -> None:
    there = far(corpus, tmp_path, place)
    again = export(replace(corpus.asked(tmp_path / "far", "jsonl"), to=there), in_process)
    assert again.was_done


def test_while_an_export_there_is_written_the_output_is_held(
    place: str, corpus: Corpus, tmp_path: Path
) -> None:
    def write_all(job, pieces):  # type: ignore[no-untyped-def]
        with pytest.raises(HeldError), hold(Folder(str(corpus.out)), "another"):
            pass
        return in_process(job, pieces)

    export(replace(corpus.asked(tmp_path / "far", "jsonl"), to=Folder(f"{place}/far")), write_all)
    with hold(Folder(str(corpus.out)), "another"):
        pass


def test_a_folder_there_that_another_export_claimed_is_refused(
    place: str, corpus: Corpus, tmp_path: Path
) -> None:
    far(corpus, tmp_path, place)
    with pytest.raises(RecipeError, match="holds another export"):
        export(replace(corpus.asked(tmp_path / "far", "parquet"), to=Folder(f"{place}/far")), in_process)


def test_no_output_lies_there(place: str) -> None:
    with pytest.raises(StorageError, match=r"cannot hold an output: name a folder on disk or in s3://"):  # noqa: SIM117
        with hold(Folder(f"{place}/out"), "a run"):
            pass


def test_a_purge_names_an_export_whose_bucket_keeps_what_is_deleted(
    google: str, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far(corpus, tmp_path, google)
    near = corpus.export(tmp_path / "near", "jsonl")
    assert near.row.num_documents
    gone = [doc_id for doc_id, _ in readers.read_jsonl(tmp_path / "near" / "web")]
    assert purge(corpus, "--doc", *gone) == 1
    assert "the store still keeps" in capsys.readouterr().out
    assert filesystem(google).call("GET", "b/{}/o", "bucket", softDeleted="true", json_out=True)["items"]


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("az", "adlfs")])
def test_an_extra_that_is_missing_is_named_with_what_installs_it(
    scheme: str,
    package: str,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    storage._filesystem.cache_clear()
    assert main(["export", str(corpus.out), "--format", "jsonl", "--to", f"{scheme}://bucket/far"]) == 2
    message = capsys.readouterr().err
    assert f"{scheme}:// needs the package {package}" in message
    assert f"pip install '.[{scheme}]'" in message
    with pytest.raises(RecipeError, match=package):
        list_inputs(load_source(corpus, f"{scheme}://bucket/crawl/*.warc.gz"))


def test_an_unknown_scheme_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RecipeError, match=r"s3://, gs://, az://, hf:// or https://, not ftp://"):
        Folder("ftp://host/folder")
