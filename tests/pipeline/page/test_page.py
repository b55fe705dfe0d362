"""The lineage page in a real headless Chromium, and at the mercy of other pages."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import requests

from lineage.storage.folder import Folder
from lineage.trace.tracer import UnknownError
from pipeline.page.views import find_documents
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.processes.chromium import chromium
from tests.support.stores.loopback import Handler, serving

HOSTILE = "https://evil.example.org/<script>document.title='stolen'</script>"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished run of forum posts, one of them with markup in its URL and text."""
    from pipeline.demo.pages import write_article

    folder = tmp_path_factory.mktemp("page")
    rng = random.Random(7)
    posts = [{"url": f"https://forum.example.org/{i}", "text": write_article("en", rng).text} for i in range(12)]
    posts.append({"url": "https://forum.example.org/short", "text": "Too few words to be kept."})
    posts.append({"url": HOSTILE, "text": "<b onmouseover=alert(1)>bold</b> " + write_article("en", rng).text})
    (folder / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    run(folder, recipe(str(folder / "out"), {"forum": (str(folder / "posts.jsonl"),)}))
    return str(folder / "out")


@contextmanager
def served(out: str) -> Iterator[str]:
    """The address, with its token, of a page of `out` that is being served by a process of its own."""
    command = [sys.executable, "-m", "pipeline", "lineage", out, "--serve", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


@pytest.fixture
def page(out: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(address with token, a fresh copy of the output) of a page that is being served."""
    copy = str(tmp_path / "out")
    shutil.copytree(out, copy)
    with served(copy) as address:
        yield address, copy


@contextmanager
def listening() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Another server on this host: its address, and the headers of each request that it was sent."""
    heard: list[dict[str, str]] = []

    class Listener(Handler):
        protocol_version = "HTTP/1.0"

        def answer(self) -> None:
            heard.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>heard</title>")

    with serving(Listener) as url:
        yield f"{url}/", heard


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "chromium") as running:
        running.implicitly_wait(60)  # a click returns before the page that it leads to is there
        yield running


def doc_id_of(out: str, url: str) -> str:
    rows = query(Folder(out), "SELECT doc_id, url FROM documents").rows
    return next(str(doc_id) for doc_id, found in rows if found == url)


def test_a_person_finds_a_document_reads_its_story_and_purges_it(page: tuple[str, str], browser: Any) -> None:
    from selenium.webdriver.common.by import By

    address, out = page
    browser.get(address)
    assert "token" not in browser.current_url, "the token must not stay in the address bar"
    assert browser.find_element(By.ID, "funnel").text.count("forum") >= 5
    browser.find_element(By.NAME, "q").send_keys("https://forum.example.org/3\n")
    assert browser.find_element(By.ID, "doc-id").text == doc_id_of(out, "https://forum.example.org/3")
    assert "quality" in browser.find_element(By.ID, "decisions").text
    browser.find_element(By.CSS_SELECTOR, "form[action$='purge'] button").click()
    assert "https://forum.example.org/3" in browser.find_element(By.ID, "plan").text
    browser.find_element(By.NAME, "by").send_keys("tester")
    browser.find_element(By.NAME, "reason").send_keys("takedown")
    browser.find_element(By.CSS_SELECTOR, "form[method='post'] button").click()
    purge_id = browser.find_element(By.ID, "purge-id").text
    assert query(Folder(out), 'SELECT purge_id, "by", reason FROM purges').rows == [(purge_id, "tester", "takedown")]


def test_markup_in_a_url_is_shown_and_never_run(page: tuple[str, str], browser: Any) -> None:
    from selenium.webdriver.common.by import By

    address, out = page
    browser.get(address)
    browser.get(browser.current_url + "document/" + doc_id_of(out, HOSTILE))
    assert browser.find_element(By.TAG_NAME, "h1").text == HOSTILE
    assert "stolen" not in browser.title
    assert "<script" not in browser.page_source


def test_hostile_texts_run_nothing_and_fetch_nothing_on_any_page(tmp_path: Path, browser: Any) -> None:
    """Of web pages (URL, host, text), of whoever searches and of whoever purges."""
    from selenium.webdriver.common.by import By

    with listening() as (other, heard):
        marks = [
            f'"><img src={other}image onerror=document.title="stolen">',
            f"'><script src={other}script></script>",
            f"</title></textarea></style><svg onload=fetch('{other}fetch')>",
            f"<link rel=stylesheet href={other}style><meta http-equiv=refresh content='0;url={other}refresh'>",
            f"{{{{7*7}}}}${{7*7}}<iframe src={other}frame></iframe>\u202e\x00\x1b[31m",
        ]
        urls = [f"https://evil.example.org/{mark}" for mark in marks] + [f"javascript:fetch('{other}link')//"]
        posts = [{"url": url, "id": url, "text": f"{marks[0]} {prose(number)}"} for number, url in enumerate(urls)]
        (tmp_path / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
        out = str(tmp_path / "out")
        run(tmp_path, recipe(out, {"forum": (str(tmp_path / "posts.jsonl"),)}))
        rows = query(Folder(out), "SELECT doc_id, url FROM documents").rows
        assert len(rows) == len(urls)

        def check(place: str) -> None:
            assert "stolen" not in browser.title, place
            fetched = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
            assert [name for name in fetched if not name.startswith(base)] == [], place
            assert browser.find_elements(By.CSS_SELECTOR, "script, iframe, svg, img, [onerror], [onload]") == [], place
            links = [link.get_attribute("href") for link in browser.find_elements(By.TAG_NAME, "a")]
            assert [link for link in links if str(link).startswith("javascript:")] == [], place

        with served(out) as address:
            browser.implicitly_wait(0)
            browser.get(address)
            base = browser.current_url
            check("front")
            for mark in [*marks, *urls]:
                browser.get(f"{base}search?{urlencode({'q': mark})}")
                check(f"search {mark}")
            browser.get(f"{base}report")
            check("report")
            for asked in (*marks, "SELECT doc_id, url, metadata FROM documents", "SELECT '<svg onload=1>' AS \"<b>\""):
                browser.get(f"{base}sql?{urlencode({'q': asked})}")
                check(f"sql {asked}")
            for doc_id, _ in rows:
                browser.get(f"{base}document/{doc_id}")
                assert str(doc_id) in browser.page_source
                check("document")
            browser.get(f"{base}purge?{urlencode({'kind': 'doc', 'value': rows[0][0]})}")
            browser.find_element(By.NAME, "by").send_keys(marks[0])
            browser.find_element(By.NAME, "reason").send_keys(marks[1])
            check("plan")
            browser.find_element(By.CSS_SELECTOR, "form[method='post'] button").click()
            browser.implicitly_wait(60)
            browser.find_element(By.ID, "purge-id")
            browser.implicitly_wait(0)
            check("purged")
            for place in ("", f"document/{rows[0][0]}", f"document/{urlencode({'a': marks[0]})}"):
                browser.get(base + place)
                check(f"after the purge: {place}")
        assert heard == [], "something was fetched"


def prose(seed: int) -> str:
    """A text that the rules keep, another for each seed."""
    from pipeline.demo.pages import write_article

    return write_article("en", random.Random(seed)).text


def test_report_and_page_lead_to_each_other_and_figures_to_their_documents(page: tuple[str, str], browser: Any) -> None:
    from selenium.webdriver.common.by import By

    address, out = page
    browser.get(address + "&to=report")
    assert browser.current_url.endswith("/report") and "token" not in browser.current_url
    assert browser.find_element(By.CSS_SELECTOR, "header .command").text.endswith("/out --serve")
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    link = browser.find_element(By.CSS_SELECTOR, "blockquote footer a[href^='document/']")
    doc_id = link.text
    link.click()
    assert browser.find_element(By.ID, "doc-id").text == doc_id
    assert f"sluice explain {out} --doc {doc_id}" in browser.page_source
    browser.find_element(By.LINK_TEXT, "Sluice").click()
    figure = next(
        row.find_element(By.TAG_NAME, "a")
        for row in browser.find_elements(By.CSS_SELECTOR, "#funnel tr")
        if row.text.split()[1:2] == ["quality"]
    )
    num = int(figure.text)
    figure.click()
    assert len(browser.find_elements(By.CSS_SELECTOR, "#rows tr")) - 1 == num


def test_a_deep_link_leads_into_the_page_and_nowhere_else(page: tuple[str, str]) -> None:
    address, out = page
    doc_id = doc_id_of(out, HOSTILE)
    for wanted, end in (("report", "/report"), (f"document/{doc_id}", f"/document/{doc_id}"), ("sql", "/sql")):
        answer = requests.get(f"{address}&to={wanted}", allow_redirects=False, timeout=30)
        assert answer.headers["Location"].endswith(end)
    for wanted in ("//evil.example", "https://evil.example", "../x", "report/..", f"document/{doc_id}%0d%0ax: y"):
        answer = requests.get(f"{address}&to={wanted}", allow_redirects=False, timeout=30)
        assert answer.headers["Location"].count("/") == 2 and "evil" not in answer.headers["Location"]


def test_the_sql_box_reads_and_never_writes(page: tuple[str, str], browser: Any) -> None:
    from selenium.webdriver.common.by import By

    address, out = page
    browser.get(address + "&to=sql")
    box = browser.find_element(By.TAG_NAME, "textarea")
    box.send_keys("SELECT doc_id, url FROM documents WHERE url LIKE '%/3'")
    browser.find_element(By.CSS_SELECTOR, "main button").click()
    link = browser.find_element(By.CSS_SELECTOR, "#rows a")
    assert link.text == doc_id_of(out, "https://forum.example.org/3")
    browser.implicitly_wait(0)
    for wrong in ("DROP TABLE documents", "SELECT * FROM read_csv('/etc/passwd')", "SELECT nothing FROM documents"):
        browser.get(browser.current_url.partition("?")[0] + "?" + urlencode({"q": wrong}))
        assert browser.find_elements(By.ID, "rows") == []
        assert "root:" not in browser.page_source


def test_without_the_token_nothing_is_shown(page: tuple[str, str]) -> None:
    address = page[0].split("?")[0]
    assert requests.get(address, timeout=30).status_code == 401
    assert requests.get(address + "?token=guess", timeout=30).status_code == 401


def test_another_name_for_this_host_is_refused(page: tuple[str, str]) -> None:
    assert requests.get(page[0], headers={"Host": "attacker.example.org"}, timeout=30).status_code == 403


def test_another_page_cannot_purge(page: tuple[str, str]) -> None:
    address, out = page
    session = requests.Session()
    opened = session.get(address, timeout=30)
    assert opened.ok
    form = {"kind": "host", "value": "forum.example.org", "by": "attacker", "reason": "none"}
    target = opened.url + "purge"
    for headers in ({"Origin": "https://attacker.example.org"}, {}):
        assert session.post(target, data=form, headers=headers, timeout=30).status_code == 403
    assert query(Folder(out), "SELECT count(*) FROM purges").rows == [(0,)]


def test_what_is_unknown_is_a_page_that_says_so(page: tuple[str, str]) -> None:
    session = requests.Session()
    base = session.get(page[0], timeout=30).url
    answer = session.get(base + "document/" + "0" * 32, timeout=30)
    assert answer.status_code == 404
    assert "no document" in answer.text


@pytest.mark.parametrize("wanted", ["forum/²:0", "forum/0:²"])
def test_what_is_no_token_of_a_shard_is_looked_for_as_a_host(out: str, wanted: str) -> None:
    with pytest.raises(UnknownError, match="no document of host 'forum'"):
        find_documents(Folder(out), wanted, 10)


def test_two_pages_at_once_do_not_log_each_other_out(out: str) -> None:
    with served(out) as first, served(out) as second:
        session = requests.Session()
        bases = [session.get(address, timeout=30).url for address in (first, second)]
        assert [session.get(base, timeout=30).status_code for base in (*bases, *bases)] == [200] * 4
        assert len({cookie.name for cookie in session.cookies}) == 2, "one server's cookie took the other's place"


def test_no_other_port_is_sent_what_opens_the_page(page: tuple[str, str]) -> None:
    """Browsers send a cookie to every port of its host: only its path keeps it from the servers of others."""
    session = requests.Session()
    base = session.get(page[0], timeout=30).url
    token = page[0].partition("token=")[2]
    secrets = {token, *(str(cookie.value) for cookie in session.cookies)}
    with listening() as (other, heard):
        for path in ("", "search?q=a", "purge"):
            assert session.get(other + path, headers={"Referer": base}, timeout=30).ok
        sent = json.dumps([{**request, "referer": ""} for request in heard])
    assert len(heard) == 3 and not [secret for secret in secrets if secret in sent]
    stolen = requests.get(base, cookies={"sluice": token}, timeout=30)
    assert stolen.status_code == 401, "the path alone, or the token as a cookie, opens nothing"


def test_a_browser_keeps_two_pages_open_and_tells_a_third_server_nothing(page: tuple[str, str], browser: Any) -> None:
    from selenium.webdriver.common.by import By

    with served(page[1]) as second, listening() as (other, heard):
        browser.get(page[0])
        first = browser.current_url
        browser.get(second)
        browser.get(other)
        assert browser.title == "heard"
        browser.get(first)
        assert browser.find_element(By.ID, "funnel").text.count("forum") >= 5
    assert heard and not [request for request in heard if "cookie" in request]
    assert first.split("/")[3] not in json.dumps(heard), "the path that keeps the cookie is not told either"
