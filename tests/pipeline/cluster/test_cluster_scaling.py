"""A cluster that scales from zero: nodes come when a run asks for them, and go when it is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe
from tests.support.processes.ray_nodes import ray_cluster, wait_until

pytestmark = pytest.mark.slow


def test_nodes_come_for_a_run_and_for_a_training_and_go_when_they_are_done(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    sources = make_tiny_crawl(tmp_path / "crawl")
    encoding, ray = {"encoding": tiny_tokenizer(tmp_path / "crawl")}, {"unit_resource": "data", "max_in_flight": 4}
    there = recipe(str(tmp_path / "there"), sources, tokenize=encoding, ray=ray)
    path = str(write_recipe(tmp_path / "recipe.toml", there))
    table = {
        "data": str(tmp_path / "there"),
        "output": str(tmp_path / "trained"),
        "model": "debug",
        "seq_len": 64,
        "global_batch": 4,
        "steps": 10,
        "workers": 2,
        "resources": {"resource": "data", "placement": "STRICT_SPREAD"},
    }
    training = str(write_recipe(tmp_path / "training.toml", {"run": {"name": "grown"}, "train": table}))
    grows = {"resources": {"CPU": 1, "data": 1}, "max_workers": 2}
    with ray_cluster(tmp_path, num_cpus=0, grows=grows, OMP_NUM_THREADS="1") as cluster:
        never = cluster.sluice("submit", "run", path, "--set", "ray.unit_cpus=3")
        assert "no node has CPU 3" in never.stdout and "set ray.grows = true" in never.stdout
        for submission in (("run", path), ("train", training)):
            assert len(cluster.alive()) == 1
            process = cluster.start_sluice("submit", *submission, "--set", "ray.grows=true")
            wait_until(lambda: len(cluster.alive()) == 3 or process.poll() is not None, "two nodes have come")  # noqa: B023 - waited for here
            out, err = process.communicate()
            assert process.returncode == 0, out + err
            wait_until(lambda: len(cluster.alive()) == 1, "the nodes have gone again")
    run(tmp_path / "local", recipe(str(tmp_path / "here"), sources, tokenize=encoding))
    assert fingerprint(str(tmp_path / "there")) == fingerprint(str(tmp_path / "here"))
