"""A local Ray has no process that only a cluster needs; a cluster keeps all of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.checkout import ROOT

DATASET = """
import json, psutil, ray
from pipeline.cluster.dataset import run_units
from pipeline.cluster.session import ray_session
from pipeline.cluster.tasks import TaskResources

def double(job, item):
    return job * item

ray.cloudpickle.register_pickle_by_value(__import__("__main__"))

def look():
    ended = []
    found = sorted(run_units(double, 2, range(3), TaskResources(), operator="double", ended=ended.append))
    processes = [" ".join(one.cmdline()) for one in psutil.Process().children(recursive=True)]
    actors = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return found, ended[0].lines, processes, sorted(actors)
"""
LOCAL = """
with ray_session("local", num_cpus=1):
    print(json.dumps(look()))
"""
JOINED = """
from pipeline.cluster.address import on_loopback
with ray_session("local", num_cpus=1):
    pass  # what it has replaced is as it was
with on_loopback():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
with ray_session("auto"):
    print(json.dumps(look()))
"""
OF_A_CLUSTER = ("/autoscaler/", "log_monitor.py", "dashboard.py")


def looked_at(script: str) -> tuple[list[list[int]], list[str], list[str], list[str]]:
    ended = subprocess.run(
        [sys.executable, "-c", DATASET + script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found, stats, processes, actors = json.loads(ended.stdout)
    return found, stats, processes, actors


def test_a_dataset_on_a_local_ray_runs_without_the_processes_and_actors_of_a_cluster() -> None:
    found, stats, processes, actors = looked_at(LOCAL)
    assert found == [[0, 0], [1, 2], [2, 4]]
    assert any("MapBatches(double): 3 tasks executed" in line for line in stats), stats
    assert any("gcs_server" in command for command in processes)
    assert not [command for command in processes for name in OF_A_CLUSTER if name in command]
    assert actors == []


def test_a_ray_that_was_started_elsewhere_keeps_them() -> None:
    found, _, processes, actors = looked_at(JOINED)
    assert found == [[0, 0], [1, 2], [2, 4]]
    assert all(any(name in command for command in processes) for name in OF_A_CLUSTER), processes
    assert actors == ["AutoscalingCoordinator", "datasets_stats_actor"]
