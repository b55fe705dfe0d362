"""axe-core finds nothing serious on any page, on a screen and on a phone, and no page breaks its own
policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.pipeline.page.test_outputs import begun
from tests.pipeline.page.test_reading import PAGE_1, document
from tests.support.processes.served_page import served

PAGES = (
    "", "search?q=web.example.org", "search?q=words:the", "thresholds", "sql?q=SELECT+status,count(*)+FROM+documents",
    "sql?q=SELECT+rule,count(*)+FROM+documents+GROUP+BY+1", "runs", "runs/seen", "purges", "basket", "nothing",
    "search?q=seen:3", "search?q=seen:3:1", "sql?q=SELECT+nothing+FROM+documents", "report",
)  # fmt: skip


def check(browser: Any, url: str) -> None:
    """Load a page, wait for the pieces that it asks for, and let axe look at it in two widths."""
    axe_core = pytest.importorskip("axe_core_python")
    script = (Path(axe_core.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    browser.get(url)
    for width in (1280, 390):
        browser.set_window_size(width, 900)
        browser.set_script_timeout(120)
        waiting = "const done = arguments[0]; (function look() { document.querySelector('.htmx-request')"
        browser.execute_async_script(f"{waiting} ? setTimeout(look, 200) : done() }})()")
        browser.execute_script(script)
        found = browser.execute_async_script("const done = arguments[0]; axe.run().then(done)")
        serious = [
            (v["id"], v["nodes"][0]["html"])
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{url} at {width} pixels"
    assert [entry for entry in browser.get_log("browser") if "Content Security" in entry["message"]] == []


def test_a_document_is_read_by_everybody(shared_page: str, made: str, browser: Any) -> None:
    browser.get(shared_page)
    check(browser, f"{browser.current_url}document/{document(made, PAGE_1)['doc_id']}")


@pytest.mark.slow
def test_every_page_is_read_by_everybody(shared_page: str, browser: Any) -> None:
    browser.get(shared_page)
    base = browser.current_url
    for place in PAGES:
        check(browser, base + place)


@pytest.mark.slow
def test_a_run_at_work_several_outputs_and_the_login_are_read_by_everybody(
    made: str, tmp_path: Path, browser: Any
) -> None:
    with served(made, begun(tmp_path / "half", 5, 2).url) as address:
        check(browser, address.partition("?")[0])
        browser.get(address)
        base = browser.current_url
        for place in ("", "half/"):
            check(browser, base + place)


@pytest.mark.slow
def test_a_basket_and_its_plan_are_read_by_everybody(made: str, tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    copy = "https://copy.example.org/of-3"
    mail = f"Please take down\n- {copy}\n- {document(made, PAGE_1)['doc_id']},\n- {PAGE_1}1"
    with served(made, state=str(tmp_path / "basket")) as address:
        browser.get(address)
        base = browser.current_url
        for page in ("basket", f"search?{urlencode({'q': mail})}"):
            browser.get(f"{base}{page}")
            if page == "basket":
                browser.find_element(By.ID, "lines").send_keys(mail)
                browser.find_element(By.XPATH, "//button[. = 'Put in']").click()
                browser.find_element(By.ID, "read")
            check(browser, browser.current_url)
        browser.get(f"{base}basket")
        browser.find_element(By.ID, "plan").click()
        browser.find_element(By.ID, "named-rows")
        check(browser, browser.current_url)
