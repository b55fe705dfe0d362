"""The lineage page in a real headless Chromium, and at the mercy of other pages."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lineage.storage.folder import Folder
from lineage.store.sql import query
from tests.support.runs import recipe, run

HOSTILE = "https://evil.example.org/<script>document.title='stolen'</script>"

pytestmark = pytest.mark.usefixtures("small_ray")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished run of forum posts, one of them with markup in its URL and text."""
    import random

    from pipeline.demo.pages import write_article

    folder = tmp_path_factory.mktemp("page")
    rng = random.Random(7)
    posts = [{"url": f"https://forum.example.org/{i}", "text": write_article("en", rng).text} for i in range(12)]
    posts.append({"url": HOSTILE, "text": "<b onmouseover=alert(1)>bold</b> " + write_article("en", rng).text})
    (folder / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    run(folder, recipe(str(folder / "out"), {"forum": (str(folder / "posts.jsonl"),)}))
    return str(folder / "out")


@pytest.fixture
def page(out: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(address with token, a fresh copy of the output) of a page that is being served."""
    copy = str(tmp_path / "out")
    shutil.copytree(out, copy)
    command = [sys.executable, "-m", "pipeline", "lineage", copy, "--serve", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield json.loads(server.stdout.readline())["url"], copy
    server.send_signal(signal.SIGINT)
    server.wait(600)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("no chromium and chromedriver here: install Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                     "--disable-sync", "--disable-background-networking", "--disable-component-update",
                     f"--user-data-dir={tmp_path / 'chromium'}"):  # fmt: skip
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    driver.implicitly_wait(60)  # a click returns before the page that it leads to is there
    yield driver
    driver.quit()


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
    browser.find_element(By.CSS_SELECTOR, "form[action='/purge'] button").click()
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
    browser.get(address.split("?")[0] + "document/" + doc_id_of(out, HOSTILE))
    assert browser.find_element(By.TAG_NAME, "h1").text == HOSTILE
    assert "stolen" not in browser.title
    assert "<script" not in browser.page_source


def test_without_the_token_nothing_is_shown(page: tuple[str, str]) -> None:
    address = page[0].split("?")[0]
    assert requests.get(address, timeout=30).status_code == 401
    assert requests.get(address + "?token=guess", timeout=30).status_code == 401


def test_another_name_for_this_host_is_refused(page: tuple[str, str]) -> None:
    assert requests.get(page[0], headers={"Host": "attacker.example.org"}, timeout=30).status_code == 403


def test_another_page_cannot_purge(page: tuple[str, str]) -> None:
    address, out = page
    session = requests.Session()
    assert session.get(address, timeout=30).ok
    form = {"kind": "host", "value": "forum.example.org", "by": "attacker", "reason": "none"}
    target = address.split("?")[0] + "purge"
    for headers in ({"Origin": "https://attacker.example.org"}, {}):
        assert session.post(target, data=form, headers=headers, timeout=30).status_code == 403
    assert query(Folder(out), "SELECT count(*) FROM purges").rows == [(0,)]


def test_what_is_unknown_is_a_page_that_says_so(page: tuple[str, str]) -> None:
    session = requests.Session()
    session.get(page[0], timeout=30)
    answer = session.get(page[0].split("?")[0] + "document/" + "0" * 32, timeout=30)
    assert answer.status_code == 404
    assert "no document" in answer.text
