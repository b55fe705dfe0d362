"""A machine that loses its power when a run has returned 0: by the model of a disk, everything is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import fingerprint, recipe, write_recipe
from tests.support.stores.faulty_disk import ModelDisk, compile_faulty_disk, read_record


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_returned_is_on_the_disk(tmp_path: Path) -> None:
    disk, kept, record = tmp_path / "disk", tmp_path / "kept", tmp_path / "acts"
    for folder in (disk, kept, tmp_path / "empty"):
        folder.mkdir()
    out = disk / "runs" / "out"
    path = write_recipe(tmp_path / "run.toml", recipe(str(out), make_tiny_crawl(tmp_path)))
    library = compile_faulty_disk(tmp_path)
    on_record = {"DISK_UNDER": str(disk), "DISK_RECORD": str(record), "DISK_KEEP": str(kept)}
    done = _sluice("run", str(path), env={"LD_PRELOAD": str(library), **on_record})
    assert done.returncode == 0, done.stderr
    model = ModelDisk(str(disk), tmp_path / "empty", kept)
    acts = read_record(record)
    for act in acts:
        model.apply(act)
    print(f"{sum(act.kind == 'sync' for act in acts)} syncs of {len(acts)} acts")
    expected = fingerprint(str(out))
    for keeps_names in (False, True):
        disk.rename(tmp_path / f"before-{keeps_names}")  # what the power cut leaves stands under the same path
        model.cut(disk, keeps_names=keeps_names)
        assert fingerprint(str(out)) == expected
        assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / f"before-{keeps_names}" / "runs" / "out"))
        again = _sluice("run", str(path), env={})
        assert again.returncode == 0 and "nothing to do" in again.stdout + again.stderr
        verified = _sluice("verify", str(out), env={})
        assert verified.returncode == 0, verified.stdout


def _sluice(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **env})
