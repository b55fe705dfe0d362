"""The page of a step, and its lines on the terminal: what is shown, escaped, with the way to each
document."""

from __future__ import annotations

import json
import math

from pipeline.cli.training.why import why_json, why_lines
from pipeline.report.training.why import render_why
from trainer.evidence.documents import DocumentInStep, RowInStep
from trainer.evidence.verdict import Verdict
from trainer.evidence.why import WhyStep

FOUND = WhyStep(
    run="<run>",
    output="/data/run",
    read=("/data/run/checkpoints/step-00000004.attempt-1", "/data/out"),
    step=7,
    attempt=2,
    replayed_from="step-00000004.attempt-1",
    num_replayed=4,
    skipped="spike",
    recorded_loss=None,
    loss=math.nan,
    gradient_norm=3.5,
    lr=1e-3,
    verdict=Verdict(cause="hardware", why="step 6 gives other numbers", first_step=6, ranks=(3,), duration="transient"),
    layers={"embed_tokens": 1.0, "layers.0": math.inf},
    usual={"web": 2.5},
    rows=(RowInStep(row=0, sequence=28, source="web", shard=1, start=64, num_tokens=32, num_labels=30, loss=4.0),),
    documents=(
        DocumentInStep(
            doc_id="0" * 32, url="https://a.example/<script>", out="/data/out", source="web", row=0, first_token=0,
            num_labels=20, loss=5.0, usual=2.5, excess=50.0,
        ),
        DocumentInStep(
            doc_id=None, url=None, out=None, source="web", row=0, first_token=21, num_labels=9, loss=math.nan,
            usual=2.5, excess=math.nan,
        ),
    ),
)  # fmt: skip


def test_the_page_shows_everything_escaped_and_loads_nothing() -> None:
    page = render_why(FOUND)
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;run&gt;" in page
    assert "Hardware, transient" in page and "Rank 3 of attempt 2" in page and "skipped (spike)" in page
    assert f"sluice trace /data/out --doc {'0' * 32}" in page
    assert "purged, or of no lineage" in page and "not finite" in page
    assert "default-src 'none'" in page and 'href="http' not in page


def test_documents_are_links_to_a_page_that_is_served() -> None:
    for address in ("http://127.0.0.1:8080/x1/?token=secret", "http://127.0.0.1:8080/x1"):
        page = render_why(FOUND, address)
        assert f'href="http://127.0.0.1:8080/x1/document/{"0" * 32}"' in page
        assert "secret" not in page


def test_the_terminal_and_json_have_it_too() -> None:
    lines = list(why_lines(FOUND))
    assert "Verdict: hardware, transient: step 6 gives other numbers" in lines
    assert any(f"sluice trace /data/out --doc {'0' * 32}" in line for line in lines)
    plain = json.loads(json.dumps(why_json(FOUND), allow_nan=False))
    assert (plain["loss"], plain["layers"]["layers.0"], plain["documents"][0]["excess"]) == (None, None, 50.0)
    assert plain["verdict"]["ranks"] == [3]
