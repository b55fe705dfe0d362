"""The lineage page of a small output that is made without Ray: as of a version, and what a plan says of
training."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from lineage.index.output_index import read_index
from lineage.purge.plan import PurgeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.cli.main import main
from pipeline.inspect.purge_targets import PurgeTargets, targets_where
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.page.jobs import Job, Jobs
from pipeline.page.notes import BasketItem, Notes
from pipeline.page.render import environment
from pipeline.page.views.document import cluster_of
from pipeline.page.views.plan import plan_basket
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import Record
from tests.support.processes.served_page import form_secret


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    """A small output out of which a document was purged."""
    made = make_small_out(str(tmp_path_factory.mktemp("page") / "out"))
    purge(made.folder, by_doc(made.named["original"]))
    return made


@pytest.fixture(scope="module")
def then(small: SmallOut) -> Iterator[tuple[requests.Session, str]]:
    """A session with the page as of version 1, and its address."""
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "lineage",
        small.folder.url,
        "--version",
        "1",
        "--serve",
        "--json",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        session = requests.Session()
        yield session, session.get(json.loads(server.stdout.readline())["url"], timeout=60).url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def test_as_of_a_version_the_page_shows_what_counted_then(
    small: SmallOut, then: tuple[requests.Session, str]
) -> None:
    session, base = then
    front = session.get(base, timeout=60).text
    assert "as of version 1" in front and "Nothing was purged." in front and "version 2" not in front
    doc_id = small.named["original"].doc_id.hex()
    for place in (f"document/{doc_id}", f"search?q={doc_id}"):
        page = session.get(base + place, timeout=60)
        assert page.ok and doc_id in page.text and 'id="purged"' not in page.text
    counted = session.get(base + "sql", params={"q": "SELECT count(*) + 7000 FROM purged"}, timeout=60).text
    assert (
        '<td class="n">7000</td>' in counted and f"sluice lineage {small.folder.url} --version 1 " in counted
    )


def test_as_of_a_version_the_page_prepares_no_purge_and_says_so(
    small: SmallOut, then: tuple[requests.Session, str]
) -> None:
    session, base = then
    doc_id = kept(small).doc_id.hex()
    for place in ("", f"document/{doc_id}"):
        page = session.get(base + place, timeout=60).text
        assert '/search" method="get"' in page and "/basket" not in page
    assert f"sluice lineage {small.folder.url} --serve" in session.get(base, timeout=60).text
    headers = {"Origin": "/".join(base.split("/")[:3])}
    asked = {"form_secret": form_secret(page), "act": "put", "kind": "doc", "value": doc_id}
    for answer in (
        session.get(base + "basket", timeout=60),
        session.post(base + "basket", data=asked, headers=headers, timeout=60),
        session.post(base + "basket/plan", data=asked, headers=headers, timeout=60),
        session.post(
            base + "purges/plan/x", data={**asked, "by": "me", "reason": "r"}, headers=headers, timeout=60
        ),
    ):
        assert not answer.ok and "a purge is of the corpus as it is now" in answer.text
    assert not small.folder.exists("work/purge/intent.json")


def test_as_of_a_version_no_record_is_made(then: tuple[requests.Session, str]) -> None:
    session, base = then
    answer = session.get(base + "record/figures", timeout=60)
    assert not answer.ok and "a record is of the corpus as it is now" in answer.text


def kept(small: SmallOut) -> Record:
    return next(r for r in small.records if r.status == "kept" and r is not small.named["original"])


def test_a_version_that_the_corpus_never_had_is_refused_as_for_a_select(
    small: SmallOut, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["lineage", small.folder.url, "--version", "9"]
    code, said = main([*call, "SELECT 1"]), capsys.readouterr().err
    assert code == 1 and "versions 1 to 2" in said
    assert main([*call, "--serve"]) == code
    assert capsys.readouterr().err == said


def test_the_plan_of_a_purge_says_that_the_checkpoint_of_a_run_that_is_gone_is_unknown(
    small: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The small output has no whole recipe, which the hooks of real outputs read.
    monkeypatch.setattr("pipeline.page.views.plan.plan_hooks", lambda _out: hooks.plan_hooks())
    shutil.copytree(small.folder.url, tmp_path / "out")
    out, gone = Folder(str(tmp_path / "out")), str(tmp_path / "gone")
    record_training(out, gone)
    items = [BasketItem(kind="doc", value=kept(small).doc_id.hex())]
    plan = plan_basket(out, read_index(out), items)
    html = environment().get_template("_exposed.html").render(account=plan.account)
    assert f"last checkpoint before: unknown: {gone} cannot be read (" in html


@pytest.fixture
def unpurged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallOut:
    """A small output of which nothing was purged, and whose purges are planned as real ones."""
    monkeypatch.setattr("pipeline.page.views.plan.plan_hooks", lambda _out: hooks.plan_hooks())
    return make_small_out(str(tmp_path / "out"))


def test_a_plan_says_which_kept_copies_go_with_what_is_named_and_can_spare_them(unpurged: SmallOut) -> None:
    out, near, kept_copy = unpurged.folder, unpurged.named["near"], unpurged.named["original"]
    items = [
        BasketItem(kind="doc", value=near.doc_id.hex(), written="the id of it"),
        BasketItem(kind="doc", value="0" * 32),
        BasketItem(kind="host", value="nowhere.example.org"),
    ]
    plan = plan_basket(out, read_index(out), items)
    (copy,) = plan.kept_copies
    assert copy.row.doc_id == kept_copy.doc_id
    assert [(row.doc_id, round(similarity or 0, 3)) for row, similarity in copy.in_place_of] == [
        (near.doc_id, round(near.similarity or 0, 3))
    ]
    assert [(row.number, row.written, row.doc_id, row.goes, row.kept_copy) for row in plan.asked] == [
        (1, "the id of it", near.doc_id.hex(), True, kept_copy.doc_id.hex()),
        (2, "0" * 32, None, False, None),
        (3, "nowhere.example.org", None, False, None),
    ]
    assert [bool(row.refused) for row in plan.asked] == [False, True, True]
    assert (plan.num_items, plan.num_refused, dict(plan.by_role)["kept_copy"]) == (3, 2, 1)
    assert plan.num_kept_copies == 1
    spared = plan_basket(out, read_index(out), items, promotes=True)
    assert spared.by_role == (("target", 1),) and not spared.kept_copies
    assert [match.promote_duplicates for match in spared.matches] == [True]


def test_a_plan_asks_a_condition_once(unpurged: SmallOut, monkeypatch: pytest.MonkeyPatch) -> None:
    doc_id, asked = kept(unpurged).doc_id.hex(), []

    def targets(out: Folder, condition: str) -> PurgeTargets:
        asked.append(condition)
        return targets_where(out, condition)

    monkeypatch.setattr("pipeline.page.views.basket.targets_where", targets)
    items = [BasketItem(kind="where", value=f"doc_id = '{doc_id}'"), BasketItem(kind="where", value="false")]
    plan = plan_basket(unpurged.folder, read_index(unpurged.folder), items)
    assert asked == [item.value for item in items] and plan.items == (items[0],)
    assert [(m.kind, m.values, m.named_by) for m in plan.matches] == [
        ("scan", (doc_id,), f"--where {items[0].value}")
    ]
    assert [row.num_documents for row in plan.asked] == [1, 0] and plan.asked[1].refused


def test_a_plan_of_what_is_not_found_takes_nothing_and_says_of_each_item_why(unpurged: SmallOut) -> None:
    doc_id = kept(unpurged).doc_id
    mistyped = doc_id[:15] + bytes([doc_id[15] ^ 1])
    items = [BasketItem(kind="doc", value=mistyped.hex())]
    plan = plan_basket(unpurged.folder, read_index(unpurged.folder), items)
    assert not plan.matches and not plan.num_documents and plan.asked[0].near == (doc_id.hex(),)
    with pytest.raises(PurgeError, match="the basket is empty"):
        plan_basket(unpurged.folder, read_index(unpurged.folder), [])


def test_of_very_many_items_a_plan_shows_first_what_is_not_found(
    unpurged: SmallOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.page.views.plan.MOST_SHOWN", 1)
    items = [BasketItem(kind="doc", value=value) for value in (kept(unpurged).doc_id.hex(), "0" * 32)]
    plan = plan_basket(unpurged.folder, read_index(unpurged.folder), items)
    assert [row.written for row in plan.asked] == ["0" * 32] and plan.num_items == 2


def test_an_item_that_takes_the_place_of_another_keeps_how_it_was_written(tmp_path: Path) -> None:
    notes = Notes(Folder(str(tmp_path / "out")), tmp_path)
    first, wrong, right = (BasketItem(kind="url", value=f"https://a.example.org/{n}") for n in "123")
    notes.put([first, replace(wrong, written="- a.example.org/2,"), replace(wrong, written="again")])
    notes.put_instead(wrong, right)
    assert [(item.value, item.written) for item in notes.basket()] == [
        (first.value, ""),
        (right.value, "- a.example.org/2,"),
    ]
    notes.put_instead(first, right)
    assert notes.basket() == [right]


def test_a_history_says_which_lists_are_cut_off(small: SmallOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.page.views.document.MOST_MEMBERS", 1)
    row = make_tracer(small.folder.url).by_id(small.named["original"].doc_id).row
    found = cluster_of(Lookup(small.folder), row)
    assert [entry.member.doc_id for entry in found.members] == [row.doc_id] and found.num_members == 3
    assert (found.records, found.num_records) == ((), 0)


def test_a_plan_is_carried_out_by_the_first_call_alone_and_an_error_is_told() -> None:
    jobs = Jobs()

    async def tried() -> tuple[Job, Job, Job]:
        async def plan(_job: Job) -> str:
            return "planned"

        async def work(job: Job) -> list[str]:
            job.say("a line")
            raise PurgeError("the disk is full")

        planned = jobs.begin("plan", plan)
        await jobs.finish()
        first, second = jobs.follow(planned, "purge", work), jobs.follow(planned, "purge", work)
        await jobs.finish()
        return planned, first, second

    planned, first, second = asyncio.run(tried())
    assert planned.result == "planned" and first is second, "a plan is carried out once"
    assert (first.state, first.error, first.lines) == ("failed", "the disk is full", ["a line"])
    with pytest.raises(PurgeError, match="Plan it anew"):
        jobs.get("unknown")
