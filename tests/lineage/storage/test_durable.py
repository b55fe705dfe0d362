"""What is published is on the disk, with its folders, before what vouches for it; a failed deletion is an
error."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.durable import sync_folders
from lineage.storage.folder import Folder


class Acts:
    """Every sync, rename and link of this process, in order: paths below `top`."""

    def __init__(self, top: Path, patched: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self._top = top
        sync, rename, link = os.fsync, os.replace, os.link

        def syncing(file: int) -> None:
            sync(file)
            self._note("sync", os.readlink(f"/proc/self/fd/{file}"))

        def renaming(old: Any, new: Any) -> None:
            rename(old, new)
            self._note("name", str(new))

        def linking(old: Any, new: Any) -> None:
            link(old, new)
            self._note("name", str(new))

        patched.setattr(os, "fsync", syncing)
        patched.setattr(os, "replace", renaming)
        patched.setattr(os, "link", linking)

    def _note(self, act: str, path: str) -> None:
        place = os.path.relpath(path, self._top)
        kept = [part for part in place.split("/") if not part.startswith(".tmp-")]
        self.done.append((act, "/".join(kept) if len(kept) == len(place.split("/")) else "a file"))


@pytest.fixture
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Acts:
    sync_folders()
    return Acts(tmp_path, monkeypatch)


@pytest.mark.parametrize("publish", ["publish", "publish_new"])
def test_a_file_and_every_new_folder_above_it_are_synced_up_to_the_entry_of_the_output(
    acts: Acts, tmp_path: Path, publish: str
) -> None:
    getattr(Folder(str(tmp_path / "runs" / "out")).folder("a"), publish)("b/c.bin", b"content")
    first = acts.done.index(("name", "runs/out/a/b/c.bin"))
    assert ("sync", "a file") in acts.done[:first]
    assert {path for act, path in acts.done[first:] if act == "sync"} >= {
        "runs/out/a/b", "runs/out/a", "runs/out", "runs", ".",
    }  # fmt: skip


def test_what_was_written_before_is_synced_before_what_is_published_names_it(
    acts: Acts, tmp_path: Path
) -> None:
    out = Folder(str(tmp_path / "out"))
    for number in range(100):
        with out.writing(f"parts/{number}") as file:
            file.write(b"part")
    out.publish("index.json", b"{}")
    named = acts.done.index(("name", "out/index.json"))
    assert ("sync", "out/parts") in acts.done[:named] and ("sync", "out") in acts.done[named:]
    assert acts.done.count(("sync", "out/parts")) == 1, "a folder is synced once, however many files it got"


def test_a_link_and_removals_are_synced_before_what_is_published_next(acts: Acts, tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    for name in ("old/a", "tree/deep/b"):
        out.publish(name, b"content")
    acts.done.clear()
    assert out.publish_link("links/c", out.at("old/a"))
    out.remove("old/a")
    out.remove_tree("tree")
    out.publish("index.json", b"{}")
    before = acts.done[: acts.done.index(("name", "out/index.json"))]
    assert {path for act, path in before if act == "sync"} >= {"out/links", "out/old", "out"}


def test_a_folder_that_is_made_again_is_synced_again(acts: Acts, tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    for _ in range(2):
        acts.done.clear()
        out.publish("work/unit/a", b"content")
        assert {path for act, path in acts.done if act == "sync"} >= {"out/work/unit", "out/work", "out"}
        out.remove_tree("work")


def test_a_folder_that_another_process_did_not_sync_is_synced_by_sync_all(acts: Acts, tmp_path: Path) -> None:
    (tmp_path / "out" / "shards" / "web").mkdir(parents=True)
    (tmp_path / "out" / "work" / "units").mkdir(parents=True)
    Folder(str(tmp_path / "out")).sync_all("work")
    synced = {path for act, path in acts.done if act == "sync"}
    assert synced >= {"out/shards/web", "out/shards", "out", "."}
    assert not {"out/work", "out/work/units"} & synced


def test_a_folder_whose_sync_fails_is_named_and_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(str(tmp_path / "out"))
    with out.writing("a/b") as file:
        file.write(b"content")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _fails)
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}"):
            out.sync()
    acts = Acts(tmp_path, monkeypatch)
    out.sync()
    assert {("sync", "out/a"), ("sync", "out"), ("sync", ".")} <= set(acts.done)


@pytest.mark.parametrize("act", ["unlink", "rmdir"])
def test_a_deletion_that_fails_is_an_error_that_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    out = Folder(str(tmp_path / "out"))
    out.publish("work/unit/text.parquet", b"a text")
    with monkeypatch.context() as patched:
        patched.setattr(os, act, _fails)
        with pytest.raises(OSError, match=f"Input/output error: '{out.at('work/unit')}"):
            out.remove_tree("work")
    out.remove_tree("work")
    assert os.listdir(out.url) == []
    out.remove_tree("work")


def test_a_write_that_fails_names_the_file_it_was_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(str(tmp_path / "out"))
    monkeypatch.setattr(os, "fsync", _fails)
    with pytest.raises(OSError, match=f"Input/output error: '{out.at('a')}'"):
        out.write("a", b"content")
    monkeypatch.undo()
    assert out.names() == [] and os.listdir(out.url) == []


def _fails(*_arguments: object, **_named: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
