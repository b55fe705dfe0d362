"""`python -m trainer RECIPE --from-step T` and `--forget`: exit codes, what is told, the certificate beside
the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.recipe import as_toml
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import HARD, Trained, applied, assert_equal, copy_out, never_read
from tests.support.training.launched import LAUNCHERS, VICTIMS, Launcher, Victim, command_line, finish_killed

pytestmark = pytest.mark.slow


def call(trained: Trained, *options: str) -> subprocess.CompletedProcess[str]:
    recipe = trained.folder / "recipe.toml"
    recipe.write_text(as_toml(trained.run.recipe()))
    env = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [sys.executable, "-m", "trainer", str(recipe), *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


def test_a_call_goes_back_forgets_and_certifies(small: SmallOut, tmp_path: Path) -> None:
    trained = Trained(small=small, folder=tmp_path)
    copy_out(small, tmp_path)
    trained.run.start()
    ended = call(trained, "--from-step", "5")
    assert (ended.returncode, "--from-step 4 goes back to that" in ended.stderr) == (2, True), ended.stderr
    assert call(trained, "--restart").returncode == 2
    ended = call(trained, "--from-step", "6")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["attempt"] == 2
    purge_id = trained.purge(trained.record_first_read_in(range(7, 10)))
    ended = call(trained, "--forget", "all")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["attempt"] == 3
    (path,) = (trained.run.output / "certificates").glob("*.json")
    assert str(path) in ended.stderr
    certificate = json.loads(path.read_text())
    assert [(purge["purge_id"], purge["applied"]) for purge in certificate["purges"]] == [(purge_id, 0)]
    path.unlink()  # as if it had been killed before it was written
    ended = call(trained, "--forget", purge_id)
    assert (ended.returncode, ended.stdout, path.exists()) == (0, "", True), ended.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_replay_that_is_killed_goes_on_by_the_same_call(
    victim: Victim, launcher: Launcher, small: SmallOut, tmp_path: Path
) -> None:
    changes = {**HARD, "workers": 2, "steps": 240, "checkpoint": {"every": 10, "keep": 30}}
    trained = Trained(small=small, folder=tmp_path, changes=changes)
    copy_out(small, tmp_path)
    trained.run.start()
    trained.purge(trained.record_first_read_in(range(10, 60)))
    told = finish_killed(trained, command_line(trained, launcher, "--forget", "all"), victim, after=70)
    assert (launcher == "ray" and victim == "worker") or "already" in told
    assert list((trained.run.output / "certificates").glob("*.json"))
    assert applied(trained) and True not in applied(trained)
    assert_equal(trained, never_read(trained))
