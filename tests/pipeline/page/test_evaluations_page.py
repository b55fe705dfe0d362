"""The page of a training run and the evaluations that it made of itself."""

from __future__ import annotations

from pathlib import Path

from lineage.storage.folder import Folder
from tests.support.outputs.recorded_training import record_training
from tests.support.processes.served_page import Visitor, served
from tests.support.training.watched_report import report


def test_a_run_shows_its_scores_and_what_it_had_read(out: str, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "scored"))
    record_training(Folder(out), output.url, run="scored")
    with served(out) as address:
        visitor = Visitor(address)
        assert "[[train.eval]]" in visitor.get("runs/scored").text
        output.publish("metrics.jsonl", (report().as_json() + "\n").encode())
        page = visitor.get("runs/scored").text
    assert "last clean checkpoint" in page
    for value in ("0.875", "0.5", "0.25", "0.375", "0.75", "none kept"):
        assert f'<td class="n">{value}</td>' in page
