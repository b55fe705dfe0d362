"""A Ray that a command starts for itself serves this machine alone; one that it is sent to has to answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.recipe import parse_table
from pipeline.cluster.capacity import ResourceError
from pipeline.cluster.engine import cluster
from pipeline.recipe import RayTable
from tests.support.runs import recipe, write_recipe
from trainer.launch import _connect
from trainer.options import TrainRecipe
from trainer.processes.address import check_answers

STARTS = {
    "run": """
from pipeline.cluster.engine import cluster
from pipeline.recipe import RayTable
around = cluster(RayTable(num_cpus=1))
""",
    "train": """
import contextlib
from lineage.recipe import parse_table
from trainer.launch import _connect
from trainer.options import TrainRecipe
train = {"data": "out", "output": "runs/x", "model": "debug", "seq_len": 64, "global_batch": 2, "steps": 1}
_connect(parse_table(TrainRecipe, {"run": {"name": "x"}, "train": train}))
around = contextlib.nullcontext()
""",
}
LOOK = """
import json, os, psutil, ray
with around:
    assert ray.get(ray.remote(lambda: 41 + 1).remote()) == 42
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [end.laddr.ip for one in processes for end in one.net_connections("inet") if end.status == "LISTEN"]
print(json.dumps([found, os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")]))
"""


@pytest.mark.parametrize("command", STARTS)
def test_every_server_of_a_local_ray_listens_on_loopback(command: str) -> None:
    ended = subprocess.run([sys.executable, "-c", STARTS[command] + LOOK], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    addresses, switch = json.loads(ended.stdout)
    assert len(addresses) > 5
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    assert switch is None  # a cluster that this process starts or joins later is none of it


@pytest.mark.skipif(sys.platform != "linux", reason="Ray brings jemalloc for Linux alone")
def test_the_workers_of_a_local_ray_allocate_by_jemalloc() -> None:
    look = "import ray\nwith around: print(ray.get(ray.remote(lambda: open('/proc/self/maps').read()).remote()))"
    ended = subprocess.run([sys.executable, "-c", STARTS["run"] + look], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "/libjemalloc.so" in ended.stdout


@pytest.fixture
def nobodys_address():
    """A host and port where nobody listens: it stays bound, so that nobody can come to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_run_and_a_training_are_told_at_once_that_no_cluster_answers(nobodys_address):
    # Ray's own words, after two minutes, name its GCS; "refused" are those of a socket.
    words = f"ray.address = '{nobodys_address}': no Ray cluster answers there .*refused"
    with pytest.raises(ResourceError, match=words), cluster(RayTable(address=nobodys_address)):
        pass
    train = {"data": "out", "output": "runs/x", "model": "debug", "seq_len": 64, "global_batch": 2, "steps": 1}
    recipe = {"run": {"name": "x"}, "train": train, "ray": {"address": nobodys_address}}
    with pytest.raises(ConnectionError, match=words):
        _connect(parse_table(TrainRecipe, recipe))


JOINS = """
import sys
from pipeline.cluster.engine import cluster
from pipeline.recipe import RayTable
with cluster(RayTable(address=sys.argv[1])):
    import ray
    print(ray.get(ray.remote(lambda: 41 + 1).remote()))
"""


def test_another_process_can_join_a_ray_that_listens_on_loopback_alone(small_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    ended = subprocess.run([sys.executable, "-c", JOINS, address], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr[-2000:]


FAILS = """
import os, sys
from pathlib import Path
from ray._private import services
marks, times = Path(sys.argv[1]), int(sys.argv[2])
raylet = marks / "raylet"  # Ray's own program, which the first times ends before it has begun
raylet.write_text(f'''#!/bin/sh
for n in $(seq 1 {times}); do mkdir {marks}/start-$n 2>/dev/null && exit 1; done
exec {services.RAYLET_EXECUTABLE} "$@"
''')
raylet.chmod(0o755)
services.RAYLET_EXECUTABLE = str(raylet)
"""
COUNT = """
import psutil, ray
with around:
    print(ray.get(ray.remote(lambda: 41 + 1).remote()))
    print(sum("gcs_server" in child.name() for child in psutil.Process().children(recursive=True)))
"""
COMMAND = """
from pipeline.cli.main import main
sys.argv[1:3] = []
sys.exit(main(["run", *sys.argv[1:]]))
"""


@pytest.mark.slow  # Ray waits for its servers for half a minute before it gives up
@pytest.mark.parametrize("command", STARTS)
def test_a_ray_that_does_not_come_up_is_started_once_more(command: str, tmp_path: Path) -> None:
    script = FAILS + STARTS[command] + COUNT
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "1"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "42\n1\n"), ended.stderr[-2000:]
    assert "Ray did not start and is started once more" in ended.stderr


@pytest.mark.slow
def test_a_ray_that_does_not_come_up_twice_is_told_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "posts.jsonl").write_text(json.dumps({"text": "Some words."}) + "\n")
    path = write_recipe(tmp_path / "r.toml", recipe(str(tmp_path / "out"), {"a": (str(tmp_path / "posts.jsonl"),)}))
    ended = subprocess.run(
        [sys.executable, "-c", FAILS + COMMAND, str(tmp_path), "9", str(path)], capture_output=True, text=True,
        check=False, env=os.environ | {"RAY_raylet_start_wait_time_s": "1"},
    )  # fmt: skip
    assert ended.returncode == 1
    told = ended.stderr[ended.stderr.index("sluice run: ") :].splitlines()
    assert len(told) == 2 and "Traceback" not in ended.stderr
    assert told[0].startswith("sluice run: Ray did not start on this machine, twice: ")
    assert "logs" in told[1] and "call again" in told[1]
    assert sorted(path.name for path in tmp_path.glob("start-*")) == ["start-1", "start-2"]


def test_what_is_no_host_and_port_is_left_to_ray():
    for address in ("auto", "local", "session_2026-11-22", "host:", ":6379"):
        check_answers(address)
    for address in ("127.0.0.1:99999", "ray://127.0.0.1:99999", "[::1]:99999"):
        with pytest.raises(ConnectionError):
            check_answers(address)
