"""Data is made, asked, purged and exported where the extra `train` is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import recipe, write_recipe

# Every process of a call reads it, Ray's workers too.
ABSENT = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    if name.split(".")[0] in ("torch", "tensorboard", "safetensors"):
        return None
    return found(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A crawl, recipes, and a `sitecustomize` that hides what the extra installs."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "sitecustomize.py").write_text(ABSENT)
    sources = make_tiny_crawl(tmp_path)
    tokenize = {"encoding": tiny_tokenizer(tmp_path)}
    plain = recipe("out", sources, tokenize=tokenize, quality={"ledger": "all"})
    write_recipe(tmp_path / "crawl.toml", plain)
    train = {
        "data": "out",
        "output": "trained",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 2,
        "steps": 2,
    }
    (tmp_path / "train.toml").write_text(tomli_w.dumps({"run": {"name": "one"}, "train": train}))
    return tmp_path


def sluice(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(place / "absent"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_every_command_of_data_works_and_training_names_the_extra(place: Path) -> None:
    url = "https://web.example.com/7"
    by = ("--reason", "a test", "--by", "a test", "--apply")
    for words in (
        ("run", "crawl.toml"),
        ("tune", "crawl.toml", "--from", "out", "--set", "quality.min_words=80"),
        ("explain", "out", "--url", url),
        ("trace", "out", "--url", url),
        ("lineage", "out", "SELECT count(*) FROM documents"),
        ("report", "out"),
        ("export", "out", "--format", "jsonl", "--to", "texts"),
        ("export", "out", "--format", "megatron", "--to", "tokens"),
        ("purge", "out", "--url", url, *by),
        ("verify", "out"),
        ("plan", "train.toml"),
    ):
        ended = sluice(place, *words)
        assert ended.returncode == 0, f"{words}: {ended.stderr[-3000:]}"
    refuses_without_the_extra(place, "train", "train.toml")


def test_the_demo_says_at_once_that_it_trains(place: Path) -> None:
    refuses_without_the_extra(place, "demo", "--out", "demo")
    assert not (place / "demo").exists()


def refuses_without_the_extra(place: Path, *words: str) -> None:
    ended = sluice(place, *words)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        f"sluice {words[0]}: it needs torch: in Sluice's checkout, pip install '.[train]'"
    )
