"""A short training run on Ray Train is the run that a plain process makes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from pipeline.cluster.session import ray_session
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.launch import train_on_ray
from trainer.processes.placement import local_cpus


def test_a_run_on_ray_train_has_the_losses_of_a_plain_process(tmp_path: Path, small_ray: None) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    changes = {"workers": 1, "steps": 3, "checkpoint": {"every": 2}, "record_batches": False}
    run = Run(data=corpus, output=tmp_path / "on-ray", changes=changes)
    with ray_session("local", training_cpus=local_cpus(run.recipe().train)):
        result = train_on_ray(run.recipe())
    assert (result.step, result.attempt, result.finished) == (3, 1, True)
    assert not (run.output / "ray").exists(), "what Ray kept of a run that is done"
    plain = Run(data=corpus, output=tmp_path / "plain", changes=changes)
    plain.start()
    assert run.losses() == plain.losses()


@pytest.mark.slow
def test_an_actor_that_waits_takes_the_place_of_a_killed_one(tmp_path: Path, small_ray: None) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    changes = {"workers": 2, "zero": 0, "steps": 80, "checkpoint": {"every": 50}}
    run = Run(data=corpus, output=tmp_path / "on-ray", changes=changes)
    asked = {"recovery": {"mode": "in_place", "spares": 1}}
    recipe = run.recipe(asked)
    killed: list[int] = []

    def kill() -> None:
        ranks, metrics = run.output / "ranks.json", run.output / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 10 or not ranks.exists():
            time.sleep(0.01)
        killed.append(json.loads(ranks.read_text())[1]["pid"])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with ray_session("local", training_cpus=local_cpus(recipe.train)):
        result = train_on_ray(recipe)
    assert (result.step, result.attempt, result.finished) == (80, 2, True)
    ranks = json.loads((run.output / "ranks.json").read_text())
    assert [row["generation"] for row in ranks if row["role"] == "rank"] == [1, 1]
    assert killed[0] not in [row["pid"] for row in ranks]
    plain = Run(data=corpus, output=tmp_path / "plain", changes=changes)
    plain.start()
    assert run.losses() == plain.losses()
    assert run.sequences() == plain.sequences()
