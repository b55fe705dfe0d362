"""Ablations whose proxies read the corpus, on the page of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.page.views.ablations import ablations_of
from tests.support.outputs.recorded_training import record_training
from tests.support.processes.served_page import Visitor, served

RESULTS = (
    "run,role,seed,tokens,seconds,order_fingerprint,weight.web,loss.web\n"
    "natural,natural,1,100,2.0,ab,1.0,3.14159265\n"
    "<b>x</b>,drawn,2,100,2.0,ab,0.25,nan\n"
)


@pytest.fixture
def mixed(out: str, tmp_path: Path) -> tuple[str, Folder]:
    """An output that two runs of an ablation read, and the ablation's folder."""
    folder = Folder(str(tmp_path / "ablation" / "mix"))
    for name in ("natural", "drawn"):
        record_training(Folder(out), folder.at(f"runs/{name}"), run=f"ablation-{name}")
    return out, folder


def test_its_runs_and_its_report_are_shown(mixed: tuple[str, Folder]) -> None:
    out, folder = mixed
    with served(out) as address:
        visitor = Visitor(address)
        bare = visitor.get("runs").text
        assert "Ablation of 2 runs" in bare and "No report of it is written" in bare
        assert "not all of its runs are done" in bare
        folder.publish("results.csv", RESULTS.encode())
        folder.publish("report.html", b"<h1>What the mixture is worth</h1>")
        page = visitor.get("runs").text
        key = page.partition("ablations/")[2][:12]
        report = visitor.get(f"ablations/{key}/report")
        assert "What the mixture is worth" in report.text
        assert "script-src" not in report.headers["Content-Security-Policy"], "it runs nothing"
        assert visitor.get("ablations/000000000000/report").status_code == 404
    assert '<td class="n">3.142</td>' in page and "order_fingerprint" not in page
    assert "&lt;b&gt;x" in page and "<b>x" not in page


@pytest.mark.parametrize("results", [b"", b"\xff\xfe", b'a,b\n"', b"a,b\n1\n1,2,3\n"])
def test_results_that_cannot_be_read_are_none(mixed: tuple[str, Folder], results: bytes) -> None:
    out, folder = mixed
    folder.publish("results.csv", results)
    [shown] = ablations_of(make_tracer(out).runs())
    assert shown.rows == () and shown.num_runs == 2 and not shown.has_report
