"""How pages look to a real browser: on a phone, on paper, with what is copied from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.page.test_outputs import begun
from tests.pipeline.page.test_reading import PAGE_1, document
from tests.support.processes.served_page import served

PLACES = (
    "", "runs", "runs/seen", "search?q=web.example.org", "search?q=seen:3:1",
    "sql?q=SELECT+*+FROM+documents+LIMIT+5", "basket",
)  # fmt: skip

CUT = """
const cut = (box) => box.scrollWidth > box.clientWidth + 1;
return [document.documentElement, ...document.querySelectorAll("table, section, h1, h2")].filter(cut)
  .map((box) => box.outerHTML.slice(0, 200));
"""


def on_a_phone(browser: Any) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )


def test_on_a_phone_nothing_is_cut(shared_page: str, made: str, browser: Any) -> None:
    browser.get(shared_page)
    base = browser.current_url
    on_a_phone(browser)
    for place in (*PLACES, f"document/{document(made, PAGE_1)['doc_id']}"):
        browser.get(base + place)
        browser.find_element("css selector", "main h1")
        assert browser.execute_script(CUT) == [], place
    browser.get(f"{base}search?q=web.example.org")
    row = browser.find_element("css selector", "table.documents tr:nth-child(2)")
    labels = [cell.get_attribute("data-label") for cell in row.find_elements("tag name", "td")]
    assert labels == ["document", "URL", "status", "rule", "language", "tokens"]
    browser.get(base)
    assert browser.find_element("css selector", ".sideways").is_displayed(), (
        "the flow is wider than the phone"
    )


def test_a_run_at_work_and_several_outputs_fit_a_phone(made: str, tmp_path: Path, browser: Any) -> None:
    with served(made, begun(tmp_path / "half", 5, 2).url) as address:
        browser.get(address)
        base = browser.current_url
        on_a_phone(browser)
        for place in ("", "half/"):
            browser.get(base + place)
            browser.find_element("css selector", "table")
            assert browser.execute_script(CUT) == [], place
        heads = browser.find_element("css selector", "#progress tr").rect
        assert heads["height"] <= 1, "no heads stand over bars that have lines of their own"
        browser.get(base)
        states = [cell.text for cell in browser.find_elements("css selector", "td[data-label=state]")]
        assert states == ["", "not ended: 2 of 5 files read, 20 documents"]


def test_the_newest_lines_of_a_log_are_seen_and_it_begins_on_the_first_sheet(
    shared_page: str, browser: Any
) -> None:
    browser.get(shared_page)
    log = "\n".join(f"line {number}" for number in range(200))
    put = """
const box = document.querySelector("section");
box.innerHTML = '<pre class="headers log"></pre>';
box.firstChild.textContent = arguments[0];
document.dispatchEvent(new Event("htmx:afterSettle"));
const at = box.firstChild.scrollTop + box.firstChild.clientHeight;
return [at >= box.firstChild.scrollHeight - 1, box.firstChild.scrollHeight > box.firstChild.clientHeight];
"""
    assert browser.execute_script(put, log) == [True, True]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script(
        "return getComputedStyle(document.querySelector('section')).breakInside"
    ) == ("auto")


def test_ids_and_commands_are_copied(shared_page: str, made: str, browser: Any) -> None:
    browser.get(shared_page)
    doc_id = str(document(made, PAGE_1)["doc_id"])
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    browser.get(f"{browser.current_url}document/{doc_id}")
    commands = f"//code[starts-with(., 'sluice explain') and contains(., '{doc_id}')]"
    for place, text in (("//*[@id='doc-id']", doc_id), (commands, None)):
        code = browser.find_element("xpath", place)
        button = browser.find_element("xpath", f"{place}/following-sibling::button[1]")
        assert button.get_attribute("aria-label").startswith("Copy ")
        button.click()
        browser.find_element("xpath", f"{place}/following-sibling::button[. = 'Copied']")
        read = browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
        assert read == (text or code.text)


def test_on_paper_all_that_is_asked_for_stands(shared_page: str, browser: Any) -> None:
    browser.get(shared_page)
    browser.find_element("css selector", ".plots h3")  # what the page asks for by itself is there
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    printed = browser.find_element("tag name", "main").text
    assert "Languages" in printed and "web.example.org" in printed
    folded = "return document.getElementById('funnel').checkVisibility({ contentVisibilityAuto: true })"
    assert browser.execute_script(folded), "what is folded up on a screen"
    base = browser.current_url
    browser.get(f"{base}sql?q=SELECT+status,count(*)+FROM+documents+GROUP+BY+1")
    printed = browser.find_element("tag name", "main").text
    assert "SELECT status,count(*) FROM documents" in printed, "what was asked"
    assert "Views and their columns" not in printed and "Copy" not in printed
    browser.get(f"{base}thresholds")
    browser.find_element("css selector", ".rule")
    printed = browser.find_element("tag name", "main").text
    assert "(as it is set): rejects" in printed and "What changes" not in printed
    browser.get(f"{base}runs/seen")
    assert "What it read of each purge" not in browser.find_element("tag name", "main").text
    assert "A step and its documents" not in browser.find_element("tag name", "main").text, "a form is none"


@pytest.fixture(autouse=True)
def as_on_a_screen(browser: Any) -> Any:
    """A browser that is no phone and no paper any more when the test ends."""
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
