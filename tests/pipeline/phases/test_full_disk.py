"""A disk that fills up in a run: one clear line with the file it met, no leftovers, and the same call
continues."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.storage.folder import Folder, StorageError
from pipeline.demo.pages import write_article
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe
from tests.support.stores.small_disk import resize, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 kB of its own."""
    with small_disk(tmp_path / "disk", 200) as folder:
        yield folder


def test_a_file_that_a_full_disk_refuses_is_named_and_leaves_nothing(disk: Path) -> None:
    folder = Folder(str(disk / "out"))
    folder.publish("old", b"kept")
    for publish in (folder.publish, folder.publish_new):
        with pytest.raises(StorageError, match=r"No space left on device: '.*/out/a/new'"):
            publish("a/new", bytes(1_000_000))
    assert folder.names() == ["old"] and folder.read("old") == b"kept"
    assert not list(disk.rglob(".tmp*"))


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_run_on_a_disk_that_fills_up_again_and_again_ends_with_the_same_bytes(
    disk: Path, tmp_path: Path
) -> None:
    rng = random.Random(0)
    posts = [{"id": str(n), "text": write_article("en", rng).text} for n in range(500)]
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    sources = {"posts": (str(tmp_path / "posts.jsonl"),)}
    path = write_recipe(tmp_path / "full.toml", recipe(str(disk / "out"), sources))
    size, met = 200, []
    while True:
        resize(disk, size)
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "run", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        lines = done.stderr.splitlines()
        assert done.returncode == 1 and "Traceback" not in done.stderr
        [met_at] = [line for line in lines if "No space left on device" in line]
        assert str(disk) in met_at, done.stderr
        assert "the same call again" in lines[-1]
        assert not list(disk.rglob(".tmp*"))
        met.append(met_at)
        size += 500
        assert size < 40_000, met
    print(f"the disk was full {len(met)} times:", *met, sep="\n")
    assert len(set(met)) >= 3, "the disk was full in several places"
    run(tmp_path / "roomy", recipe(str(tmp_path / "roomy" / "out"), sources))
    assert fingerprint(str(disk / "out")) == fingerprint(str(tmp_path / "roomy" / "out"))
