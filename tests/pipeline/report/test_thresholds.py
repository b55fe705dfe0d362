"""What helps to set a threshold: values of every rule, other thresholds, near misses, what the prefilter
dropped."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from pipeline.demo.crawl import Truth
from pipeline.demo.pages import write_article
from pipeline.inspect.tune import tune
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import tables_of
from pipeline.report.collect import collect
from pipeline.report.data import ReportData, RuleRow, RuleValues
from pipeline.results.excerpts import PER_CHOICE
from pipeline.results.rows import read_rows
from stages.rules import offending_lines
from stages.steps.catalogue import rules_of
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, demo_crawl: tuple[Path, Truth]) -> Folder:
    """A run that keeps the whole ledger, with a prefilter, over pages in six languages and posts of every
    length."""
    folder = tmp_path_factory.mktemp("thresholds")
    rng = random.Random(5)
    texts = [write_article("en", rng, 1 + number % 9).text for number in range(60)]
    texts += [
        text + "\n- a\n- b and\n" + "\n".join(f"- c {number}" for number in range(40)) for text in texts[50:]
    ]
    (folder / "posts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = {"news": (str(demo_crawl[0] / "news-*"),), "posts": (str(folder / "posts.jsonl"),)}
    tables: dict[str, Any] = {"language": {"keep": ["en"], "prefilter": True}, "quality": {"ledger": "all"}}
    run(folder, recipe(str(folder / "out"), sources, **tables))
    return Folder(str(folder / "out"))


@pytest.fixture(scope="module")
def data(out: Folder) -> ReportData:
    return collect(out, read_index(out))


def ask(out: Folder, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(out, sql).rows]


def rule_of(data: ReportData, name: str) -> RuleRow:
    [row] = [row for row in data.rules if row.rule == name]
    return row


def values_of(data: ReportData, name: str) -> RuleValues:
    found = rule_of(data, name).values
    assert found is not None
    return found


def test_every_measured_rule_with_a_threshold_has_its_values(data: ReportData, out: Folder) -> None:
    measured = ask(
        out, "SELECT DISTINCT rule FROM findings WHERE value IS NOT NULL AND threshold IS NOT NULL"
    )
    shown = {row.rule for row in data.rules if row.values is not None}
    # Bounds of pages, before any rule of text, are no thresholds that a person turns.
    assert shown == {rule for (rule,) in measured if not rule.startswith(("url.", "parse."))}
    assert {"prefilter.language", "language.low_score", "gopher_quality.too_few_words"} <= shown


def test_the_bars_hold_every_value_once_and_part_at_the_threshold(data: ReportData, out: Folder) -> None:
    counts = (
        "SELECT rule, count(*), count(*) FILTER (verdict = 'reject') FROM findings WHERE"
        " value IS NOT NULL GROUP BY 1"
    )
    found = {rule: (num, rejected) for rule, num, rejected in ask(out, counts)}
    for row in data.rules:
        if row.values is None:
            continue
        num, rejected = found[row.rule]
        assert sum(bar.num for bar in row.values.bars) == num == row.values.num_measured
        assert sum(bar.num for bar in row.values.bars if bar.is_rejected) == rejected, row.rule
        sides = [bar.is_rejected for bar in row.values.bars]
        assert len(set(sides[: row.values.line])) <= 1 and len(set(sides[row.values.line :])) <= 1
        assert all(
            0 <= bar.num_alone <= bar.num and 0 <= bar.height_alone <= bar.height <= 1
            for bar in row.values.bars
        )


@pytest.mark.parametrize("name", ["gopher_quality.too_few_words", "gopher_quality.too_many_bullet_lines"])
def test_what_another_threshold_keeps_is_what_tune_says(data: ReportData, out: Folder, name: str) -> None:
    key = {
        "gopher_quality.too_few_words": "min_words",
        "gopher_quality.too_many_bullet_lines": "max_bullet_lines",
    }
    options = values_of(data, name).options
    assert len(options) > 3 and [option.is_set for option in options].count(True) == 1
    for option in options:
        changed = recipe_of(out, [f"quality.{key[name]}={option.threshold.replace(',', '')}"])
        [told] = tune(out.url, [("changed", changed)])
        assert option.num_kept == told.total.after, option
        assert option.change == told.total.after - told.total.before


def test_examples_are_the_nearest_and_the_farthest_and_the_near_misses(data: ReportData, out: Folder) -> None:
    name = "gopher_quality.too_few_words"
    groups = {
        group.title: [excerpt.doc_id for excerpt in group.excerpts] for group in rule_of(data, name).examples
    }
    near = ask(
        out,
        f"SELECT doc_id FROM documents WHERE rule = '{name}' ORDER BY abs(value - threshold), doc_id"
        f" LIMIT {PER_CHOICE['near']}",
    )
    assert groups["Rejected, nearest to the threshold"] == [doc_id for (doc_id,) in near]
    misses = ask(
        out,
        f"SELECT f.doc_id FROM findings f JOIN documents d USING (doc_id) WHERE f.rule = '{name}'"
        f" AND d.status <> 'rejected' ORDER BY abs(f.value - f.threshold), f.doc_id LIMIT"
        f" {PER_CHOICE['passed']}",
    )
    assert groups["Passed every step, nearest to the threshold"] == [doc_id for (doc_id,) in misses]
    far = ask(out, f"SELECT max(abs(value - threshold)) FROM documents WHERE rule = '{name}'")[0][0]
    [(first,)] = ask(
        out, f"SELECT min(doc_id) FROM documents WHERE rule = '{name}' AND abs(value - threshold) = {far}"
    )
    assert groups["Rejected, farthest from it"][0] == first


def test_the_lines_that_offend_are_marked_and_shown_though_they_come_late(
    data: ReportData, out: Folder
) -> None:
    rules = rules_of(tables_of(recipe_of(out)))
    name = "gopher_quality.too_many_bullet_lines"
    shown = [excerpt for group in rule_of(data, name).examples[:1] for excerpt in group.excerpts]
    assert shown
    for excerpt in shown:
        marked = {number for number, (_, is_marked) in enumerate(excerpt.pieces) if is_marked}
        text = "".join(piece for piece, _ in excerpt.pieces)
        assert marked and marked == offending_lines(rules, name, text)


def test_pages_that_the_prefilter_dropped_are_shown_with_text_and_language(data: ReportData) -> None:
    row = rule_of(data, "prefilter.language")
    rejected = [group for group in row.examples if not group.title.startswith("Passed")]
    shown = [excerpt for group in rejected for excerpt in group.excerpts]
    assert row.num > 20 and len(shown) >= 4
    for excerpt in shown:
        assert len("".join(piece for piece, _ in excerpt.pieces)) > 80
        found = re.search(r"language (\w+)", excerpt.note)
        assert found and found[1] != "en", excerpt.note
    assert {bar.label for bar in data.languages} >= {"en", "de", "fr"}


def test_excerpts_name_the_reason_and_the_value_of_each(out: Folder) -> None:
    rows = read_rows(out, "excerpts.parquet").to_pylist()
    assert {row["choice"] for row in rows} - {None} == {"near", "far", "least", "passed"}
    for row in rows:
        if row["choice"] in ("near", "far", "passed"):
            assert row["value"] is not None and row["threshold"] is not None
    passed = {row["doc_id"].hex() for row in rows if row["choice"] == "passed"}
    named = ", ".join(f"'{doc_id}'" for doc_id in sorted(passed))
    ends = dict(ask(out, f"SELECT doc_id, status FROM documents WHERE doc_id IN ({named})"))
    assert set(ends) == passed and set(ends.values()) <= {"kept", "duplicate"}


def test_a_deep_link_opens_its_rule_and_shows_the_chart(browser: Any, out: Folder) -> None:
    browser.get("about:blank")
    browser.get(f"file://{out.at('report.html')}#rule-quality-gopher_quality.too_few_words")
    assert browser.get_log("browser") == []
    [chart] = [
        element for element in browser.find_elements("css selector", ".histogram") if element.is_displayed()
    ]
    columns = chart.find_elements("css selector", ".column")
    heights = [
        sum(bar.size["height"] for bar in column.find_elements("css selector", "i")) for column in columns
    ]
    assert len(columns) > 5 and max(heights) > 100
    assert len(chart.find_elements("css selector", ".column.at")) == 1
    [command] = [
        found.text
        for found in browser.find_elements("css selector", "blockquote .command")
        if found.is_displayed()
    ][:1]
    assert command.startswith(f"sluice explain {out.url} --doc ")


def test_a_phone_scrolls_each_wide_table_and_never_the_page(browser: Any, out: Folder) -> None:
    browser.get(f"file://{out.at('report.html')}")
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for details in browser.find_elements("css selector", "details"):
            browser.execute_script("arguments[0].open = true", details)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        [funnel, *_] = browser.find_elements("css selector", "#funnel table")
        wide = browser.execute_script("return arguments[0].scrollWidth - arguments[0].clientWidth", funnel)
        assert wide > 100, "the funnel has more columns than a phone shows"
        browser.execute_script("arguments[0].scrollLeft = 1e6", funnel)
        assert browser.execute_script("return arguments[0].scrollLeft", funnel) == pytest.approx(wide, abs=2)
        last = funnel.find_elements("css selector", "tr:nth-child(2) td")[-1]
        assert browser.execute_script("return arguments[0].getBoundingClientRect().right", last) <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_url_of_the_web_is_a_link_that_tells_nothing_and_no_other_is_one(
    browser: Any, tmp_path: Path
) -> None:
    urls = [
        "https://plain.example/a?b='<x>",
        "javascript:document.title=1",
        "data:text/html,x",
        "JAVASCRIPT:alert(1)",
    ]
    rows = [{"url": url, "text": f"Too few words {number}."} for number, url in enumerate(urls)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(tmp_path, recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "rows.jsonl"),)}))
    browser.get(f"file://{tmp_path / 'out' / 'report.html'}")
    links = browser.find_elements("css selector", "blockquote a")
    assert {link.get_attribute("textContent") for link in links} == {urls[0]}
    assert all("noreferrer" in str(link.get_attribute("rel")) for link in links)
    shown = {
        found.get_attribute("textContent")
        for found in browser.find_elements("css selector", "blockquote span")
    }
    assert set(urls[1:]) <= shown
