"""The signals of publishers on the page: of one document, and of all with the documents behind each count."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lineage.storage.folder import Folder
from tests.pipeline.page.conftest import prose
from tests.pipeline.page.test_accessibility import check
from tests.support.inputs.make_warc import http, member, record
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.processes.served_page import Visitor, served

BY = "https://creativecommons.org/licenses/by/4.0/"
LURE = "https://evil.example.org/'><script>alert(1)</script>"
DENY, TDM = "Content-Usage: train-ai=n", "tdm-reservation: 1"
PAGES: dict[str, tuple[tuple[str, ...], str]] = {
    # URL: headers of the response, and the licence in its HTML
    "https://no.example.org/1": ((DENY,), ""),
    "https://no.example.org/2": ((DENY, TDM), ""),
    "https://no.example.org/3": ((TDM,), BY),
    "https://tdm.example.net/": ((TDM,), LURE),
    "https://yes.example.com/": (("Content-Usage: train-ai=y",), BY),
    "https://torn.example.com/": (("Content-Usage: <script>alert(2)</script>",), ""),
    "https://silent.example.com/": ((), ""),
}


def make_signals(folder: Path, **tables: dict[str, Any]) -> str:
    """The output of a run over PAGES."""
    made = []
    for number, (url, (headers, licence)) in enumerate(PAGES.items()):
        link = f'<a rel="license" href="{html.escape(licence)}">licence</a>' if licence else ""
        text = "".join(f"<p>{line}</p>" for line in prose(number).split("\n"))
        body = f"<html><body><article>{text}</article>{link}</body></html>".encode()
        block = http(body, "text/html", "200 OK", *headers)
        made.append(member(record(block, f"page-{number}", warc_target_uri=url)))
    (folder / "web.warc.gz").write_bytes(b"".join(made))
    plain = recipe(str(folder / "out"), {"web": (str(folder / "web.warc.gz"),)}, **tables)
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(folder, plain)
    return str(folder / "out")


@pytest.fixture(scope="module")
def signals_out(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_signals(tmp_path_factory.mktemp("signals"))


def listed(visitor: Visitor, link: str) -> set[str]:
    """The URLs of the documents that a link of the page lists."""
    place = html.unescape(link).removeprefix(urlsplit(visitor.base).path)
    answer = visitor.get(place)
    assert answer.status_code == 200, answer.text
    return {url for url in PAGES if f">{html.escape(url)}</td>" in answer.text}


def rows_of(page: str, section: str) -> list[tuple[list[str], str]]:
    """The rows of a section's table: the text of each cell, and the link."""
    part = page.partition(f'id="{section}"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(<td.*?)</tr>", part)
    cells = [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    links = [re.findall('href="([^"]*)"', row)[0] for row in rows]
    return list(zip(cells, links, strict=True))


def test_each_count_of_signals_leads_to_its_documents(signals_out: str) -> None:
    no = {url for url in PAGES if "//no." in url}
    tokens = dict(query(Folder(signals_out), "SELECT url, num_tokens FROM documents").rows)

    def num(urls: set[str]) -> str:
        return f"{sum(int(tokens[url]) for url in urls):,}"  # type: ignore[arg-type]

    with served(signals_out) as address:
        visitor = Visitor(address)
        page = visitor.get("signals").text
        uses = {cells[0]: (cells[1], listed(visitor, link)) for cells, link in rows_of(page, "uses")}
        tdm, yes, torn, silent = list(PAGES)[3:]
        assert uses == {
            "denied": ("4", {*no, tdm}), "allowed": ("1", {yes}), "unknown": ("2", {torn, silent}),
        }  # fmt: skip
        usage, reserved = {*list(PAGES)[:2]}, {list(PAGES)[2]}
        hosts = {tuple(cells): listed(visitor, link) for cells, link in rows_of(page, "hosts")}
        assert hosts == {
            ("no.example.org", "content_usage", "2", num(usage)): usage,
            ("no.example.org", "tdmrep", "1", num(reserved)): reserved,
            ("tdm.example.net", "tdmrep", "1", num({tdm})): {tdm},
        }
        kinds = {tuple(cells): listed(visitor, link) for cells, link in rows_of(page, "kinds")}
        assert kinds["tdmrep", "3"] == {*list(PAGES)[1:3], tdm}
        assert kinds["content_usage", "4"] == {*usage, yes, torn}
        licences = {cells[1]: listed(visitor, link) for cells, link in rows_of(page, "licences")}
        assert licences == {"2": {list(PAGES)[2], yes}, "1": {tdm}}
        malformed = re.search(r'could not be parsed.*?href="([^"]*)">1<', page)
        assert malformed is not None and listed(visitor, malformed[1]) == {torn}
        assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_a_document_shows_its_signals_as_they_were_found(signals_out: str) -> None:
    ids = dict(query(Folder(signals_out), "SELECT url, doc_id FROM documents").rows)
    with served(signals_out) as address:
        visitor = Visitor(address)
        denied = visitor.get(f"document/{ids['https://no.example.org/2']}").text
        torn = visitor.get(f"document/{ids['https://torn.example.com/']}").text
        silent = visitor.get(f"document/{ids['https://silent.example.com/']}").text
    assert "Use for training: <b>denied</b> by <code>content_usage</code>" in denied
    for kind, value in (("content_usage", "train-ai=n"), ("tdmrep", "1")):
        assert re.search(f'<code>{kind}</code></td><td>header</td><td class="break">{value}</td>', denied)
    assert "&lt;script&gt;alert(2)" in torn and "<script>alert" not in torn and "malformed" in torn
    assert "Use for training: <b>unknown</b>" in silent and "None was found." in silent


def test_without_recorded_signals_nothing_is_shown_and_the_page_says_why(tmp_path: Path) -> None:
    out = make_signals(tmp_path, rights={"record": []})
    doc_id = query(Folder(out), "SELECT doc_id FROM documents").rows[0][0]
    with served(out) as address:
        visitor = Visitor(address)
        page = visitor.get("signals").text
        assert "This run recorded no signals: <code>rights.record</code>" in page
        document = visitor.get(f"document/{doc_id}").text
        assert 'id="crawl"' in document and 'id="signals"' not in document


@pytest.mark.slow
def test_signals_are_read_by_everybody(signals_out: str, browser: Any) -> None:
    ids = dict(query(Folder(signals_out), "SELECT url, doc_id FROM documents").rows)
    with served(signals_out) as address:
        browser.get(address)
        base = browser.current_url
        for place in ("signals", f"document/{ids['https://no.example.org/2']}"):
            check(browser, base + place)
