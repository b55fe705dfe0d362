"""What the dashboards ask for, asked of a real Prometheus that scrapes a real cluster while it works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lineage.storage.folder import Folder
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import inputs_of, make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import ON_RAY, recipe, s3_server, write_recipe
from tests.support.processes.ray_nodes import RayCluster, free_ports, ray_cluster, wait_until
from tests.support.training import watched_report
from trainer.telemetry.gauges import GAUGES as TRAINING
from trainer.telemetry.gauges import values

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "deploy"
NOT_OF_THIS_RUN = {"ray_sluice_train_straggler_factor", "ray_sluice_train_evaluation"}
"""It has no slow rank and no `[[train.eval]]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A running Prometheus."""

    address: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives now."""
        url = f"{self.address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as response:
            found: list[dict[str, Any]] = json.loads(response.read())["data"]["result"]
        return found

    def has_seen(self, metric: str) -> bool:
        """Whether it has scraped a metric since it began."""
        return bool(self.ask(f"last_over_time({metric}[1h])"))

    def is_up(self) -> bool:
        try:
            return self.ask("vector(1)") != []
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, cluster: RayCluster) -> Iterator[Prometheus]:
    """With the scrape configuration that we ship, less Kubernetes, every second instead of every 15."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus here: install Debian's package of that name to run this")
    plain = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())
    (job,) = [each for each in plain["scrape_configs"] if "file_sd_configs" in each]
    (files,) = job["file_sd_configs"]
    files["files"] = [str(cluster.temp / Path(name).name) for name in files["files"]]
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    (port,) = free_ports(1)
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Prometheus(address=f"http://127.0.0.1:{port}")
        wait_until(lambda: server.is_up() or process.poll() is not None, "Prometheus answers")
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait()


def expressions() -> list[str]:
    """Every query of the dashboards, for all runs."""
    dashboards = [json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana").glob("*.json"))]
    panels = [panel for dashboard in dashboards for panel in dashboard["panels"]]
    return [target["expr"].replace("$run", ".+") for panel in panels for target in panel["targets"]]


def metrics_named() -> set[str]:
    """Every metric of the dashboards."""
    return {name for query in expressions() for name in re.findall(r"\bray_[a-z0-9_]+", query)}


def with_a_gpu(folder: Path) -> dict[str, str]:
    """Variables for nodes that Ray shall take for ones with a GPU: it reports none where there is none."""
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(ROOT / "tests" / "support" / "processes" / "nvml.c"),
        ],
        check=True,
    )
    return {"LD_LIBRARY_PATH": str(folder)}


def training_recipe() -> dict[str, Any]:
    """A layout that has every figure: a pipeline, shared sequences and experts."""
    table = {
        "data": "s3://bucket/out",
        "output": "s3://bucket/trained",
        "model": "moe-debug",
        "seq_len": 64,
        "global_batch": 6,
        "steps": 100_000,
        "workers": 4,
        "parallel": {"pp": 2, "cp": 2},
        "validation": 0.1,
        "eval_every": 10,
        "peak_teraflops": 0.05,
        "checkpoint": {"every": 50},
    }
    return {"run": {"name": "watched"}, "train": table}


def test_each_figure_of_a_training_is_scraped_with_its_labels_and_value(tmp_path: Path) -> None:
    expected = list(values(watched_report.report()))
    assert {value.name for value in expected} | {"skipped"} == TRAINING.keys()
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus here: install Debian's package of that name to run this")
    with (
        ray_cluster(tmp_path, num_cpus=1, RAY_metrics_report_interval_ms="500") as cluster,
        prometheus(tmp_path, cluster) as server,
    ):
        command = [sys.executable, "-m", watched_report.__name__, f"{cluster.ip}:{cluster.port}"]
        environment = {**cluster.environment, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=ROOT) as telling:
            wait_until(
                lambda: telling.poll() is not None or server.has_seen("ray_sluice_train_straggler_factor"),
                "the figures are scraped",
            )
            for value in expected:
                labels = {"run": watched_report.RUN, **value.labels}
                asked = ",".join(f'{name}="{label}"' for name, label in labels.items())
                (found,) = server.ask(f"last_over_time(ray_sluice_train_{value.name}{{{asked}}}[1h])")
                assert float(found["value"][1]) == pytest.approx(value.value), value
            for query in expressions():
                if "ray_sluice_train_" in query:
                    assert server.ask(query) or re.search(r"\b(delta|rate|increase)\(", query), query
            assert telling.stdin is not None
            telling.stdin.close()


def test_every_metric_of_the_dashboards_is_scraped_from_a_real_run_and_every_query_holds(
    tmp_path: Path,
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus here: install Debian's package of that name to run this")
    with (
        s3_server("bucket"),
        ray_cluster(
            tmp_path,
            num_cpus=4,
            OMP_NUM_THREADS="1",
            RAY_metrics_report_interval_ms="500",
            **with_a_gpu(tmp_path / "nvml"),
        ) as cluster,
        prometheus(tmp_path, cluster) as server,
    ):
        (tmp_path / "crawl").mkdir()
        make_tiny_crawl(tmp_path / "crawl")
        for path in sorted((tmp_path / "crawl").iterdir()):
            Folder("s3://bucket/in").publish(path.name, path.read_bytes())
        sources = {name: (f"s3://bucket/in/{Path(p).name}",) for name, (p,) in inputs_of(Path()).items()}
        encoding = {"encoding": tiny_tokenizer(tmp_path / "crawl")}
        data = write_recipe(
            tmp_path / "data.toml", recipe("s3://bucket/out", sources, tokenize=encoding, ray=ON_RAY)
        )
        cluster.told("submit", "run", str(data))
        job = cluster.told(
            "submit", "train", str(write_recipe(tmp_path / "t.toml", training_recipe())), "--detach"
        )
        wanted = metrics_named() - NOT_OF_THIS_RUN

        def all_seen() -> bool:
            wanted.difference_update([metric for metric in wanted if server.has_seen(metric)])
            return not wanted or cluster.told("jobs")[-1]["status"] not in ("PENDING", "RUNNING")

        wait_until(all_seen, f"scraped: {wanted}")
        assert wanted == set(), cluster.told("jobs", "--logs", job["id"])
        for query in expressions():
            server.ask(query)  # HTTPError where a query is wrong
        told = {
            (row["metric"]["run"], row["metric"].get("phase"))
            for row in server.ask("ray_sluice_train_phase_seconds")
        }
        assert ("watched", "forward") in told
        gpus = server.ask("last_over_time(ray_node_gpus_utilization[1h])")
        assert [gpu["value"][1] for gpu in gpus] == ["37"]
        stopped = cluster.told("jobs", "--stop", job["id"])
        assert stopped["status"] == "STOPPED"


def units_done(cluster: RayCluster) -> Counter[str]:
    """By operator, as docs/engine.md calls it: the tasks that Ray Data counted and the nodes' metrics ports
    tell of."""
    files = json.loads((cluster.temp / "prom_metrics_service_discovery.json").read_text())
    found: Counter[str] = Counter()
    for place in {target for file in files for target in file["targets"]}:
        try:
            with urllib.request.urlopen(f"http://{place}/metrics", timeout=30) as response:
                families = list(text_string_to_metric_families(response.read().decode()))
        except (
            urllib.error.URLError
        ):  # the list names ports of parts of Ray that do not run here, as of an autoscaler
            continue
        for sample in (sample for family in families for sample in family.samples):
            # A histogram's: Ray's gauges are gone from the port soon after their Dataset has ended.
            if sample.name == "ray_data_task_completion_time_count" and (
                operator := re.fullmatch(r"MapBatches\((.*)\)_[0-9]+", sample.labels["operator"])
            ):
                found[operator[1]] += int(sample.value)
    return found


def test_the_operators_of_a_run_have_metrics_under_their_names_that_count_no_unit_twice(
    tmp_path: Path,
) -> None:
    (tmp_path / "crawl").mkdir()
    sources = make_tiny_crawl(tmp_path / "crawl")
    tokenize, dedup = {"encoding": tiny_tokenizer(tmp_path / "crawl")}, {"engine": "ray_data"}
    asked = recipe(str(tmp_path / "out"), sources, tokenize=tokenize, dedup=dedup, ray=ON_RAY)
    with ray_cluster(tmp_path, OMP_NUM_THREADS="1", RAY_metrics_report_interval_ms="500") as cluster:
        told: Counter[str] = Counter()
        with ThreadPoolExecutor(1) as pool:
            over = pool.submit(
                cluster.told, "submit", "run", str(write_recipe(tmp_path / "recipe.toml", asked))
            )
            while not over.done():  # what a run told is gone from the port soon after it
                # A Dataset of a moment may end before Ray tells of its last units, so counts may lack some.
                told.update(units_done(cluster) - told)
                time.sleep(0.1)
        over.result()
        ran: Counter[str] = Counter()
        for stats in json.loads((tmp_path / "out" / "run.json").read_text())["datasets"]:
            ran[stats["operator"]] += stats["num_units"]
        (reading,) = (name for name in ran if name.startswith("read->url->parse->"))
        assert told[reading] > 0, told
        assert told <= ran
