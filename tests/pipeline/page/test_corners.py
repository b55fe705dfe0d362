"""What the pages show where something is missing, wrong, doubled or too long."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lineage.storage.folder import Folder
from lineage.store.queries.query import QueryResult
from pipeline.cli.main import main
from pipeline.page.render import mixture
from pipeline.page.views.runs import metrics_of
from pipeline.page.views.sql import plot_of
from tests.pipeline.page.conftest import html, prose
from tests.support.inputs.make_warc import http, member, record
from tests.support.outputs.lineage_query import query
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.runs import recipe, run
from tests.support.processes.served_page import Visitor, served
from trainer.telemetry.metrics_file import METRICS_FILE
from trainer.telemetry.step_report import StepReport

LONG = "https://long.example.org/" + "x" * 5000
TWICE = "https://web.example.org/twice"


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a WARC file with one record twice and a URL of 5,000 characters, and of a row of text; without a
    report."""
    folder = tmp_path_factory.mktemp("corners")
    twice = member(record(http(html(prose(1))), "twice", warc_target_uri=TWICE))
    long = member(record(http(html(prose(2))), "long", warc_target_uri=LONG))
    (folder / "web.warc.gz").write_bytes(twice + long + twice)
    (folder / "rows.jsonl").write_text(json.dumps({"text": prose(3)}) + "\n")
    sources = {"web": (str(folder / "web.warc.gz"),), "rows": (str(folder / "rows.jsonl"),)}
    run(folder, recipe(str(folder / "out"), sources, ray={"address": "none"}))
    (folder / "out" / "report.html").unlink()
    return str(folder / "out")


@pytest.fixture(scope="module")
def at(corners: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    with served(corners, state=str(tmp_path_factory.mktemp("state"))) as address:
        yield Visitor(address)


def place_of(out: str, where: str) -> str:
    [[doc_id]] = query(Folder(out), f"SELECT DISTINCT doc_id FROM documents WHERE {where}").rows
    return f"document/{doc_id}"


def test_a_wrong_query_stands_there_to_be_put_right(at: Visitor) -> None:
    answer = at.get(f"sql?{urlencode({'q': 'SELECT nothing FROM documents'})}")
    assert answer.status_code == 400 and 'role="alert"' in answer.text
    assert ">SELECT nothing FROM documents</textarea>" in answer.text, "what was asked"
    assert "nothing" in answer.text.partition('role="alert"')[2] and "Save it as" not in answer.text


def test_a_list_of_documents_has_no_plot() -> None:
    listed = QueryResult(
        columns=("doc_id", "rule", "value"), rows=[("0" * 32, "a", 1.0), ("1" * 32, "b", 900.0)]
    )
    grouped = QueryResult(columns=("rule", "num", "share"), rows=[("a", 1, 0.5), ("b", 2, 0.5)])
    lengths = QueryResult(columns=("doc_id", "num_tokens"), rows=[("0" * 32, 7), ("1" * 32, 9)])
    assert plot_of(listed) is None
    assert [plot and plot.figure for plot in map(plot_of, (grouped, lengths))] == ["num", "num_tokens"]


def test_a_record_that_was_met_again_is_told_with_its_place(at: Visitor, corners: str) -> None:
    rows = query(
        Folder(corners),
        f"SELECT warc_offset, stage FROM documents WHERE url = '{TWICE}' ORDER BY warc_offset",
    ).rows
    assert [stage for _, stage in rows] == [None, "identity"]
    page = at.get(place_of(corners, f"url = '{TWICE}'")).text
    assert f"web.warc.gz@{rows[1][0]}" in page and "Nothing repeats it" not in page
    assert "met again" not in at.get(place_of(corners, f"url = '{LONG}'")).text


def test_a_record_is_shown_without_carriage_returns_and_a_row_with_its_text(
    at: Visitor, corners: str
) -> None:
    page = at.get(place_of(corners, f"url = '{LONG}'") + "/record").text
    assert "WARC-Type: response\n" in page and "\\r" not in page
    page = at.get(place_of(corners, "source = 'rows'") + "/record").text
    assert "too long to be held" not in page and prose(3)[:40] in page


def test_a_url_of_thousands_of_characters_is_folded_up_wherever_it_stands(at: Visitor, corners: str) -> None:
    assert 'class="break long"' in at.get(place_of(corners, f"url = '{LONG}'")).text
    for place in (
        "search?q=domain:example.org",
        f"sql?{urlencode({'q': 'SELECT doc_id, url FROM documents'})}",
    ):
        assert '<span class="long" tabindex="0">' in at.get(place).text, place


def test_a_page_whose_report_is_not_written_says_how_it_is(at: Visitor, corners: str) -> None:
    answer = at.get("report")
    assert answer.status_code == 404 and f"sluice report {corners}" in answer.text


def test_the_page_that_one_is_on_is_marked(at: Visitor) -> None:
    for place in ("", "thresholds", "sql", "runs", "purges", "basket"):
        page = at.get(place).text
        assert page.count('aria-current="page"') == 1
        assert f'{place}" aria-current="page"' in page


def test_what_each_source_gave_leaves_out_what_later_attempts_undid(tmp_path: Path) -> None:
    def report(step: int, attempt: int, source: str, skipped: str | None = None) -> str:
        return StepReport(
            step=step, attempt=attempt, loss=1.0 + attempt, tokens_by_source={source: 10}, skipped=skipped
        ).as_json()

    lines = [report(step, 1, "old") for step in range(8)]
    lines += [report(4, 2, "new"), report(5, 2, "new", skipped="spike")]
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n")
    found = metrics_of(str(tmp_path))
    assert found.steps == (0, 1, 2, 3, 4, 5), "steps 6 and 7 of the first attempt are in no weights"
    assert {source.source: source.num_tokens for source in found.sources} == {"old": 40, "new": 10}
    assert found.num_read == 10


def test_a_mixture_is_written_in_words() -> None:
    assert mixture('{"web": 0.7, "b\\u202ea": 0.333}') == "web 70%, b\\u202ea 33.3%"
    assert mixture(None) == "" and mixture("[1]") == "[1]"


def test_of_several_outputs_the_tokens_that_are_left_and_the_runs_that_read_both_are_told(
    corners: str, tmp_path: Path
) -> None:
    outs = [str(tmp_path / name) for name in ("left", "right")]
    for out in outs:
        shutil.copytree(corners, out)
        record_training(Folder(out), f"{out}-training")
    named = place_of(outs[0], f"url = '{LONG}'").removeprefix("document/")
    assert main(["purge", outs[0], "--doc", named, "--reason", "r", "--by", "b", "--apply"]) == 0
    with served(*outs, state=str(tmp_path / "state")) as address:
        visitor = Visitor(address)
        listed = re.findall(
            r'<td class="n">1</td>|<td class="n">2</td><td class="n">([\d,]+)</td>', visitor.get().text
        )
        left = re.search(r"version 2, ([\d,]+) tokens", visitor.get("left/").text)
        assert left is not None and left[1] in listed
        assert "no training run has read several" in visitor.get().text, "two runs of one name are two"


def test_documents_of_a_cluster_and_of_a_purge_lead_to_the_next(page: tuple[str, str]) -> None:
    address, out = page
    visitor = Visitor(address)
    rows = query(
        Folder(out),
        "SELECT doc_id, cluster_id FROM documents WHERE cluster_id IS NOT NULL ORDER BY status DESC",
    ).rows
    first = visitor.get(f"document/{rows[0][0]}").text
    links = re.findall(rf"document/({'[0-9a-f]' * 32}\?list=[0-9a-f]+)", first.partition('id="cluster"')[2])
    assert links and "in <a" in visitor.get(f"document/{links[0]}").text.partition('id="beside"')[2][:400]
    assert main(["purge", out, "--doc", str(rows[0][0]), "--reason", "r", "--by", "b", "--apply"]) == 0
    [[purge_id]] = query(Folder(out), "SELECT purge_id FROM purges").rows
    link = re.search(r"document/([0-9a-f]{32}\?list=[0-9a-f]+)", visitor.get(f"purges/{purge_id}").text)
    assert link is not None and f"purge {purge_id}</a>" in visitor.get(f"document/{link[1]}").text


def test_that_nothing_differs_is_said(visitor_of: Visitor, made: str) -> None:
    same = query(Folder(made), "SELECT doc_id FROM documents WHERE status = 'kept' LIMIT 1").rows[0][0]
    assert "Nothing differs" in visitor_of.get(f"document/{same}/diff?with={same}").text
    near = query(Folder(made), "SELECT doc_id, duplicate_of FROM documents WHERE stage = 'dedup.near'").rows[
        0
    ]
    assert "Nothing differs" not in visitor_of.get(f"document/{near[0]}/diff?with={near[1]}").text


@pytest.fixture(scope="module")
def visitor_of(shared_page: str) -> Visitor:
    return Visitor(shared_page)
