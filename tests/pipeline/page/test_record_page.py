"""The figures of a record on the page: those of `sluice record`, and the documents behind them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from pipeline.inspect.trace.tracing import make_tracer
from pipeline.record.record import make_record
from tests.pipeline.page.test_accessibility import check
from tests.support.outputs.purging import by_doc, purge
from tests.support.processes.served_page import Visitor, served
from tests.support.training.forgotten import Trained, copy_out, make_few_ids_out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of six steps; a document is purged after it."""
    folder = tmp_path_factory.mktemp("figures")
    (folder / "small").mkdir()
    made = Trained(small=make_few_ids_out(folder / "small"), folder=folder, changes={"steps": 6})
    copy_out(made.small, folder)
    made.run.start()
    purge(made.out, by_doc(made.record_first_read_in(range(1, 4))))
    return made


@pytest.fixture(scope="module")
def visitor(trained: Trained) -> Iterator[Visitor]:
    with served(trained.out.url) as address:
        yield Visitor(address)


def rows_of(page: str) -> list[tuple[str, str, list[str]]]:
    """The rows of the figures: what each is of, its value, and its links."""
    part = page.partition('id="figures"')[2].partition("</table>")[0]
    rows = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", part)]
    return [
        (
            html.unescape(re.sub("<[^>]*>", "", cells[0])),
            re.sub("<[^>]*>", "", cells[1]),
            [html.unescape(link) for cell in cells for link in re.findall('href="[^"]*(sql[^"]*)"', cell)],
        )
        for cells in rows
    ]


def written(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def test_the_figures_are_the_records_and_their_links_give_them_again(
    visitor: Visitor, trained: Trained
) -> None:
    page = visitor.get("record/figures").text
    record = make_record([trained.out.url], "eu-summary")
    rows = rows_of(page)
    assert [row[:2] for row in rows] == [(f["unit"], written(f["value"])) for f in record.row["figures"]]
    assert "No run is chosen: tokens read and readings are not known." in page
    num_asked = num_listed = 0
    for unit, value, links in rows:
        if links:
            answer = visitor.get(links[-1]).text.partition('id="rows"')[2]
            assert re.findall('<td class="n">([^<]*)</td>', answer) == [value.replace(",", "")], unit
            num_asked += 1
        if len(links) == 2:
            listed = visitor.get(links[0]).text.partition('id="rows"')[2]
            assert listed.count('class="doc"') == int(value.replace(",", "")), unit
            num_listed += 1
    assert (num_asked, num_listed) == (16, 9)
    largest = record.row["domains"][0]
    assert f"domain%3A{largest['domain']}" in page and f'<td class="n">{largest["bytes"]:,}</td>' in page
    assert f"{len(record.open)} fields" in page


def test_of_a_run_they_are_of_what_it_has_read(visitor: Visitor, trained: Trained) -> None:
    (run,) = make_tracer(trained.out.url).runs()
    page = visitor.get(f"record/figures?run={quote(run.run)}").text
    record = make_record([trained.out.url], "eu-summary", runs=[run.output])
    figures = {row["name"]: row for row in record.row["figures"]}
    rows = rows_of(page)
    assert [row[:2] for row in rows] == [(f["unit"], written(f["value"])) for f in figures.values()]
    assert figures["purged_and_read"]["value"] == 1 and figures["readings"]["value"]
    links = {unit: links for unit, _, links in rows}
    assert links[figures["documents"]["unit"]] == [], "the views do not say what was read"
    assert len(links[figures["rejected"]["unit"]]) == 2
    assert f"--run={run.output}" in html.unescape(page) and "No run is chosen" not in page


def test_the_form_works_nothing_out_and_an_unknown_run_is_told(visitor: Visitor, trained: Trained) -> None:
    (run,) = make_tracer(trained.out.url).runs()
    form = visitor.get("record").text
    assert f'name="run" value="{run.run}"' in form and 'id="figures"' not in form
    answer = visitor.get("record/figures?run=<script>alert(1)</script>")
    assert answer.status_code == 404 and "<script>alert" not in answer.text
    assert "no training run of that name has read this corpus" in answer.text


@pytest.mark.slow
def test_a_record_is_read_by_everybody(visitor: Visitor, trained: Trained, browser: Any) -> None:
    with served(trained.out.url) as address:
        browser.get(address)
        base = browser.current_url
        for place in ("record", "record/figures"):
            check(browser, base + place)
