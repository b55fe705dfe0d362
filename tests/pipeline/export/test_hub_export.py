"""Exports to a repository of a Hugging Face Hub, which is served on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.exports.manifest import MANIFEST
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.export.process import export, in_process
from tests.pipeline.export.conftest import Corpus
from tests.support.outputs import export_readers as readers
from tests.support.stores.hub import TOKEN, Hub, hub_server

NAME = "someone/texts"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with an empty private dataset, and the token that may write it."""
    with hub_server(monkeypatch) as hub:
        hub.dataset(NAME, {"README.md": b"before"}, is_private=True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_an_export_there_has_the_bytes_of_one_on_disk_and_the_same_call_finds_it_done(
    hub: Hub, corpus: Corpus, tmp_path: Path, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    there = Folder(f"hf://datasets/{NAME}/below/here")
    asked = replace(corpus.asked(tmp_path / "far", "jsonl"), to=there)
    export(asked, in_process)
    corpus.export(tmp_path / "near", "jsonl")
    near = everywhere(tmp_path / "near")
    assert near.pop(MANIFEST) and near == {
        name: there.read(name) for name in there.names() if name != MANIFEST
    }
    num_commits = hub.counts["commit"]
    assert export(asked, in_process).was_done
    assert hub.counts["commit"] == num_commits


def test_a_purge_cleans_it_and_says_that_the_history_keeps_what_was_there(
    hub: Hub, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Folder(f"hf://datasets/{NAME}/here")
    export(replace(corpus.asked(tmp_path / "far", "jsonl"), to=there), in_process)
    corpus.export(tmp_path / "near", "jsonl")
    doc_id, _ = next(readers.read_jsonl(tmp_path / "near" / "web"))
    call = ["purge", str(corpus.out), "--doc", doc_id, "--reason", "a test", "--by", "a test", "--apply"]
    assert main(call) == 1
    assert "the repository's history keeps what was deleted" in capsys.readouterr().out
    assert not any(doc_id.encode() in there.read(name) for name in there.names())


def test_a_repository_that_may_not_be_written_is_named(
    hub: Hub, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    call = ["export", str(corpus.out), "--format", "jsonl", "--to", f"hf://datasets/{NAME}/here"]
    assert main(call) == 1
    message = capsys.readouterr().err
    assert "set HF_TOKEN" in message and "Traceback" not in message
