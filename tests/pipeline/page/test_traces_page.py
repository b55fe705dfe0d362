"""The page of a training run and what its traces say."""

from __future__ import annotations

from pathlib import Path

from lineage.storage.folder import Folder
from tests.support.outputs.recorded_training import record_training
from tests.support.processes.served_page import Visitor, served
from tests.support.training.traces import GpuTrace
from trainer.telemetry.trace_file import trace_name


def test_a_run_with_traces_leads_to_what_they_say(out: str, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "traced"))
    record_training(Folder(out), output.url, run="traced")
    with served(out) as address:
        visitor = Visitor(address)
        assert "It left none" in visitor.get("runs/traced").text
        assert visitor.get("runs/traced/profile").status_code == 404
        trace = GpuTrace(rank=0)
        trace.kernel("<b>gemm</b>", 0, 300, launched=0)
        trace.all_reduce(200, 400, launched=1)
        output.publish(trace_name(0, 1), trace.as_bytes())
        assert 'traced/profile">What they say' in visitor.get("runs/traced").text
        page = visitor.get("runs/traced/profile")
    assert "50.0%" in page.text and "all-reduce" in page.text
    assert "&lt;b&gt;gemm" in page.text and "<b>gemm" not in page.text
    assert "script-src" not in page.headers["Content-Security-Policy"], "it runs nothing"
