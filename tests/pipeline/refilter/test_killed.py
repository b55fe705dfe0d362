"""Killed and called again, a run from parsed texts ends as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.checkout import ROOT
from tests.support.outputs.parsed_texts import recipe
from tests.support.outputs.runs import fingerprint, run, write_recipe

pytestmark = pytest.mark.usefixtures("small_ray")

MOMENTS = (
    "work/units/*/unit.json",
    "work/units/*/run.json",
    "shards/*/*.bin",
    "lineage/reused_steps/_delta_log/*1.json",
)
"""What the run has just published when it is killed, one after another: at the first its units are at work
on Ray, whose workers outlive it; then in its own process, which starts in a tenth of the time."""


def address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def kill_at(moment: str, words: list[str], out: Path) -> None:
    """Call the command and kill it as soon as a file stands that matches `moment`."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words],
        env=settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as driver:
        while driver.poll() is None and not any(out.glob(moment)):
            time.sleep(0.001)
        assert driver.poll() is None, f"it ended before {moment}"
        driver.kill()


def test_a_run_killed_again_and_again_gives_the_same_bytes(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    out, there = tmp_path / "out", str(tmp_path / "there")
    changed = {"quality": {"min_words": 120}}
    run(tmp_path / "a", recipe(crawl, there, changed))
    words = ["run", str(write_recipe(tmp_path / "recipe.toml", recipe(crawl, str(out), changed)))]
    words += ["--from", earlier["plain"]]
    for moment in MOMENTS:
        on_ray = ["--set", f"ray.address={address()}"] if moment == MOMENTS[0] else []
        kill_at(moment, [*words, *on_ray], out)
        assert not (out / "index.json").exists(), f"it was to die at {moment}"
    assert main(words) == 0
    assert fingerprint(str(out)) == fingerprint(there)
    assert not (out / "work").exists() and Folder(str(out)).exists("texts/texts.json")
