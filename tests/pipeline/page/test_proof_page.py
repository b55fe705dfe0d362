"""Proofs by form: what the page says and the file that it gives, against the checker and tracing."""

from __future__ import annotations

import html
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lineage.ids import text_hash
from lineage.pages import named_host, registered_domain
from lineage.storage.folder import Folder
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.page.views.evidence.proof import subjects_of
from tests.pipeline.page.test_accessibility import check
from tests.support.checkout import ROOT
from tests.support.outputs.lineage_query import query
from tests.support.processes.served_page import Visitor, served
from tests.support.training.forgotten import Trained, copy_out, make_few_ids_out
from trainer.evidence.commitment.commit import commit_run

CHECKER: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "verify_proof.py"))
LURE = "https://absent.example.org/<script>alert(1)</script>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of six steps, which is not committed."""
    folder = tmp_path_factory.mktemp("proofs")
    (folder / "small").mkdir()
    made = Trained(small=make_few_ids_out(folder / "small"), folder=folder, changes={"steps": 6})
    copy_out(made.small, folder)
    made.run.start()
    return made


@pytest.fixture(scope="module")
def uncommitted(trained: Trained) -> Iterator[str]:
    """What the page answers before the run is committed."""
    with served(trained.out.url) as address:
        yield asked(Visitor(address), trained, "url", "https://example.org/").text


@pytest.fixture(scope="module")
def visitor(trained: Trained, uncommitted: str) -> Iterator[Visitor]:
    commit_run(Folder(str(trained.run.output)))
    with served(trained.out.url) as address:
        yield Visitor(address)


def name_of(trained: Trained) -> str:
    return make_tracer(trained.out.url).runs()[0].run


def asked(visitor: Visitor, trained: Trained, kind: str, value: str) -> requests.Response:
    return visitor.post("prove", run=name_of(trained), kind=kind, value=value)


def checked(visitor: Visitor, page: str) -> str:
    """What the checker says of the file that a page offers, against the root that it shows."""
    link = re.search(r'href="[^"]*(proof\.json\?[^"]*)"', page)
    root = re.search(r"verify_proof\.py ([0-9a-f]{64}) proof\.json", page)
    assert link is not None and root is not None
    answer = visitor.get(html.unescape(link[1]))
    assert 'filename="proof.json"' in answer.headers["Content-Disposition"]
    return str(CHECKER["verify"](root[1], answer.content))


def readings(trained: Trained, where: str) -> list[int]:
    """The steps of each time that the run read a document of which this holds, by tracing."""
    ids = query(trained.out, f"SELECT doc_id FROM documents WHERE status = 'kept' AND {where}").rows
    tracer = make_tracer(trained.out.url)
    exposures = [each for (doc_id,) in ids for each in tracer.by_id(bytes.fromhex(str(doc_id))).exposures]
    return [exposure.step for exposure in exposures if exposure.applied]


def test_a_run_that_is_not_committed_is_told_with_the_command(trained: Trained, uncommitted: str) -> None:
    said = re.search(r'role="alert"[^>]*>([^<]*)<', uncommitted)
    assert said is not None
    assert f"no commitment of its newest checkpoint: sluice commit {trained.run.output}" in said[1]


@pytest.mark.parametrize("kind", ["url", "domain", "text"])
def test_what_was_read_is_present_with_its_steps(visitor: Visitor, trained: Trained, kind: str) -> None:
    record = trained.record_first_read_in(range(1, 4))
    assert record.url is not None
    domain = str(registered_domain(str(named_host(record.url))))
    value = {"url": record.url, "domain": domain, "text": record.text}[kind]
    page = asked(visitor, trained, kind, value)
    steps = readings(trained, f"doc_id = '{record.doc_id.hex()}'")
    if kind == "domain":
        steps = readings(trained, f"domain = '{domain}'")
        assert min(steps) < max(steps) and len(steps) > 2
    assert page.status_code == 200 and "<h2>Present</h2>" in page.text and record.text not in page.url
    shown = re.sub("<[^>]*>", "", page.text)
    times = "1 time" if len(steps) == 1 else f"{len(steps)} times"
    assert f"read this {kind} {times}: first in step {min(steps)}, last in step {max(steps)}." in shown
    said = checked(visitor, page.text)
    assert said.startswith("present") and (kind != "domain" or domain in said)
    assert visitor.get(page.url.removeprefix(visitor.base)).text == page.text, "a link to it stays one"


def test_a_text_has_the_line_ends_that_it_had_before_the_form() -> None:
    assert subjects_of("text", "one\r\ntwo") == ("text", [text_hash("one\ntwo").hex()])


def test_what_was_not_read_is_absent_and_runs_nothing(visitor: Visitor, trained: Trained) -> None:
    for kind, value in (("url", LURE), ("domain", "absent.example"), ("text", "A text that nobody read.\n")):
        page = asked(visitor, trained, kind, value)
        assert "<h2>Absent</h2>" in page.text and "<script>alert" not in page.text
        assert checked(visitor, page.text).startswith("absent")


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("domain", "www.example.org", "domain 'www.example.org': it is a host of example.org"),
        ("domain", f"</textarea>{LURE}", "domain '</textarea>https://absent"),
        ("url", "  ", "expected a URL, a registered domain or a text"),
        ("page", "x", "kind 'page': expected one of url, domain, text"),
    ],
)
def test_what_cannot_be_looked_up_is_told_in_a_sentence(
    visitor: Visitor, trained: Trained, kind: str, value: str, said: str
) -> None:
    page = asked(visitor, trained, kind, value)
    assert page.status_code == 400 and f">{said}" in html.unescape(page.text)
    assert 'id="proof"' not in page.text and "<script>alert" not in page.text


def test_a_wrong_link_gives_no_proof(visitor: Visitor, trained: Trained) -> None:
    for link in (f"run={name_of(trained)}&kind=text&subject=x", "run=nobody&kind=url&subject=x"):
        for place in ("prove", "proof.json"):
            answer = visitor.get(f"{place}?{link}")
            assert not answer.ok and "Content-Disposition" not in answer.headers


@pytest.mark.slow
def test_proofs_are_read_by_everybody(visitor: Visitor, trained: Trained, browser: Any) -> None:
    record = trained.record_first_read_in(range(1, 4))
    assert record.url is not None
    link = asked(visitor, trained, "url", record.url).url.removeprefix(visitor.base)
    with served(trained.out.url) as address:
        browser.get(address)
        base = browser.current_url
        for place in ("prove", link, "prove?run=&kind=text&subject=x"):
            check(browser, base + place)
