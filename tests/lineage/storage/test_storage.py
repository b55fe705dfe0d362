"""Folders, on disk and in S3: a file appears whole or not at all, and once where it must be new."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lineage.storage.folder import Folder, delta_options, is_remote, join, local_path
from tests.support.checkout import ROOT
from tests.support.stores.s3_server import s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched, s3_server(patched):
        yield "s3://plain/tests"


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder that does not exist yet."""
    if request.param == "disk":
        return Folder(str(tmp_path / "out"))
    return Folder(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def test_what_is_published_can_be_read_whole_in_part_and_as_a_stream(folder: Folder) -> None:
    folder.publish("a/b.bin", b"0123456789")
    assert folder.read("a/b.bin") == b"0123456789"
    assert folder.read_range("a/b.bin", 3, 4) == b"3456"
    assert folder.read_range("a/b.bin", 8, 99) == b"89"
    assert folder.size("a/b.bin") == 10
    with folder.open("a/b.bin") as stream:
        stream.seek(5)
        assert stream.read() == b"56789"


def test_publishing_again_replaces(folder: Folder) -> None:
    folder.publish("a", b"a long first content")
    folder.publish("a", b"short")
    assert folder.read("a") == b"short"
    assert folder.names() == ["a"]


def test_a_file_that_is_being_written_is_not_there(folder: Folder) -> None:
    with folder.writing("a") as file:
        file.write(b"half")
        file.flush()
        assert not folder.exists("a")
        assert folder.names() == []
        file.write(b" and half")
    assert folder.read("a") == b"half and half"


def test_a_writer_that_fails_leaves_nothing(folder: Folder, tmp_path: Path) -> None:
    folder.publish("a", b"before")
    with pytest.raises(KeyboardInterrupt), folder.writing("a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), folder.writing("new") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert folder.read("a") == b"before"
    assert folder.names() == ["a"]
    assert not list(tmp_path.rglob(".tmp-*"))


def test_two_writers_of_one_name_do_not_mix(folder: Folder) -> None:
    with folder.writing("a") as first, folder.writing("a") as second:
        first.write(b"first" * 1000)
        second.write(b"second" * 1000)
    assert folder.read("a") == b"first" * 1000, "the outer block ends last"


def test_a_new_name_is_given_once(folder: Folder) -> None:
    assert folder.publish_new("a", b"first")
    assert not folder.publish_new("a", b"second")
    assert folder.read("a") == b"first"


def test_of_many_that_claim_a_name_at_once_one_wins(folder: Folder) -> None:
    folder.publish("warm", b"")  # the client is made
    together = threading.Barrier(8)

    def claim(number: int) -> bool:
        together.wait()
        return folder.publish_new("race", str(number).encode() * 5000)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim, range(8)))
    assert won.count(True) == 1
    assert folder.read("race") == str(won.index(True)).encode() * 5000
    assert folder.names() == ["race", "warm"]


def test_names_are_sorted_relative_and_below(folder: Folder) -> None:
    for name in ("b/2", "a", "b/1", "b/c/3", "bb/4"):
        folder.publish(name, b"")
    assert folder.names() == ["a", "b/1", "b/2", "b/c/3", "bb/4"]
    assert folder.names("b") == ["b/1", "b/2", "b/c/3"]
    assert folder.folder("b").names() == ["1", "2", "c/3"]
    assert folder.names("nowhere") == []


def test_a_folder_that_is_not_there_is_empty(folder: Folder) -> None:
    assert folder.names() == []
    assert not folder.exists("a")
    for look in (folder.read, folder.size, folder.open):
        with pytest.raises(FileNotFoundError):
            look("a")


def test_what_is_removed_is_gone_and_removing_it_again_does_nothing(folder: Folder) -> None:
    for name in ("a", "b/1", "b/c/2", "bb"):
        folder.publish(name, b"")
    folder.remove("a")
    folder.remove("a")
    folder.remove_tree("b")
    folder.remove_tree("b")
    assert folder.names() == ["bb"]


def test_a_folder_travels_to_other_processes(folder: Folder) -> None:
    folder.publish("a", b"content")
    there = pickle.loads(pickle.dumps(folder))
    assert there.url == folder.url
    assert there.read("a") == b"content"


def test_empty_files_and_odd_names_are_files(folder: Folder) -> None:
    for name in ("empty", "with space", "percent%20", "ümlaut", "plus+", "hash#", "question?"):
        folder.publish(name, name.encode())
        assert folder.read(name) == name.encode()
        assert folder.exists(name)
    assert len(folder.names()) == 7


_HALF = """
import sys, time
from lineage.storage.folder import Folder
with Folder(sys.argv[1]).writing("unit/documents.parquet") as file:
    file.write(b"half of a text")
    file.flush()
    print("half", flush=True)
    time.sleep(600)
"""


def half_a_file(folder: Folder) -> subprocess.Popen[str]:
    """A process that is in the middle of writing."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HALF, folder.url], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None and child.stdout.readline() == "half\n"
    return child


def files_with(text: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_the_next_attempt_removes_what_a_killed_one_left_and_leaves_a_live_one_alone(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    dead, alive = half_a_file(folder), half_a_file(folder)
    try:
        dead.kill()
        dead.wait()
        assert len(files_with(b"half of a text", tmp_path)) == 2
        folder.publish("unit/another.parquet", b"its neighbour is none of its business")
        assert len(files_with(b"half of a text", tmp_path)) == 2
        folder.publish("unit/documents.parquet", b"whole")
        assert len(files_with(b"half of a text", tmp_path)) == 1, "the live attempt's"
    finally:
        alive.kill()
        alive.wait()
    assert not folder.publish_new("unit/documents.parquet", b"new")
    assert sorted(os.listdir(tmp_path / "unit")) == ["another.parquet", "documents.parquet"]
    assert folder.read("unit/documents.parquet") == b"whole"


def test_what_dead_writers_left_anywhere_below_is_removed_and_a_live_one_s_stays(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.publish("unit/00001.json", b"whole")
    for left in ("unit/.tmp-00001.claim", "unit/deeper/.tmp-sums.json", ".tmp-metrics"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "0123").write_bytes(b"half")
    (tmp_path / "unit" / ".tmp-empty").mkdir()
    alive = half_a_file(folder)
    try:
        folder.drop_all_dead()
        assert len(files_with(b"half of a text", tmp_path)) == 1
        assert (
            not files_with(b"half", tmp_path / "unit" / "deeper") and not (tmp_path / ".tmp-metrics").exists()
        )
        assert sorted(os.listdir(tmp_path / "unit")) == [".tmp-documents.parquet", "00001.json", "deeper"]
    finally:
        alive.kill()
        alive.wait()
    folder.drop_all_dead()
    assert sorted(os.listdir(tmp_path / "unit")) == ["00001.json", "deeper"]


def test_writers_of_one_name_at_once_never_take_each_other_for_dead(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    together = threading.Barrier(8)

    def write(number: int) -> None:
        together.wait()
        for _ in range(50):
            folder.publish("a", str(number).encode() * 5000)
            folder.publish_new("b", str(number).encode() * 5000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    for name in ("a", "b"):
        assert len(folder.read(name)) == 5000 and len(set(folder.read(name))) == 1
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_killed_put_leaves_no_spool_behind(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    child = half_a_file(Folder(f"{bucket}/killed"))
    child.kill()
    child.wait()
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_others_are_no_files(tmp_path: Path) -> None:
    (tmp_path / ".tmp-0123-a").write_bytes(b"half")
    (tmp_path / ".tmp-a").mkdir()
    (tmp_path / ".tmp-a" / "0123").write_bytes(b"half")
    (tmp_path / "a").write_bytes(b"whole")
    assert Folder(str(tmp_path)).names() == ["a"]


def test_a_disk_that_refuses_says_so_and_keeps_what_was_there(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.publish("a", b"before")
    os.mkdir(tmp_path / "folder")
    with pytest.raises(OSError, match="folder"):
        folder.publish("folder", b"")
    with pytest.raises(OSError, match="a"):
        folder.publish("a/b", b"")
    assert folder.names() == ["a"]
    assert not list(tmp_path.glob(".tmp-*"))


def test_urls_and_paths_name_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        Folder("out").url
        == Folder("./out/").url
        == Folder(f"file://{tmp_path}/out").url
        == str(tmp_path / "out")
    )
    assert local_path("a/../b") == str(tmp_path / "b")
    assert join("s3://bucket/a/", "/b/", "c") == "s3://bucket/a/b/c"
    assert [
        is_remote(url) for url in ("s3://b/a", "https://a.b/c", "http://a", "/a", "a:b", "file:///a")
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert Folder("s3://bucket/a/").at("") == "s3://bucket/a"


def test_delta_learns_what_it_must_know_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert delta_options("/disk") == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert delta_options("s3://b")["AWS_ALLOW_HTTP"] == "true"
    assert "AWS_SKIP_SIGNATURE" not in delta_options("s3://b")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "1")
    assert delta_options("s3://b")["AWS_SKIP_SIGNATURE"] == "true"
