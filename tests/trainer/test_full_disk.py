"""A disk that fills up in a training: one clear line, and the same call continues, with the same losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.recipe import as_toml
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.stores.small_disk import resize, small_disk
from tests.support.training.training_runs import Run


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_training_on_a_disk_that_fills_up_again_and_again_ends_with_the_same_losses(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    plain = Run(data=corpus, output=tmp_path / "plain")
    plain.start()
    with small_disk(tmp_path / "disk", 40) as disk:
        run = Run(data=corpus, output=disk / "run")
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(as_toml(run.recipe()))
        size, met = 40, []
        while (ended := call(recipe)).returncode != 0:
            told = next(line for line in ended.stderr.splitlines() if line.startswith("sluice: "))
            assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
            assert "same call again" in ended.stderr, ended.stderr
            assert "No space left on device" in told and str(disk) in told, ended.stderr
            met.append(told)
            size *= 2
            assert size < 100_000, met
            resize(disk, size)
        print(f"the disk was full {len(met)} times:", *met, sep="\n")
        assert len(set(met)) >= 3, "the disk was full in several places"
        assert run.losses() == plain.losses()
        assert run.sequences() == plain.sequences()


def call(recipe: Path) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    return subprocess.run(
        [sys.executable, "-m", "trainer", str(recipe)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
