"""A Ray that a command starts for itself serves this machine alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STARTS = {
    "run": """
from pipeline.engine import cluster
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
