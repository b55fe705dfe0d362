"""The report's figures where sources have steps of their own, and records repeat: they are what lineage
counts."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from pipeline.demo.pages import write_article
from pipeline.recipe.load import load
from pipeline.report.collect import _tables, collect
from pipeline.report.data import ReportData
from tests.support.inputs.make_warc import good, http, member, record
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run with the whole ledger over posts of every length, and over pages of which each lies in two files
    and of which only the address is looked at before they are parsed."""
    folder = tmp_path_factory.mktemp("figures")
    sources = make_tiny_crawl(folder)
    for file in sorted(folder.glob("web-*.warc.gz")):
        shutil.copy(file, folder / f"web-copy-{file.name}")
    rng = random.Random(5)
    texts = [write_article("en", rng, 1 + number % 9).text for number in range(30)]
    (folder / "posts-9.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    steps = ["parse", "language", "quality", "pii", "identity", "dedup.exact", "dedup.near"]
    plain = recipe(
        str(folder / "out"), sources, quality={"ledger": "all", "min_words": 150, "max_words": 250}
    )
    plain["source"][0]["steps"] = [
        "url",
        "parse",
        "tests.support.steps.judging_steps:drop_a_third",
        "quality",
    ]
    plain["source"][0]["language"] = "en"
    plain["source"][1]["steps"] = steps
    run(folder, plain)
    return Folder(str(folder / "out"))


@pytest.fixture(scope="module")
def data(out: Folder) -> ReportData:
    return collect(out, read_index(out))


def ask(out: Folder, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(out, sql).rows]


def test_the_funnel_of_all_sources_begins_with_every_document_and_ends_with_the_kept_ones(
    data: ReportData, out: Folder
) -> None:
    together = data.funnels[0]
    assert [(together.num_in,)] == ask(out, "SELECT count(*) FROM documents")
    assert [(together.num_out,)] == ask(out, "SELECT count(*) FROM documents WHERE status = 'kept'")
    assert [(together.bytes_in,)] == ask(out, "SELECT sum(warc_length)::BIGINT FROM documents")
    page = out.read("report.html").decode()
    first = page.index("What is left:")
    assert page[first:].startswith(f"What is left: {together.num_out:,} documents")


def test_a_compressed_member_that_several_records_share_counts_once(tmp_path: Path) -> None:
    empty = record(http(b"<html><body></body></html>"), "empty")
    shared = member(good("a") + good("b") + good("c") + empty)
    alone = member(good("d")) + member(good("e"))
    (tmp_path / "shared.warc.gz").write_bytes(shared)
    (tmp_path / "alone.warc.gz").write_bytes(alone)
    sources = {name: (str(tmp_path / f"{name}.warc.gz"),) for name in ("alone", "shared")}
    run(tmp_path, recipe(str(tmp_path / "out"), sources, quality={"rules": []}, dedup={"near": False}))
    out = Folder(str(tmp_path / "out"))
    funnels = {funnel.source: funnel for funnel in collect(out, read_index(out)).funnels}
    assert (funnels["shared"].num_in, funnels["shared"].bytes_in) == (4, len(shared))
    assert funnels["alone"].bytes_in == len(alone)
    (parse,) = (step for step in funnels["shared"].steps if step.num_rejected)
    assert (parse.stage, parse.num_rejected) == ("parse", 1)
    assert parse.bytes_in - parse.bytes_out == pytest.approx(len(shared) / 4, abs=1)


def test_the_stages_of_all_sources_stand_in_the_order_in_which_each_source_meets_them(
    data: ReportData,
) -> None:
    together, *funnels = [[step.stage for step in funnel.steps] for funnel in data.funnels]
    assert len(funnels) == 2
    for stages in funnels:
        assert [stage for stage in together if stage in stages] == stages


def test_the_speeds_are_of_the_documents_that_were_read_and_of_those_that_were_compared(
    data: ReportData, out: Folder
) -> None:
    of = {speed.stage: (speed.num, speed.num_bytes) for speed in data.speeds}
    assert [of["reading and writing"]] == ask(out, "SELECT count(*), sum(warc_length)::BIGINT FROM documents")
    assert [of["signatures"]] == ask(
        out, "SELECT count(*), sum(warc_length)::BIGINT FROM documents WHERE status <> 'rejected'"
    )


def test_a_record_that_lies_in_two_files_counts_twice_at_every_threshold(
    data: ReportData, out: Folder
) -> None:
    rejecting: dict[str, set[str]] = {}
    for doc_id, rule in ask(out, "SELECT doc_id, rule FROM findings WHERE verdict = 'reject'"):
        rejecting.setdefault(doc_id, set()).add(rule)
    rule = "gopher_quality.too_many_words"
    measured = ask(out, f"SELECT doc_id, value FROM findings WHERE rule = '{rule}'")
    assert len({doc_id for doc_id, _ in measured}) < len(measured)
    [values] = [row.values for row in data.rules if row.rule == rule]
    assert values is not None
    told = {float(option.threshold.replace(",", "")): option.num_kept for option in values.options}
    kept = {
        threshold: sum(
            value <= threshold and rejecting.get(doc_id, set()) <= {rule} for doc_id, value in measured
        )
        for threshold in told
    }
    assert told == kept
    assert len(set(told.values())) > 2


def test_the_page_tells_by_whose_tables_texts_were_judged(data: ReportData, out: Folder) -> None:
    before, _, told = data.tables.removesuffix(".").partition(": ")
    assert before == "Judged by the table of their own language"
    numbers = dict(part.split(" ") for part in told.split(", "))
    assert numbers.keys() == {"en", "de", "fr", "es"} & numbers.keys() and "en" in numbers
    (num,) = ask(out, "SELECT sum(num_in)::BIGINT FROM steps WHERE stage = 'quality'")[0]
    assert sum(int(one.replace(",", "")) for one in numbers.values()) == num
    assert data.tables in out.read("report.html").decode()


@pytest.mark.parametrize(("no_table", "became"), [("pass", "passed unjudged"), ("reject", "were rejected")])
def test_texts_without_a_table_are_told_apart(no_table: str, became: str, tmp_path: Path) -> None:
    quality = {"no_table": no_table, "stop_words_off": ["nb"]}
    recipe_file = write_recipe(
        tmp_path / "r.toml", recipe("out", {"web": ("a",)}, quality=quality, language={"keep": []})
    )
    rows = [("de", 1500), ("ja", 3), ("no", 2), ("zh", 1)]
    assert _tables(lambda sql: rows, load(recipe_file)) == (
        "Judged by the table of their own language: de 1,500, no (by that of nb) 2."
        f" Texts without a table (quality.no_table) {became}: ja 3, zh 1."
    )
