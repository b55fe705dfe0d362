"""A Ray cluster over several network namespaces: nodes that are cut off, come back, or are slow and lossy, in
a data run, a training that recovers in place, and a submission."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.inputs.tiny_crawl import inputs_of, make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe
from tests.support.processes.ray_nodes import Node, RayCluster, ray_cluster, wait_until
from tests.support.processes.torn_network import DEVICE, Host, Network, torn_network, why_not
from tests.support.training.training_runs import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(told := why_not()), reason=f"no network namespaces with a TUN device here: {told}"
    ),
]

SLOW = {"delay": 0.2, "loss": 0.05}
"""What a line is now and then between distant places, in seconds and as a share of the packets sent."""
STEPS = 40
_SETTINGS = {
    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE,
    # Dead after ten seconds without an answer.
    "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A crawl, and what one machine made of it and of a training on it."""

    folder: Path
    tokenizer: str
    bytes: dict[str, str]
    trained: Run

    def data(self, name: str) -> str:
        """The recipe of a data run into `name`."""
        return str(write_recipe(self.folder / f"{name}.toml", self.plain(name)))

    def plain(self, name: str) -> dict[str, Any]:
        tables = {"tokenize": {"shard_tokens": 8_000, "encoding": self.tokenizer}, "ray": ON_RAY}
        return recipe(str(self.folder / name), inputs_of(self.folder / "crawl"), **tables)

    def run(self, name: str) -> Run:
        """A training into `name`, as far as one machine carries it out too."""
        changes = {"workers": 2, "steps": STEPS, "zero": 0, "checkpoint": {"every": STEPS}}
        return Run(data=str(self.folder / "here"), output=self.folder / name, changes=changes)

    def training(self, run: Run, **changes: Any) -> str:
        """The recipe of that training in place over three nodes."""
        asked = {
            "recovery": {"mode": "in_place", "spares": 1},
            "resources": {"placement": "STRICT_SPREAD"},
            "faults": {"watchdog_seconds": 60.0},
        } | changes
        return str(write_recipe(self.folder / f"{run.output.name}.toml", as_toml_table(run, asked)))


def as_toml_table(run: Run, changes: dict[str, Any]) -> dict[str, Any]:
    table = run.table(changes)
    return {"run": {"name": run.output.name}, "train": table}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    (folder / "crawl").mkdir()
    make_tiny_crawl(folder / "crawl")
    world = World(folder=folder, tokenizer=tiny_tokenizer(folder / "crawl"), bytes={}, trained=None)  # type: ignore[arg-type]
    run(folder / "run-here", world.plain("here") | {"ray": {"address": "none"}})
    trained = world.run("trained-here")
    trained.start()
    return World(
        folder=folder,
        tokenizer=world.tokenizer,
        bytes=fingerprint(str(folder / "here")),
        trained=trained,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """A head on the first host, a node each on the second and third; the last is the submitter's."""

    network: Network
    cluster: RayCluster
    nodes: dict[int, Node]

    @property
    def submitter(self) -> Host:
        return self.network.hosts[3]

    def heal(self) -> None:
        """All lines as they were; a new node on each host whose node is gone, as who runs a cluster starts
        one."""
        for host in self.network.hosts:
            self.network.line(host)
        for host in self.network.hosts[1:3]:
            node = self.nodes.get(host.number)
            if node is not None and self.works(host):
                continue
            if node is not None:
                node.kill()
            self.nodes[host.number] = self.cluster.add_node(num_cpus=1, host=host)

    def rank_and_host(self, run: Run) -> tuple[int, Host]:
        """A rank of a training that is not on the head, and its host."""
        hosts = {
            pid: self.network.hosts[number] for number in self.nodes for pid in self.nodes[number].processes()
        }
        return next((rank, hosts[row["pid"]]) for rank, row in ranks(run).items() if row["pid"] in hosts)

    def works(self, host: Host) -> bool:
        return host.address in self.cluster.alive_at()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Torn]:
    with (
        torn_network(4) as network,
        ray_cluster(
            tmp_path_factory.mktemp("cluster"), num_cpus=1, host=network.hosts[0], **_SETTINGS
        ) as cluster,
    ):
        yield Torn(network=network, cluster=cluster, nodes={})


@pytest.fixture
def torn(made: Torn) -> Torn:
    made.heal()
    return made


@contextmanager
def submitted(torn: Torn, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = torn.cluster.start_sluice("submit", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_run_one_of_whose_nodes_is_cut_off_ends_with_the_same_bytes(torn: Torn, world: World) -> None:
    away = torn.network.hosts[1]
    with submitted(torn, "run", world.data("cut"), "--set", "ray.max_in_flight=4") as process:
        wait_until(lambda: torn.nodes[1].works_at("MapBatches("), "a unit is under way on the node")
        torn.network.line(away, is_cut=True)
        wait_until(lambda: not torn.works(away), "the node that was cut off counts as dead")
        # It comes back with what it had in hand, and is not to do harm.
        torn.network.line(away)
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert fingerprint(str(world.folder / "cut")) == world.bytes


def test_a_run_over_a_slow_and_lossy_line_ends_with_the_same_bytes(torn: Torn, world: World) -> None:
    torn.network.line(torn.network.hosts[1], **SLOW)
    before = torn.network.num_passed()[1]
    with submitted(torn, "run", world.data("slow"), "--set", "ray.max_in_flight=4") as process:
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert torn.network.num_passed()[1] > before + 100
    assert torn.works(torn.network.hosts[1])
    assert fingerprint(str(world.folder / "slow")) == world.bytes


def at_step(run: Run, step: int) -> bool:
    metrics = run.output / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") >= step


def ranks(run: Run) -> dict[int, dict[str, Any]]:
    rows = json.loads((run.output / "ranks.json").read_text())
    return {row["rank"]: row for row in rows if row["role"] == "rank"}


def test_a_rank_that_is_cut_off_is_replaced_and_its_return_changes_nothing(torn: Torn, world: World) -> None:
    run = world.run("trained-cut")
    with submitted(torn, "train", world.training(run)) as process:
        wait_until(lambda: at_step(run, 5), "five steps are done")
        rank, away = torn.rank_and_host(run)
        before = ranks(run)[rank]["pid"]
        torn.network.line(away, is_cut=True)
        wait_until(lambda: ranks(run)[rank]["pid"] != before, "another one has the rank")
        torn.network.line(away)
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert not list((run.output / "attempts").glob("*.error"))
    assert f"rank {rank} was lost: a spare takes its place" in out
    assert run.losses() == world.trained.losses()
    assert run.sequences() == world.trained.sequences()


def test_a_training_over_a_slow_and_lossy_line_has_the_same_losses_and_names_the_rank(
    torn: Torn, world: World
) -> None:
    run = world.run("trained-slow")
    with submitted(torn, "train", world.training(run, health={"every": 15})) as process:
        wait_until(lambda: at_step(run, 2), "two steps are done")
        rank, host = torn.rank_and_host(run)
        torn.network.line(host, **SLOW)
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert run.losses() == world.trained.losses()
    assert run.sequences() == world.trained.sequences()
    # What a host's line loses, that host sends again.
    named = re.findall(r"^health: rank (\d+) \(.*\) shows a sign: [\d,]+ tcp segments sent again", out, re.M)
    assert {int(number) for number in named} == {rank}


def test_a_submitter_that_is_cut_off_finds_its_job_again_and_hears_the_rest(torn: Torn, world: World) -> None:
    run = world.run("trained-unseen")
    torn.submitter.enter()
    try:
        process = torn.cluster.start_sluice("submit", "train", world.training(run))
    finally:
        torn.network.hosts[0].enter()
    try:
        wait_until(lambda: at_step(run, 5), "five steps are done")
        torn.network.line(torn.submitter, is_cut=True)
        wait_until(lambda: at_step(run, STEPS), "the training went on unseen")
        torn.network.line(torn.submitter)
        out, err = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out + err
    assert out.count(f"Done: run 'trained-unseen', {STEPS} steps") == 1
    assert out.count(f"step {STEPS - 1}/{STEPS}") == 1
    assert run.losses() == world.trained.losses()
