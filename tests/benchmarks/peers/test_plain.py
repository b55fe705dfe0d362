"""The side of a benchmark that does without Ray is the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe


@pytest.mark.slow
def test_a_plain_pool_of_processes_gives_the_bytes_of_a_run_on_ray(tmp_path: Path) -> None:
    sources = make_tiny_crawl(tmp_path)
    run(tmp_path / "ray", recipe(str(tmp_path / "ray" / "out"), sources, ray=ON_RAY))
    path = write_recipe(
        tmp_path / "recipe.toml", recipe(str(tmp_path / "plain"), sources, dedup={"engine": "local"})
    )
    command = [sys.executable, "-m", "benchmarks.peers.plain", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert fingerprint(str(tmp_path / "plain")) == fingerprint(str(tmp_path / "ray" / "out"))
