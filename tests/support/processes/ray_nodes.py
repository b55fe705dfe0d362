"""A Ray cluster whose nodes are processes of this machine: tokens on, ports of its own, nodes that can be
killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.jobs.submission import Submission, project_files, write_package
from tests.support.checkout import ROOT
from tests.support.processes.torn_network import Host

TOKEN = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
DEADLINE = 600.0
_RAY = str(Path(sys.executable).with_name("ray"))
_RESOURCES = ("--object-store-memory=100000000", "--num-gpus=0")
_PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats")
_HERE = "127.0.0.1"
_DEAD_SOON = {
    "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3", "RAY_health_check_initial_delay_ms": "500",
}  # fmt: skip
"""A node that does not answer counts as dead after a second or two instead of fifteen."""
_PORT_NUMBERS = itertools.cycle(random.Random(os.getpid()).sample(range(20_000, 32_000), 12_000))
HEAD_ID = "f" * 51 + "00000"
_FAKE = {
    "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    "PYTHONPATH": str(ROOT),
}  # fmt: skip


def wait_until(ready: Callable[[], bool], what: str) -> None:
    """Wait for a condition; TimeoutError names it after ten minutes."""
    deadline = time.monotonic() + DEADLINE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {DEADLINE:.0f} s still not so: {what}")
        time.sleep(0.1)


def free_ports(num: int) -> list[int]:
    """Ports that nobody listens on, above those of Ray's workers and below those that the system gives away:
    until Ray, which has to be told its ports, binds them, neither another server's port 0 nor a connection
    can come to be there. The next call gives others."""
    found: list[int] = []
    while len(found) < num:
        port = next(_PORT_NUMBERS)
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node: the process of `ray start --block` and what it started."""

    process: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> dict[int, str]:
        """Process id and command line of all that belong to the node."""
        return _processes(self.process.pid)

    def works_at(self, name: str) -> bool:
        """Whether a worker process of the node has work of this name in hand."""
        return _have_work(self.processes(), name)

    def kill(self) -> None:
        """As when the machine loses its power."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """End it as Ray wants to be ended, and what is left by force."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kill()


@dataclass(slots=True, kw_only=True)
class RayCluster:
    """A head, started without any key of the object store, and the nodes that are added."""

    folder: Path
    temp: Path
    ip: str
    port: int
    address: str
    project: Path
    environment: Mapping[str, str]
    head: Node
    nodes: list[Node] = field(default_factory=list)

    def add_node(
        self, num_cpus: int = 1, resources: Mapping[str, float] | None = None, host: Host | None = None
    ) -> Node:
        """One more node, on a host of the head's network if it has one; returns when the head knows it."""
        before = set(self.alive())
        ports = free_ports(2)
        node = _start(
            self.folder / f"node-{len(self.nodes)}.log",
            self.environment,
            host,
            f"--address={self.ip}:{self.port}",
            f"--num-cpus={num_cpus}",
            f"--resources={json.dumps(resources or {})}",
            f"--dashboard-agent-listen-port={ports[0]}",
            f"--metrics-export-port={ports[1]}",
            # Not the head's: each node unpacks what a job ships, and would do so while the other reads it.
            f"--temp-dir={self.temp}/{len(self.nodes)}",
        )
        self.nodes.append(node)
        _wait_for(node, lambda: bool(set(self.alive()) - before))
        return node

    def alive(self) -> list[str]:
        """The ids of the nodes that count as alive."""
        return [node["nodeId"] for node in self._alive()]

    def alive_at(self) -> list[str]:
        """Their addresses."""
        return [node["nodeManagerAddress"] for node in self._alive()]

    def _alive(self) -> list[dict[str, Any]]:
        told = json.loads(self.answer("/nodes?view=summary"))["data"]["summary"]
        return [node["raylet"] for node in told if node["raylet"]["state"] == "ALIVE"]

    def num_waiting(self) -> int:
        """How many tasks wait for a processor, as the autoscaler sees them."""
        count = (
            "import sys; from ray.autoscaler.v2.sdk import get_cluster_status;"
            "demands = get_cluster_status(sys.argv[1]).resource_demands.ray_task_actor_demand;"
            "print(sum(shape.count for demand in demands for shape in demand.bundles_by_count))"
        )
        command = [sys.executable, "-c", count, f"{self.ip}:{self.port}"]
        return int(subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE).stdout)

    def lose(self, node_id: str, name: str) -> None:
        """Kill a node that the autoscaler added, with all that works on it, once it has work of this name in
        hand."""
        [raylet] = [pid for pid, args in self.head.processes().items() if f"--node_id={node_id} " in args]
        wait_until(
            lambda: _have_work(_processes(raylet), name), f"node {node_id} has work of the name {name}"
        )
        for pid in _processes(raylet):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def answer(self, path: str) -> str:
        """What the dashboard says to someone with the token."""
        request = urllib.request.Request(self.address + path, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read().decode())

    def start_sluice(self, *arguments: str, token: str | None = TOKEN) -> subprocess.Popen[str]:
        """A sluice command that talks to the cluster, in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_TOKEN_PATH": os.devnull}
        command = [sys.executable, "-m", "pipeline", *arguments, "--address", self.address]
        return subprocess.Popen(
            command,
            cwd=self.project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sluice(self, *arguments: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
        """The same, carried out to its end."""
        process = self.start_sluice(*arguments, token=token)
        try:
            out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def told(self, *arguments: str) -> Any:
        """The JSON that a command which must succeed prints."""
        ended = self.sluice(*arguments, "--json")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return json.loads(ended.stdout)


def _have_work(processes: Mapping[int, str], name: str) -> bool:
    return any(args.startswith(f"ray::{name}") for args in processes.values())


def _processes(root: int) -> dict[int, str]:
    """Process id and command line of a process, what it started, and what is in its group."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid,ppid,pgid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _, _ in rows}

    def below(pid: int) -> bool:
        return pid == root or (pid in parents and below(parents[pid]))

    return {int(pid): args for pid, _, group, args in rows if int(group) == root or below(int(pid))}


@contextmanager
def ray_cluster(
    scratch: Path,
    num_cpus: int = 2,
    grows: Mapping[str, Any] | None = None,
    host: Host | None = None,
    **environment: str,
) -> Iterator[RayCluster]:
    """A head of its own with this many processors, on a host if one is given; everything is stopped at the
    end. `environment` is the nodes'.

    `grows`: resources and max_workers of nodes that Ray's autoscaler adds as they are asked for, and takes
    away again when they have been idle for some seconds; its fake provider starts them as processes of this
    machine."""
    ports = free_ports(5)
    temp = Path("/tmp") / f"sl{os.getpid()}"  # Ray's sockets need a short path
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **_DEAD_SOON, **environment}
    # As in our images: `python` is the one that has the libraries.
    settings["PATH"] = f"{Path(sys.executable).parent}:{settings['PATH']}"
    # A copy of the code: what is edited during the test would make another submission.
    project = scratch / "project"
    write_package(Submission(command="run", arguments=(), files=project_files()), {}, project)
    options = [
        "--head",
        f"--port={ports[0]}",
        f"--num-cpus={num_cpus}",
        f"--dashboard-host={_HERE if host is None else host.address}",
        f"--dashboard-port={ports[1]}",
        f"--metrics-export-port={ports[2]}",
        f"--ray-client-server-port={ports[3]}",
        f"--dashboard-agent-listen-port={ports[4]}",
        f"--temp-dir={temp}",
    ]
    if grows is not None:
        options.append(f"--autoscaling-config={_autoscaling(scratch, temp, ports[0], num_cpus, grows)}")
        settings |= _FAKE
    head = _start(scratch / "head.log", settings, host, *options)
    cluster = RayCluster(
        folder=scratch,
        temp=temp,
        ip=_HERE if host is None else host.address,
        port=ports[0],
        address=f"http://{_HERE if host is None else host.address}:{ports[1]}",
        project=project,
        environment=settings,
        head=head,
    )
    try:
        _wait_for(head, lambda: bool(cluster.answer("/api/jobs/")) and bool(cluster.alive()))
        yield cluster
    finally:
        for node in (*cluster.nodes, head):
            node.stop()
        shutil.rmtree(temp, ignore_errors=True)


def _autoscaling(scratch: Path, temp: Path, port: int, num_cpus: int, grows: Mapping[str, Any]) -> Path:
    """The file that tells the autoscaler of its nodes."""
    nothing = {
        name: []
        for name in (
            "initialization_commands",
            "setup_commands",
            "head_setup_commands",
            "worker_setup_commands",
            "head_start_ray_commands",
            "worker_start_ray_commands",
            "cluster_synced_files",
            "rsync_exclude",
            "rsync_filter",
        )
    }
    config = {
        "cluster_name": "fake",
        "max_workers": grows["max_workers"],
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 10.0,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "head_node_type": "ray.head.default",
        "provider": {
            "type": "external",
            "module": "tests.support.processes.fake_nodes.NodesWithFolders",
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": f"127.0.0.1:{port}",
            "temp_dir": str(temp),
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": num_cpus}, "max_workers": 0, "node_config": {}},
            "grows": {"node_config": {}, "min_workers": 0, **grows},
        },
    }
    path = scratch / "autoscaling.yaml"
    path.write_text(json.dumps(config | nothing))  # JSON is YAML
    return path


def _start(log: Path, environment: Mapping[str, str], host: Host | None, *options: str) -> Node:
    on_host = () if host is None else ("nsenter", f"--net={host.namespace}")
    ip = f"--node-ip-address={_HERE if host is None else host.address}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*on_host, _RAY, "start", "--block", *_RESOURCES, *_PORTS, ip, *options],
            env=environment,
            start_new_session=True,
            stdout=file,
            stderr=file,
        )
    return Node(process=process, log=log)


def _wait_for(node: Node, ready: Callable[[], bool]) -> None:
    def is_up() -> bool:
        assert node.process.poll() is None, node.log.read_text()
        try:
            return ready()
        except OSError:
            return False

    wait_until(is_up, f"node is up: {node.log}")
