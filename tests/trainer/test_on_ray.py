"""A short training run on Ray Train is the run that a plain process makes."""

from __future__ import annotations

from pathlib import Path

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
