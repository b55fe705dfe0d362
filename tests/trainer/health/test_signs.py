"""Signs of failing nodes, from a real Prometheus with the rules that we ship."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.support.checkout import ROOT
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.ray_nodes import free_ports, wait_until
from tests.support.training.in_place import check_same, train_with, without_recovery
from tests.support.training.training_runs import Run
from trainer.health import check
from trainer.health.signs import Sign, SignReader, names_of_this_node

RULES = ROOT / "deploy" / "prometheus" / "nodes.yaml"
ERRORS = 'node_edac_uncorrectable_errors_total{controller="0"}'


@contextmanager
def exporter(broken: Path) -> Iterator[int]:
    """As node_exporter, of a machine that counts memory errors once the file is there; its port."""

    class Counters(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{ERRORS} {7 if broken.exists() else 0}\n".encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Counters) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def prometheus(folder: Path, port_of_exporter: int, labels: dict[str, str]) -> Iterator[str]:
    """A Prometheus with our rules, which looks at that exporter each second; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus here: install Debian's package of that name to run this")
    target = {"targets": [f"127.0.0.1:{port_of_exporter}"], "labels": labels}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "node", "static_configs": [target]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: process.poll() is not None or has_scraped(address), "Prometheus has scraped")
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait()


def has_scraped(address: str) -> bool:
    """Whether it has seen the counter twice: what grew is known from then on."""
    try:
        query = "count_over_time(node_edac_uncorrectable_errors_total[1h])"
        with urllib.request.urlopen(f"{address}/api/v1/query?query={query}", timeout=30) as answer:
            found = json.loads(answer.read())["data"]["result"]
    except OSError:
        return False
    return bool(found) and int(found[0]["value"][1]) >= 2


def fires(address: str) -> bool:
    with urllib.request.urlopen(f"{address}/api/v1/alerts", timeout=30) as answer:
        return any(alert["state"] == "firing" for alert in json.loads(answer.read())["data"]["alerts"])


def test_an_alert_that_begins_to_fire_is_a_sign_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with exporter(broken) as port, prometheus(tmp_path, port, {}) as address:
        reader = SignReader(address)
        assert reader.read() == []
        broken.touch()
        wait_until(lambda: fires(address), "the alert fires")
        [sign] = reader.read()
        assert sign.node == "127.0.0.1", "the target's address, without its port"
        assert sign.what.endswith(" uncorrected memory errors of controller 0")
        assert reader.read() == []
        assert SignReader(address).read() == [], "it fired before this reader was made"


def test_a_prometheus_that_does_not_answer_gives_no_sign(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    assert SignReader(f"http://127.0.0.1:{port}").read() == []
    assert "does not say which alerts fire" in caplog.text


def show_a_sign(broken: Path, address: str) -> None:
    """The machine begins to count memory errors after the first look of a rank."""

    class Reader(SignReader):
        num_looks = 0

        def read(self) -> list[Sign]:
            Reader.num_looks += 1
            if Reader.num_looks == 2 and not broken.exists():
                broken.touch()
                wait_until(lambda: fires(address), "the alert fires")
            return super().read()

    check.SignReader = Reader  # type: ignore[misc, attr-defined]


def test_an_alert_drains_the_rank_of_the_node_that_it_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    broken, node = tmp_path / "broken", {"node": socket.gethostname()}
    with exporter(broken) as port, prometheus(tmp_path, port, node) as address:
        recovery = {"mode": "in_place", "spares": 1, "on_sign": "drain"}
        health = {"every": 4, "prometheus": address}
        ddp = {"workers": 2, "zero": 0, "steps": 9, "model": "debug", "recovery": recovery, "health": health}
        run = Run(data=corpus, output=tmp_path / "run", changes=ddp)
        assert train_with(run, {}, prepare=partial(show_a_sign, broken, address)).finished
    said = capfd.readouterr().err
    assert "rank 0 is replaced: rank 0 (" in said
    assert "uncorrected memory errors of controller 0" in said
    ranks = json.loads((run.output / "ranks.json").read_text())
    assert {row["generation"] for row in ranks if row["role"] == "rank"} == {1}
    changes = {**ddp, "recovery": {"mode": "in_place", "spares": 1}, "health": {"every": 4}}
    whole = without_recovery(Run(data=corpus, output=tmp_path / "whole", changes=changes))
    assert whole.start().finished
    check_same(run, whole)


def test_an_alert_on_a_node_without_a_rank_is_no_symptom() -> None:
    from tests.trainer.health.test_health import SOUND

    named = [(SOUND, names_of_this_node())]
    for elsewhere in ("elsewhere", "127.0.0.1", "localhost"):
        assert check._of_nodes(named, [Sign(node=elsewhere, what="x")]) == []
    [found] = check._of_nodes(named, [Sign(node=socket.gethostname(), what="x")])
    assert (found.rank, found.kind, found.text) == (0, "sign", "rank 0 (one) shows a sign: x")
