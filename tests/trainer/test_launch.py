"""The run under Ray Train: killed workers, a stop, and errors that trying again does not mend."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.attempts import claim, failures
from trainer.data.corpus import open_corpus
from trainer.options import DataTable
from trainer.provenance.facts import FactLog, RunFact, commit

pytestmark = pytest.mark.slow

LAUNCH = """
import dataclasses, json, sys
from lineage.recipe import parse_table
from lineage.store.delta import StoreError
from trainer.attempts import FencedOutError
from trainer.attempts import TrainingStoppedError
from trainer.launch import train_on_ray
from trainer.run.preflight import check_training
from trainer.options import TrainRecipe
from trainer.processes.placement import local_cpus
from pipeline.cluster.session import ray_session
recipe = parse_table(TrainRecipe, json.loads(sys.argv[1]))
check_training(recipe)
try:
    with ray_session("local", training_cpus=local_cpus(recipe.train)):
        print(json.dumps(dataclasses.asdict(train_on_ray(recipe))))
except (TrainingStoppedError, FencedOutError, StoreError) as error:
    print(json.dumps({"stopped": str(error)}))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture
def run(corpus: str, tmp_path: Path) -> Run:
    changes = {"workers": 2, "steps": 40, "checkpoint": {"every": 5}, "record_batches": False}
    return Run(data=corpus, output=tmp_path / "run", changes=changes)


@contextmanager
def launch(run: Run, stderr: IO[str] | None = None, **changes: object) -> Iterator[subprocess.Popen[str]]:
    from lineage.recipe import as_plain

    recipe = json.dumps(as_plain(run.recipe(changes)))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LAUNCH, recipe]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def result_of(told: str) -> dict[str, Any]:
    """The result in what a launch printed; Ray may print lines of its own."""
    found: dict[str, Any] = json.loads([line for line in told.splitlines() if line.startswith("{")][-1])
    return found


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not ready():
        assert time.monotonic() < deadline, "nothing happened for ten minutes"
        time.sleep(0.2)


def reached(run: Run, step: int) -> bool:
    return (run.output / "metrics.jsonl").exists() and max(run.metrics(), default=0) >= step


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The ids of Ray's training workers below this launch (its raylet is its child)."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in rows}

    def below(pid: int) -> bool:
        return pid == process.pid or (pid in parents and below(parents[pid]))

    return [int(pid) for pid, _, args in rows if "RayTrainWorker" in args and below(int(pid))]


def test_workers_are_asked_for_on_nodes_of_a_label(run: Run) -> None:
    # Ray itself gives every node this label.
    with launch(run, resources={"near": "ray.io/node-id"}, steps=2) as process:
        told, _ = process.communicate(timeout=600)
    assert result_of(told)["finished"]


def test_a_run_whose_worker_is_killed_twice_ends_with_the_same_bits(
    run: Run, corpus: str, tmp_path: Path
) -> None:
    with launch(run) as process:
        for step in (8, 22):
            wait_until(lambda step=step: reached(run, step))  # type: ignore[misc]
            os.kill(workers_of(process)[0], signal.SIGKILL)
        told, _ = process.communicate(timeout=600)
    result = result_of(told)
    assert (result["step"], result["attempt"], result["finished"]) == (40, 3, True)
    plain = Run(data=corpus, output=tmp_path / "plain", changes=run.changes)
    plain.start()
    assert run.losses() == plain.losses()


def test_a_run_whose_worker_hangs_is_started_again_and_ends_with_the_same_bits(
    run: Run, corpus: str, tmp_path: Path
) -> None:
    shown = tmp_path / "stderr"
    with shown.open("w") as stderr, launch(run, stderr, faults={"watchdog_seconds": 40.0}) as process:
        wait_until(lambda: reached(run, 8))
        os.kill(workers_of(process)[1], signal.SIGSTOP)
        told, _ = process.communicate(timeout=600)
    result = result_of(told)
    assert (result["step"], result["attempt"], result["finished"]) == (40, 2, True)
    (why,) = failures(
        Folder(str(run.output))
    ).values()  # rank 0 holds the store that ranks compare themselves in
    assert re.search(
        r"rank 1 gives no sign of life; others wait in step \d+ in the|\(rank 0\) does not answer", why
    )
    assert why in shown.read_text()
    plain = Run(data=corpus, output=tmp_path / "plain", changes=run.changes)
    plain.start()
    assert run.losses() == plain.losses()


def interrupt(process: int) -> None:
    """What Ctrl-C does: the whole group gets it, Ray's processes too."""
    os.killpg(process, signal.SIGINT)


def terminate(process: int) -> None:
    os.kill(process, signal.SIGTERM)


@pytest.mark.parametrize("stop", [interrupt, terminate])
def test_a_launch_that_is_told_to_end_saves_a_checkpoint_first(run: Run, stop: Callable[[int], None]) -> None:
    with launch(run, steps=100_000, checkpoint={"every": 50_000}) as process:
        wait_until(lambda: reached(run, 10))
        stop(process.pid)
        told, _ = process.communicate(timeout=600)
    result = result_of(told)
    assert (process.returncode, result["finished"]) == (0, False)
    assert run.checkpoints()[-1].startswith(f"step-{result['step']:08d}")


def test_too_many_skips_end_a_launch_without_another_try(run: Run) -> None:
    with launch(run, faults={"nan_at_step": [2, 3], "max_skips": 2}) as process:
        told, _ = process.communicate(timeout=600)
    assert "2 batches in a row were skipped" in result_of(told)["stopped"]
    assert len(list((run.output / "attempts").glob("*.claim"))) == 1


def test_a_launch_that_another_one_superseded_ends_and_does_not_begin_again(run: Run) -> None:
    with launch(run, steps=100_000) as process:
        wait_until(lambda: reached(run, 8))
        assert claim(Folder(str(run.output))) == 2
        told, _ = process.communicate(timeout=600)
    assert "attempt 1" in result_of(told)["stopped"]
    assert "has been superseded" in result_of(told)["stopped"]
    assert len(list((run.output / "attempts").glob("*.claim"))) == 2


def test_a_run_name_that_is_taken_ends_a_launch_on_every_rank(run: Run, tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "own"), {"web": [1700]})
    name = run.recipe().run.name
    other = RunFact(
        run=name,
        output="/elsewhere",
        plan_fingerprint="",
        order_version=1,
        seed=0,
        seq_len=1,
        global_batch=1,
        plan="",
    )
    log = FactLog(Folder(str(tmp_path / "other")), claim(Folder(str(tmp_path / "other"))))
    log.add(other)
    assert commit(log, open_corpus([DataTable(out=data.url)]).outputs)
    with launch(run, data=data.url) as process:
        told, _ = process.communicate(timeout=600)
    assert "give this run another run.name" in result_of(told)["stopped"]


def test_a_launch_that_gets_nowhere_gives_up_and_says_why(run: Run, tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "own"), {"web": [1700]})
    shutil.rmtree(data.at("shards"))
    with launch(run, data=data.url) as process:
        told, _ = process.communicate(timeout=800)
    stopped = result_of(told)["stopped"]
    assert "4 starts in a row got from step 0 to no new checkpoint" in stopped
    assert "FileNotFoundError" in stopped
