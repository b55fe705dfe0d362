"""The work on a Ray cluster of two nodes: the bytes and batches of one machine, whatever is killed
meanwhile."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from tests.support.inputs.tiny_crawl import inputs_of, make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, s3_server, write_recipe
from tests.support.processes.ray_nodes import Node, RayCluster, ray_cluster, wait_until
from tests.support.steps.tiny_encoder import make_encoder

pytestmark = pytest.mark.slow

BUCKET = "s3://bucket"
STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An object store with a crawl and what one machine made of it; `data` and `training` are recipes for the
    rest."""

    folder: Path
    tokenizer: str
    bytes: dict[str, str]
    batches: list[tuple[Any, ...]]
    losses: dict[int, float]

    def data(self, name: str) -> str:
        """The recipe of a data run into `name`."""
        return str(write_recipe(self.folder / f"{name}.toml", data_recipe(name, self.tokenizer)))

    def training(self, name: str, **resources: Any) -> str:
        """The recipe of a training run into `name`, with [train.resources]."""
        return str(write_recipe(self.folder / f"{name}.toml", training_recipe(name, **resources)))


def data_recipe(name: str, tokenizer: str) -> dict[str, Any]:
    sources = {
        source: (f"{BUCKET}/in/{Path(pattern).name}",) for source, (pattern,) in inputs_of(Path()).items()
    }
    return recipe(
        f"{BUCKET}/{name}", sources, tokenize={"shard_tokens": 8_000, "encoding": tokenizer}, ray=ON_RAY
    )


def training_recipe(name: str, **resources: Any) -> dict[str, Any]:
    table = {
        "data": f"{BUCKET}/here",
        "output": f"{BUCKET}/{name}",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 6,
        "steps": STEPS,
        "workers": 2,
        "dtype": "float64",
        "record_batches": True,
        "checkpoint": {"every": 5},
        "resources": resources,
    }
    return {"run": {"name": name}, "train": table}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with s3_server("bucket"):
        (folder / "crawl").mkdir()
        make_tiny_crawl(folder / "crawl")
        for path in sorted((folder / "crawl").iterdir()):
            Folder(f"{BUCKET}/in").publish(path.name, path.read_bytes())
        tokenizer = tiny_tokenizer(folder / "crawl")
        run(folder / "here", data_recipe("here", tokenizer))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        path = write_recipe(folder / "trained-here.toml", training_recipe("trained-here"))
        subprocess.run(
            [*torchrun, "-m", "trainer", str(path)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        yield World(
            folder=folder,
            tokenizer=tokenizer,
            bytes=fingerprint(f"{BUCKET}/here"),
            batches=batches("trained-here"),
            losses=losses("trained-here"),
        )


@pytest.fixture(scope="module")
def cluster(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("cluster"), OMP_NUM_THREADS="1") as cluster:
        yield cluster


@pytest.fixture
def worker(cluster: RayCluster) -> Iterator[Node]:
    """The second node."""
    node = cluster.add_node(num_cpus=2, resources={"data": 1})
    yield node
    node.stop()
    wait_until(lambda: len(cluster.alive()) == 1, "the node that was stopped counts as dead")


def batches(name: str) -> list[tuple[Any, ...]]:
    """What each step's newest attempt was fed, as the run recorded it: tokens by their hash."""
    out = Folder(f"{BUCKET}/{name}")
    files = [file for file in out.names("batches") if file.endswith(".parquet")]
    rows = [row for file in files for row in pq.read_table(io.BytesIO(out.read(file))).to_pylist()]
    newest: dict[int, int] = {}
    for row in rows:
        newest[row["step"]] = max(newest.get(row["step"], 0), row["attempt"])
    columns = ("step", "row", "epoch", "sequence", "source", "shard", "start", "num_tokens", "tokens_hash")
    return sorted(
        tuple(row[name] for name in columns) for row in rows if row["attempt"] == newest[row["step"]]
    )


def losses(name: str) -> dict[int, float]:
    """The newest attempt's loss of each step."""
    rows = [json.loads(line) for line in Folder(f"{BUCKET}/{name}").read("metrics.jsonl").splitlines()]
    return {row["step"]: row["loss"] for row in sorted(rows, key=lambda row: row["attempt"])}


def checkpoints(name: str) -> int:
    """How many checkpoints stand."""
    return sum(
        1 for file in Folder(f"{BUCKET}/{name}").names("checkpoints") if file.endswith("/complete.json")
    )


def submitted(process: subprocess.Popen[str]) -> str:
    """The id of the job that a `sluice submit` has begun."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("job sluice-") and line.rstrip().endswith("submitted"):
            return line.split()[1].rstrip(":")
    raise AssertionError("it ended before it had submitted anything")


def ids(cluster: RayCluster, job: str) -> list[str]:
    """The jobs of a submission: its own and later tries."""
    return [told["id"] for told in cluster.told("jobs") if told["id"].startswith(job)]


def test_without_its_token_nothing_is_submitted(cluster: RayCluster, world: World) -> None:
    missing = cluster.sluice("submit", "run", world.data("never"), token=None)
    assert (missing.returncode, "its token is missing (401)" in missing.stderr) == (1, True), missing.stderr
    wrong = cluster.sluice("submit", "run", world.data("never"), token="f" * 64)
    assert (wrong.returncode, "wrong (403)" in wrong.stderr) == (1, True), wrong.stderr
    assert cluster.sluice("jobs", token=None).returncode == 1
    assert not Folder(f"{BUCKET}/never").names()


def test_the_exit_code_and_the_message_are_the_commands_own(cluster: RayCluster, world: World) -> None:
    wrong = cluster.sluice("submit", "verify", f"{BUCKET}/nothing")
    assert wrong.returncode == 1
    assert f"{BUCKET}/nothing" in wrong.stdout


def test_a_run_outlives_its_submitter_and_gives_the_bytes_of_one_machine(
    cluster: RayCluster, worker: Node, world: World
) -> None:
    submit = ("submit", "run", world.data("there"))
    first = cluster.start_sluice(*submit)
    job = submitted(first)
    first.send_signal(signal.SIGKILL)
    first.wait()

    again = cluster.told(*submit)
    assert (again["id"], again["status"], again["attached"]) == (job, "SUCCEEDED", True)
    assert fingerprint(f"{BUCKET}/there") == world.bytes

    third = cluster.sluice(*submit)
    assert third.returncode == 0
    assert "there already, SUCCEEDED" in third.stderr
    assert third.stdout == json.loads(cluster.sluice("jobs", "--logs", job, "--json").stdout)["logs"]
    assert ids(cluster, job) == [job]
    assert os.environ["AWS_ENDPOINT_URL"] not in cluster.answer("/api/jobs/")


def test_verify_looks_again_when_it_is_submitted_again(cluster: RayCluster, world: World) -> None:
    verify, here = ("submit", "verify", f"{BUCKET}/here"), Folder(f"{BUCKET}/here")
    before = cluster.told(*verify)
    assert (before["status"], before["attached"]) == ("SUCCEEDED", False)
    here.publish("documents/stray.parquet", b"")
    try:
        damaged = cluster.sluice(*verify)
    finally:
        here.remove("documents/stray.parquet")
    assert (damaged.returncode, "file.extra: documents/stray.parquet" in damaged.stdout) == (1, True), (
        damaged.stdout
    )
    assert cluster.told(*verify)["id"] == f"{before['id']}-3"


def test_a_model_on_the_other_node_judges_as_it_does_on_one_machine(
    cluster: RayCluster, worker: Node, world: World, tmp_path: Path
) -> None:
    """Reading has both nodes and leaves its fragments in the store; the actors have the second node alone."""
    for file in "ab":
        about = ("pills" if number % 9 == 0 else "pages" for number in range(600))
        rows = [
            json.dumps({"text": f"text {n} of {file} is about {what} {'and words ' * (n % 23)}"})
            for n, what in enumerate(about)
        ]
        Folder(f"{BUCKET}/texts").publish(f"{file}.jsonl", "\n".join(rows).encode())
    (tmp_path / "encoder").mkdir()
    model = {"name": "edu", "model": make_encoder(tmp_path / "encoder"), "label": "high", "threshold": 0.5}

    def judged(name: str, **actors: Any) -> dict[str, Any]:
        texts = {"texts": (f"{BUCKET}/texts/*.jsonl",)}
        tables = {"tokenize": {"shard_tokens": 8_000, "encoding": world.tokenizer}, "ray": ON_RAY}
        plain = recipe(f"{BUCKET}/{name}", texts, **tables)
        plain["source"][0]["steps"] = ["parse", "classifier", "identity"]
        return plain | {"classifier": [model | actors]}

    run(tmp_path / "here", judged("judged-here"))
    assert 0 < sum(part.num_rows for part in read_index(f"{BUCKET}/judged-here").documents) < 1200
    there = judged("judged-there", resources={"data": 0.5}, num_cpus=0.0, actors=[2, 2])
    assert (
        cluster.told("submit", "run", str(write_recipe(tmp_path / "there.toml", there)))["status"]
        == "SUCCEEDED"
    )
    assert fingerprint(f"{BUCKET}/judged-there") == fingerprint(f"{BUCKET}/judged-here")
    summary = json.loads(Folder(f"{BUCKET}/judged-there").read("run.json"))
    assert any("MapBatches(classifier.edu)" in line for of in summary["datasets"] for line in of["lines"])


def test_a_training_on_two_nodes_outlives_its_submitter_and_is_fed_the_same_batches(
    cluster: RayCluster, worker: Node, world: World
) -> None:
    submit = ("submit", "train", world.training("trained-there", placement="STRICT_SPREAD"))
    first = cluster.start_sluice(*submit)
    job = submitted(first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    nodes = (worker, cluster.head)
    wait_until(
        lambda: all(node.works_at("RayTrainWorker") for node in nodes), "each node has a worker of the run"
    )
    again = cluster.told(*submit)
    assert (again["id"], again["status"], again["attached"]) == (job, "SUCCEEDED", True)
    assert batches("trained-there") == world.batches
    assert losses("trained-there") == world.losses


def test_a_run_whose_node_is_killed_ends_with_the_same_bytes(
    cluster: RayCluster, worker: Node, world: World
) -> None:
    submit = ("submit", "run", world.data("killed"), "--set", "ray.max_in_flight=4")
    process = cluster.start_sluice(*submit)
    wait_until(lambda: worker.works_at("MapBatches("), "a unit is under way on the second node")
    worker.kill()
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert fingerprint(f"{BUCKET}/killed") == world.bytes


def test_a_training_whose_node_is_killed_goes_on_from_its_checkpoint_to_the_same_bits(
    cluster: RayCluster, worker: Node, world: World
) -> None:
    process = cluster.start_sluice("submit", "train", world.training("shot", placement="SPREAD"), "--json")
    wait_until(lambda: checkpoints("shot") >= 2, "two checkpoints stand")
    worker.kill()
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    rows = [json.loads(line) for line in Folder(f"{BUCKET}/shot").read("metrics.jsonl").splitlines()]
    assert max(row["attempt"] for row in rows) == 2
    assert min(row["step"] for row in rows if row["attempt"] == 2) >= 10
    assert batches("shot") == world.batches
    assert losses("shot") == world.losses


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (
            "run",
            "ray.unit_resource=gpu_node",
            "no node has CPU 1, gpu_node 0.001, which a unit of kind read needs; the cluster",
        ),
        (
            "train",
            "train.resources.cpus=64",
            "no node has CPU 64, which a training worker needs; the cluster has",
        ),
        (
            "train",
            "train.resources.gpus=1",
            "no node has CPU 1, GPU 1, which a training worker needs; the cluster has",
        ),
        (
            "train",
            "train.resources.placement=STRICT_SPREAD",
            "there is room for 1 training workers of CPU 1, and 2",
        ),
    ],
)
def test_what_no_node_has_is_an_error_at_once(
    cluster: RayCluster, world: World, kind: str, change: str, said: str
) -> None:
    path = world.data("asked") if kind == "run" else world.training("asked")
    ended = cluster.sluice("submit", kind, path, "--set", change)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert said in ended.stdout
