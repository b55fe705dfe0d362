"""A short training run on Ray Train is the run that a plain process makes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lineage.storage.folder import Folder
from pipeline.cluster.session import ray_session
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.in_place.survivor import ParticipantJob
from trainer.launch import _ActorProcesses, stop_file, train_on_ray
from trainer.processes.placement import local_cpus, workers_of


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
def test_a_call_that_is_stopped_before_its_workers_are_there_stops_no_other_call_of_the_run(
    tmp_path: Path, small_ray: None
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    changes = {"workers": 1, "steps": 60, "checkpoint": {"every": 50}, "record_batches": False}
    run = Run(data=corpus, output=tmp_path / "on-ray", changes=changes)
    metrics, asked = run.output / "metrics.jsonl", list[int]()

    def stop_the_other() -> None:
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            time.sleep(0.01)
        Folder(str(run.output)).publish(stop_file("another-launch"), b"")
        asked.append(metrics.read_text().count("\n"))

    other = threading.Thread(target=stop_the_other, daemon=True)
    other.start()
    with ray_session("local", training_cpus=local_cpus(run.recipe().train)):
        result = train_on_ray(run.recipe())
    assert asked[0] < 60, "the run was under way"
    assert (result.step, result.finished) == (60, True)
    assert (run.output / stop_file("another-launch")).exists(), "the other call has still to see it"


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


class Holder:
    """An actor that holds what it reserves."""

    def is_there(self) -> bool:
        return True


@pytest.mark.slow
def test_an_actor_that_has_no_place_is_ended_without_waiting_for_one(tmp_path: Path, small_ray: None) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700]}).url
    recipe = Run(data=corpus, output=tmp_path / "run", changes={"workers": 2}).recipe()
    with ray_session("local", training_cpus=local_cpus(recipe.train)):
        workers = workers_of(recipe.train, 0.0)
        job = ParticipantJob(recipe=recipe, launch="launch", began_at=0.0)
        processes = _ActorProcesses(recipe, workers, job, port=1)
        place = PlacementGroupSchedulingStrategy(processes._group, placement_group_bundle_index=0)
        holder = ray.remote(num_cpus=1)(Holder).options(scheduling_strategy=place).remote()
        assert ray.get(holder.is_there.remote())
        processes.start(0)
        processes.kill(0)
        assert processes.ended(60) == [(0, "was lost")]
        processes.close()
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(holder.is_there.remote())
