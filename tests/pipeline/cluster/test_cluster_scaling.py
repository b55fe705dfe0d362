"""A cluster that scales from zero: nodes come when a run asks for them, may be lost, and go when it is
done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe
from tests.support.processes.ray_nodes import HEAD_ID, ray_cluster, wait_until

pytestmark = pytest.mark.slow

NUM_UNITS = 200
WAITING = """
import pathlib, time

def wait(document):
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.1)
    time.sleep(0.1)
    return document
"""


def test_nodes_come_for_a_run_and_for_a_training_and_go_when_they_are_done(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    sources = make_tiny_crawl(tmp_path / "crawl")
    encoding, ray = (
        {"encoding": tiny_tokenizer(tmp_path / "crawl")},
        {"unit_resource": "data", "max_in_flight": 4},
    )
    there = recipe(str(tmp_path / "there"), sources, tokenize=encoding, ray=ON_RAY | ray)
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


def test_all_units_ask_for_their_processors_at_once_and_nodes_that_come_and_are_lost_change_no_byte(
    tmp_path: Path,
) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(NUM_UNITS):
        rows = [
            {"text": f"text {row} of file {number} says {'some words ' * (number + row)}"} for row in range(3)
        ]
        (tmp_path / "texts" / f"{number:03d}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    plain = recipe(str(tmp_path / "there"), {"texts": (f"{tmp_path}/texts/*.jsonl",)}, ray=ON_RAY)
    plain["source"][0]["steps"] = ["parse", "waiting:wait", "identity"]
    path = str(write_recipe(tmp_path / "recipe.toml", plain))
    grows, there = {"resources": {"CPU": 1}, "max_workers": 3}, Folder(f"{tmp_path}/there")
    with ray_cluster(tmp_path, num_cpus=0, grows=grows) as cluster:
        (cluster.project / "waiting.py").write_text(WAITING.format(go=f"{tmp_path}/go"))
        process = cluster.start_sluice("submit", "run", path, "--set", "ray.grows=true")

        def wait(ready: Callable[[], bool], what: str) -> None:
            wait_until(lambda: ready() or process.poll() is not None, what)

        wait(lambda: len(cluster.alive()) == 4, "three nodes have come")
        wait(lambda: cluster.num_waiting() == NUM_UNITS - 3, "all other units wait")
        (tmp_path / "go").touch()
        nodes = set(cluster.alive())
        for num_units in (40, 80):
            wait(lambda num=num_units: len(there.names("documents")) >= num, "so many units are read")
            cluster.lose(max(node for node in cluster.alive() if node != HEAD_ID), "MapBatches(read")
            wait(lambda: not nodes.issuperset(cluster.alive()), "another node has come")
            nodes.update(cluster.alive())
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        assert len(nodes) == 6
    local = [sys.executable, "-m", "pipeline", "run", path, "--set", f"run.output={tmp_path}/here"]
    subprocess.run(local, cwd=cluster.project, check=True)
    assert fingerprint(str(tmp_path / "there")) == fingerprint(str(tmp_path / "here"))
