"""The report in a real browser: it loads in peace, says what lineage says, and shows hostile text as text."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.storage.lock import Hold, hold
from pipeline.cli.main import main
from pipeline.demo.crawl import Truth
from pipeline.demo.pages import write_article
from pipeline.report.compare import compare_words
from pipeline.report.data import human_value
from stages.pii.scrub import scrub
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run

ATTACK = '<script>document.title="owned"</script><img src=x onerror="document.title=1"></p></blockquote><b id=evil>'


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, demo_crawl: tuple[Path, Truth]) -> Folder:
    """A run over a small crawl and a file of hostile texts."""
    folder = tmp_path_factory.mktemp("report")
    rows = [
        {
            "id": str(n),
            "url": f"https://evil.example/{n}?{ATTACK}",
            "text": f"{ATTACK} The boats came home in the rain {n}.",
        }
        for n in range(3)
    ]
    lines = [
        f"The {word} boats came home before the rain, said the keeper of the harbour."
        for word in "abcdefghij"
    ]
    twice = {"url": f"https://evil.example/kept?{ATTACK}", "text": f"{ATTACK}\n" + "\n".join(lines)}
    rows += [{"id": "kept", **twice}, *({"id": f"copy{n}", **twice} for n in range(4))]
    story = write_article("en", random.Random(0), 14).text
    rows += [{"id": "story", "text": story}, {"id": "retold", "text": story.replace(" the ", " retold ", 3)}]
    rows.append(
        {"id": "mail", "url": "https://a.example/", "text": "Write to jane.roe@mail-house.example at once."}
    )
    (folder / "evil.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"news": (str(demo_crawl[0] / "news-*"),), "evil": (str(folder / "evil.jsonl"),)}
    plain = recipe(str(folder / "out"), sources)
    run(folder, {**plain, "run": {"name": f"report {ATTACK}", "output": str(folder / "out")}})
    return Folder(str(folder / "out"))


@pytest.fixture
def page(browser: Any, out: Folder) -> Any:
    """The browser with the report open, anew: another test may have been elsewhere with it."""
    browser.get("about:blank")
    browser.get_log("performance")  # the start page's own requests
    browser.get(f"file://{out.at('report.html')}")
    return browser


def ask(out: Folder, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(out, sql).rows]


def texts(page: Any, selector: str) -> list[str]:
    """What the elements hold, shown or folded away."""
    return [
        str(element.get_attribute("textContent")).strip()
        for element in page.find_elements("css selector", selector)
    ]


def test_the_page_loads_without_an_error_or_a_request(page: Any, out: Folder) -> None:
    assert page.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {f"file://{out.at('report.html')}"}


def test_the_funnel_says_what_lineage_says(page: Any, out: Folder) -> None:
    for source in ("news", "evil"):
        cells = texts(page, f"table[data-source='{source}'] td")
        found = [tuple(cells[row + at] for at in (0, 2, 3, 4)) for row in range(0, len(cells), 8)]
        steps = ask(
            out,
            f"SELECT stage, num_in, num_out, num_rejected FROM steps WHERE source = '{source}' ORDER BY"
            f" position",
        )
        assert found == [(stage, *(f"{number:,}" for number in numbers)) for stage, *numbers in steps]
    together = texts(page, "table[data-source='all sources'] td")
    by_stage = {together[row]: together[row + 4] for row in range(0, len(together), 8)}
    totals = ask(out, "SELECT stage, sum(num_rejected)::BIGINT FROM steps GROUP BY 1")
    assert by_stage == {stage: f"{number:,}" for stage, number in totals}


def test_tiles_and_rules_say_what_lineage_says(page: Any, out: Folder) -> None:
    tiles = dict(zip(texts(page, ".tile span"), texts(page, ".tile b"), strict=True))
    assert tiles["documents"] == f"{ask(out, 'SELECT count(*) FROM documents')[0][0]:,}"
    assert tiles["tokens"] == f"{ask(out, 'SELECT sum(num_tokens) FROM placements')[0][0]:,}"
    names = texts(page, ".rules summary code")
    numbers = texts(page, ".rules summary > .n:nth-of-type(2)")
    rules = dict(ask(out, "SELECT rule, sum(num)::BIGINT FROM step_rules GROUP BY 1"))
    assert dict(zip(names, numbers, strict=True)) == {rule: f"{num:,}" for rule, num in rules.items()}


def test_a_rule_opens_and_shows_its_documents(page: Any, out: Folder) -> None:
    rule = "gopher_quality.too_few_words"
    [details] = [
        element
        for element in page.find_elements("css selector", ".rules details")
        if rule in element.find_element("css selector", "summary").text
    ]
    assert not details.find_element("css selector", "blockquote").is_displayed()
    details.find_element("css selector", "summary").click()
    shown = details.find_elements("css selector", "blockquote")
    assert shown and all(quote.is_displayed() for quote in shown)
    assert any(ATTACK in quote.text for quote in shown), "what is markup in the crawl is text here"
    [(value, doc_id)] = ask(
        out, f"SELECT value, doc_id FROM documents WHERE rule = '{rule}' ORDER BY doc_id LIMIT 1"
    )
    [least] = [quote.text for quote in shown if doc_id in quote.find_element("css selector", ".doc-id").text]
    assert f"measured {human_value(value)}, language " in least
    assert f"sluice explain {out.url} --doc {doc_id}" in least
    assert "50" in details.find_element("css selector", "summary").text.split()


def test_hostile_text_never_becomes_an_element(page: Any) -> None:
    assert page.title == f"report {ATTACK} · Sluice report"
    assert page.find_elements("css selector", "script, img, iframe, object, #evil, [onerror]") == []
    assert sum(ATTACK in text for text in texts(page, "blockquote")) >= 3


LURES = (
    '<script>fetch("http://127.0.0.1:9/stolen")</script>', '<img src="http://127.0.0.1:9/x.png">',
    '<svg onload="document.title=1"></svg>', '<iframe srcdoc="<script>parent.document.title=1</script>"></iframe>',
    '<link rel=stylesheet href=//127.0.0.1:9/a.css>', '<meta http-equiv=refresh content="0;url=http://127.0.0.1:9/">',
    '<style>body{background:url(http://127.0.0.1:9/b)}</style>', '<base href="http://127.0.0.1:9/">',
    '<a href="javascript:document.title=1" autofocus onfocus="document.title=1">x</a>', '"><input autofocus onfocus=1>',
    "\u202egpj.exe\u2069", "{{7*7}}{% raw %}", "]]></script><!--", "\x1b]0;owned\x07", "&lt;b&gt;&#x3c;script>",
)  # fmt: skip


def test_no_lure_in_a_text_a_url_or_a_name_runs_or_is_fetched(browser: Any, tmp_path: Path) -> None:
    rows = [
        {
            "id": lure,
            "url": f"https://lure{n}.example/{lure}",
            "text": f"{lure} Too few words to be kept {n}.",
        }
        for n, lure in enumerate(LURES)
    ]
    (tmp_path / "lures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(tmp_path / "out"), {"lures": (str(tmp_path / "lures.jsonl"),)})
    name = "report " + " ".join(LURES[:8])
    run(tmp_path, {**plain, "run": {"name": name, "output": str(tmp_path / "out")}})
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    address = f"file://{tmp_path / 'out' / 'report.html'}"
    browser.get(address)
    for details in browser.find_elements("css selector", "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {address}
    assert browser.current_url == address and browser.title == f"{name} · Sluice report"
    made = (
        "script, img, iframe, object, link:not([rel=icon]), base, meta[http-equiv=refresh], input, [onload],"
        " [onfocus], [href^=java]"
    )
    assert browser.find_elements("css selector", made) == []
    quotes = texts(browser, "blockquote")
    assert sum(any(lure.strip() in quote for quote in quotes) for lure in LURES) >= 3
    assert "49" not in browser.title and not any("49 Too few" in quote for quote in quotes)


def test_excerpts_hold_no_personal_data(page: Any) -> None:
    quotes = texts(page, "blockquote p")
    assert any("<EMAIL>" in quote for quote in quotes)
    assert all(scrub(quote).text == quote for quote in quotes)


def test_the_largest_clusters_stand_side_by_side_the_kept_one_first(page: Any, out: Folder) -> None:
    largest = ask(
        out,
        "SELECT cluster_id, count(*) n FROM documents WHERE cluster_id IS NOT NULL GROUP BY 1"
        " ORDER BY n DESC, 1 LIMIT 6",
    )
    assert texts(page, "#clusters h3 span") == [cluster_id for cluster_id, _ in largest]
    sides = page.find_elements("css selector", "#clusters .side")
    for side, (cluster_id, size) in zip(sides, largest, strict=True):
        notes = [quote.text for quote in side.find_elements("css selector", "blockquote b")]
        shown = [quote.text for quote in side.find_elements("css selector", "blockquote p")]
        assert notes[0] == "kept" and len(notes) == min(size, 3) and all(shown)
        [kept] = ask(
            out, f"SELECT doc_id FROM documents WHERE cluster_id = '{cluster_id}' AND status = 'kept'"
        )
        assert kept[0] in side.find_element("css selector", "blockquote").text
    assert texts(page, "#clusters mark") in (["retold"] * 3, ["the"] * 3)


def test_no_name_of_a_step_wraps_and_nothing_is_wider_than_the_page(page: Any) -> None:
    heights = {
        element.size["height"] for element in page.find_elements("css selector", "#funnel > table td code")
    }
    assert len(heights) == 1
    for width in (1280, 800):
        page.set_window_size(width, 900)
        assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_the_page_can_be_seen_in_light_and_in_dark(page: Any) -> None:
    pictures = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        colours = page.execute_script(
            "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
        )
        paper, ink = map(brightness, colours)
        assert (paper > 200 and ink < 100) if scheme == "light" else (paper < 50 and ink > 200)
        pictures[scheme] = page.get_screenshot_as_png()
    assert pictures["light"] != pictures["dark"] and all(
        len(picture) > 20_000 for picture in pictures.values()
    )


def brightness(colour: str) -> float:
    """The mean of the channels of `rgb(r, g, b)`."""
    channels = colour.partition("(")[2].rstrip(")").split(",")[:3]
    return sum(map(float, channels)) / 3


def test_rendering_a_finished_run_again_changes_nothing(
    out: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = out.read("report.html"), out.read("checksums.json")
    assert main(["report", out.url]) == 0
    assert capsys.readouterr().out.strip() == out.at("report.html")
    assert (out.read("report.html"), out.read("checksums.json")) == before


def test_a_report_that_is_gone_is_made_again_and_covered(out: Folder, tmp_path: Path) -> None:
    shutil.copytree(out.url, tmp_path / "out")
    (tmp_path / "out" / "report.html").write_text("spoilt")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["report", str(tmp_path / "out"), "--json"]) == 0
    page = (tmp_path / "out" / "report.html").read_bytes()
    # Its calls name the folder where it lies now; the recipe keeps the place that it was written for.
    here, there = str(tmp_path / "out").encode(), out.url.encode()
    assert page.replace(here, there) == out.read("report.html")
    assert page.count(here) > 1
    assert json.loads(printed.getvalue()) == {
        "report": str(tmp_path / "out" / "report.html"),
        "bytes": len(page),
    }
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_report_that_waited_for_a_purge_shows_what_the_purge_left(
    out: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(out.url, tmp_path / "out")
    copied = Folder(str(tmp_path / "out"))
    purge = [
        "purge",
        copied.url,
        "--where",
        "status = 'kept'",
        "--reason",
        "takedown",
        "--by",
        "me",
        "--apply",
    ]

    def holds_after_a_purge(folder: Folder, what: str, wait_seconds: float) -> AbstractContextManager[Hold]:
        assert main(purge) == 0
        return hold(folder, what, wait_seconds)

    monkeypatch.setattr("pipeline.cli.output.report.hold", holds_after_a_purge)
    assert main(["report", copied.url]) == 0, capsys.readouterr().err
    monkeypatch.undo()
    before = copied.read("report.html")
    assert main(["report", copied.url]) == 0 and copied.read("report.html") == before
    assert main(["verify", copied.url]) == 0


@pytest.mark.parametrize(
    ("first", "second", "marked"),
    [
        ("a b c d e f", "a b c d e f", []),
        ("a b c d e f", "a b X d e f", ["X "]),
        ("a b c d e f", "a b d e f", ["d "]),
        ("a b c d e f", "a b c d X Y e f", ["X Y "]),
        ("a b c d e f", "a b c d e f g h", []),
        ("a b c d e f", "u v w x y z", []),
        ("", "a b", []),
    ],
)
def test_words_that_differ_are_marked(first: str, second: str, marked: list[str]) -> None:
    pieces = compare_words(first, second)
    assert "".join(piece for piece, _ in pieces) == second
    assert [piece for piece, differs in pieces if differs] == marked


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (float("nan"), ""), (50.0, "50"), (1e6, "1,000,000"), (0.123456, "0.1235")],
)
def test_values_are_written_for_people(value: float | None, shown: str) -> None:
    assert human_value(value) == shown
