"""`python -m trainer`, alone and under torchrun: exit codes and the result as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from lineage.recipe import as_toml
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run

pytestmark = pytest.mark.slow

_IN_PLACE: Final = {
    "workers": 2,
    "parallel": {"dp_replicate": 2},
    "recovery": {"mode": "in_place", "spares": 1},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530]}).url


def call(
    run: Run, *launcher: str, options: Sequence[str] = (), **changes: object
) -> subprocess.CompletedProcess[str]:
    recipe = run.output.parent / "recipe.toml"
    recipe.write_text(as_toml(run.recipe(changes)))
    env = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [*(launcher or (sys.executable,)), "-m", "trainer", str(recipe), *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=800, check=False)


def test_torchrun_trains_as_forked_processes_do(corpus: str, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={"steps": 4, "workers": 2})
    ended = call(run, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    plain = Run(data=corpus, output=tmp_path / "plain", changes={"steps": 4, "workers": 2})
    plain.start()
    assert (result["step"], result["finished"], result["loss"]) == (4, True, plain.losses()[-1])


@contextlib.contextmanager
def at_work(run: Run) -> Iterator[subprocess.Popen[str]]:
    """The run in a process group of its own, as a terminal starts it, when three steps are done."""
    recipe = run.output.parent / "recipe.toml"
    recipe.write_text(as_toml(run.recipe()))
    env = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    with subprocess.Popen(
        [sys.executable, "-m", "trainer", str(recipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    ) as process:
        while not (run.output / "metrics.jsonl").exists() or len(run.metrics()) < 3:
            assert process.poll() is None, "it ended before it was told to"
            time.sleep(0.05)
        yield process


def endless(corpus: str, output: Path, **changes: object) -> Run:
    changes |= {"steps": 1_000_000, "checkpoint": {"every": 500_000}}
    return Run(data=corpus, output=output, changes=changes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl_c"])
@pytest.mark.parametrize("changes", [{}, _IN_PLACE], ids=["restart", "in_place"])
def test_a_signal_saves_a_checkpoint_and_ends_without_an_error(
    corpus: str, tmp_path: Path, number: signal.Signals, changes: dict[str, object]
) -> None:
    run = endless(corpus, tmp_path / "run", **changes)
    with at_work(run) as process:
        os.killpg(process.pid, number)
        told, warned = process.communicate()
    result = json.loads(told)
    assert (process.returncode, result["finished"]) == (0, False)
    assert result["step"] >= 3
    assert run.checkpoints() == [f"step-{result['step']:08d}.attempt-1"]
    assert warned.count("Ctrl-C again ends at once") == (number == signal.SIGINT)
    assert "Traceback" not in warned


def test_a_second_ctrl_c_ends_at_once_and_says_where_the_same_call_continues(
    corpus: str, tmp_path: Path
) -> None:
    with at_work(endless(corpus, tmp_path / "run")) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        for line in process.stderr:
            if "Ctrl-C again" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        told, warned = process.communicate()
    if process.returncode == 0:  # the checkpoint was faster
        assert json.loads(told)["finished"] is False
    else:
        assert (process.returncode, told) == (130, "")
        assert "the same call continues from the newest checkpoint" in warned
    assert "Traceback" not in warned


def test_a_recipe_for_more_processes_than_were_started_is_refused(corpus: str, tmp_path: Path) -> None:
    ended = call(Run(data=corpus, output=tmp_path / "run"), workers=2)
    assert ended.returncode == 2
    assert "torchrun --nproc-per-node=2" in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "code", "line"),
    [
        (["--set", "train.colour=3"], 2, "unknown key 'train.colour'"),
        (["--set", 'train.data="nowhere"'], 1, "no index.json in"),
        (["--colour"], 2, "unrecognized arguments: --colour"),
    ],
    ids=["a key", "a folder", "an option"],
)
def test_torchruns_processes_print_one_refusal_and_end_alike(
    wrong: list[str], code: int, line: str, corpus: str, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={"workers": 2})
    ended = call(run, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", options=wrong)
    assert ended.stderr.count(line) == ended.stderr.count("sluice: ") == 1, ended.stderr
    assert re.findall(r"exitcode +: (-?\d+) \(pid", ended.stderr) == [str(code)] * 2, ended.stderr


def named(run: Run, name: str, **changes: object) -> subprocess.CompletedProcess[str]:
    """The run under another name, in one process."""
    recipe = run.recipe(changes)
    path = run.output.parent / f"{name}.toml"
    path.write_text(as_toml(dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, name=name))))
    env = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [sys.executable, "-m", "trainer", str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=800, check=False)


def test_an_output_goes_on_under_its_run_s_name_only(corpus: str, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={"steps": 2, "checkpoint": {"every": 2}})
    assert named(run, "first").returncode == 0
    for steps in (2, 4):  # nothing is left to train, and something is
        ended = named(run, "second", steps=steps)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "holds the run 'first'" in ended.stderr
    assert sorted(path.name for path in (run.output / "attempts").glob("*.claim")) == ["00001.claim"]
    assert sorted(run.metrics()) == [0, 1]
    for recorded in ("attempts/run", "lineage.jsonl"):  # as in an output that tells nothing of its run
        (run.output / recorded).unlink()
    ended = named(run, "first", steps=4)
    assert (ended.returncode, json.loads(ended.stdout)["attempt"]) == (0, 2)
    assert sorted(run.metrics()) == [0, 1, 2, 3]


def test_a_name_that_the_data_has_recorded_of_another_output_is_found_before_an_attempt_begins(
    tmp_path: Path,
) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    first = Run(data=data, output=tmp_path / "first", changes={"steps": 2, "checkpoint": {"every": 2}})
    assert named(first, "mine").returncode == 0
    second = Run(data=data, output=tmp_path / "second", changes=first.changes)
    ended = named(second, "mine")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "run.name: run 'mine' is recorded in" in ended.stderr
    assert not second.output.exists()


def test_more_steps_are_told_with_the_rates(corpus: str, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={"steps": 2, "checkpoint": {"every": 2}})
    assert call(run).returncode == 0
    ended = call(run, steps=4)
    assert ended.returncode == 0
    assert "train.steps is 4 now and was 2: the rate" in ended.stderr


def test_a_run_that_stops_itself_fails_and_says_why(corpus: str, tmp_path: Path) -> None:
    ended = call(Run(data=corpus, output=tmp_path / "run"), faults={"nan_at_step": [0, 1], "max_skips": 2})
    assert ended.returncode == 1
    assert "2 batches in a row were skipped" in ended.stderr
    assert "Traceback" not in ended.stderr
