"""The thresholds of an output on its page: which can be tried, what each would change, and what gives the
ledger that they need."""

from __future__ import annotations

import html
import json
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.page.views.thresholds import (
    DraggableRule,
    draggable_rules,
    ledger_call,
    run_call,
    setting_of,
)
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.processes.served_page import Visitor, served

NUM_LONG, NUM_SHORT = 40, 30


@pytest.fixture(scope="module")
def posts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Posts of which most are long, and thirty have 20 to 49 words; the first ten are there twice."""
    folder = tmp_path_factory.mktemp("thresholds")
    rng = random.Random(8)
    long = [write_article("en", rng, 20).text for _ in range(NUM_LONG)]
    words = [write_article("en", rng, 9).text.split() for _ in range(NUM_SHORT)]
    short = [" ".join(each[: 20 + number % 30]) for number, each in enumerate(words)]
    rows = [
        {"id": str(n), "url": f"https://p.example.org/{n}", "text": t} for n, t in enumerate(long + short)
    ]
    lines = [json.dumps(row) + "\n" for row in [*rows, *rows[:10]]]
    (folder / "posts.jsonl").write_text("".join(lines))
    return folder


def made_of(posts: Path, name: str, **tables: dict[str, object]) -> Folder:
    out = str(posts / name)
    run(posts, recipe(out, {"posts": (str(posts / "posts.jsonl"),)}, **tables))
    return Folder(out)


@pytest.fixture(scope="module")
def first(posts: Path) -> Folder:
    """A run that kept the deciding rule alone."""
    return made_of(posts, "first")


@pytest.fixture(scope="module")
def whole(posts: Path) -> Folder:
    """A run that kept the whole ledger, and its texts."""
    return made_of(posts, "whole", quality={"ledger": "all"}, run={"keep_text": True})


@pytest.fixture(scope="module")
def rules(whole: Folder) -> dict[str, DraggableRule]:
    return {rule.rule: rule for rule in draggable_rules(whole, None)}


@pytest.fixture(scope="module")
def visitor(whole: Folder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    with served(whole.url, state=str(tmp_path_factory.mktemp("state"))) as address:
        yield Visitor(address)


def figures(rule: DraggableRule) -> list[tuple[float, int, int, int]]:
    """(threshold, turned down, surviving, change) of every place of the slider."""
    options = json.loads(rule.options)[rule.first : rule.last + 1]
    return [(float(words.replace(",", "")), *numbers) for words, *numbers in options]


def test_without_the_ledger_the_page_gives_the_call_that_makes_it(first: Folder) -> None:
    with served(first.url) as address:
        visitor = Visitor(address)
        page, front = visitor.get("thresholds").text, visitor.get().text
    told = re.search(r'id="ledger-call">([^<]*)<', page)
    assert told is not None
    call = shlex.split(html.unescape(told[1]))
    assert call[:3] == ["sluice", "run", first.at("recipe.toml")] and "--from" not in call
    assert "how to get it" in front and ">What other thresholds would change</a>" not in front
    assert main(call[1:]) == 0
    made = Folder(f"{first.url}-ledger")
    measured = "SELECT count(*) FROM findings WHERE rule = 'gopher_quality.too_many_hashes'"
    assert query(made, measured).rows[0][0] > NUM_LONG
    assert query(made, "SELECT doc_id, status FROM documents ORDER BY ALL").rows == (
        query(first, "SELECT doc_id, status FROM documents ORDER BY ALL").rows
    )


@pytest.mark.slow
def test_the_calls_keep_out_what_was_purged(posts: Path, first: Folder) -> None:
    purged = Folder(str(posts / "purged one"))
    shutil.copytree(first.url, purged.url)
    [(doc_id,)] = query(purged, "SELECT min(doc_id) FROM documents WHERE status = 'kept'").rows
    assert (
        main(["purge", purged.url, "--doc", str(doc_id), "--by", "tester", "--reason", "a test", "--apply"])
        == 0
    )
    assert main(shlex.split(ledger_call(purged))[1:]) == 0
    left = f"SELECT count(*) FROM documents WHERE doc_id = '{doc_id}' AND status = 'kept'"
    assert query(Folder(f"{purged.url}-ledger"), left).rows == [(0,)]
    assert "purges.honour" in run_call(purged, "quality.min_words=20", "NEW")


def test_a_threshold_can_be_loosened_in_steps_down_to_the_values_that_it_turns_down(
    rules: dict[str, DraggableRule],
) -> None:
    found = figures(rules["gopher_quality.too_few_words"])
    looser = [(threshold, change) for threshold, _, _, change in found if threshold < 50]
    assert len(looser) >= 4 and min(threshold for threshold, _ in looser) <= 22
    assert len({change for _, change in looser}) >= 4, "each step lets more through"
    assert looser[0][1] > 0


def test_the_figures_of_the_slider_are_those_of_the_command(
    whole: Folder, rules: dict[str, DraggableRule], visitor: Visitor
) -> None:
    [(surviving,)] = query(
        whole,
        "SELECT count(*) FROM documents WHERE status <> 'rejected' AND stage IS DISTINCT FROM 'identity'",
    ).rows
    [(repeated,)] = query(whole, "SELECT count(*) FROM documents WHERE stage = 'identity'").rows
    assert repeated == 10
    rule = rules["gopher_quality.too_few_words"]
    now, threshold = rule.now, figures(rule)[-2]
    assert now.num_kept == surviving and now.change == 0
    asked = urlencode({"rule": rule.rule, "threshold": threshold[0]})
    text = visitor.get(f"thresholds/tuned?{asked}").text
    said = re.search(r"<b>([\d,]+)</b> documents survive the filters now[^,]*, <b>([\d,]+)</b> then", text)
    assert said is not None
    assert [int(num.replace(",", "")) for num in said.groups()] == [surviving, threshold[2]]
    bars = visitor.get("thresholds/bars").text
    assert f"{surviving} survive the filters (0)" in bars


def test_any_value_is_tried_by_a_form_and_all_that_it_changes_goes_into_the_basket(visitor: Visitor) -> None:
    bars = visitor.get("thresholds/bars").text
    assert re.search(r'<input type="number" name="threshold" step="any" required value="50"', bars)
    text = visitor.get("thresholds/tuned?rule=gopher_quality.too_few_words&threshold=9999").text
    assert re.search(r"sluice run \S+ --from \S+ --set run.output=NEW --set quality.min_words=9999<", text)
    lost = re.search(r"<h4>(\d+) lost</h4>", text)
    assert lost is not None and int(lost[1]) > 10
    assert f"<summary>{int(lost[1]) - 10} more</summary>" in text
    keys = re.findall(r'document/[0-9a-f]{32}\?list=([0-9a-f]+)"', text)
    assert len(keys) == int(lost[1]) and f"Put these {lost[1]} into the basket" in text
    assert f'name="value" value="{keys[0]}"' in text
    basket = visitor.post("basket", act="put", kind="list", value=keys[0]).text
    assert f"{lost[1]} items" in basket
    tuned = visitor.get("thresholds/tuned?rule=gopher_quality.too_few_words&threshold=9999").text
    assert "Take these out" in tuned


def test_an_axis_of_shares_ends_at_0_and_1(rules: dict[str, DraggableRule]) -> None:
    assert {"language.low_score", "gopher_quality.too_many_bullet_lines"} <= set(rules)
    for rule in rules.values():
        ends = [float(n) for bar in rule.bars for n in re.findall(r"-?[\d.]+", bar.label.replace(",", ""))]
        assert min(ends) >= 0 and not any(bar.label == "under 0" for bar in rule.bars), rule.rule
        if "bullet" in rule.rule or "duplicate" in rule.rule or rule.rule == "language.low_score":
            assert max(ends) <= 1, rule.rule
    bullets = rules["gopher_quality.too_many_bullet_lines"]
    assert bullets.bars[0].label == "0" and bullets.bars[0].num > NUM_LONG


@pytest.mark.parametrize("threshold", ["", "many", "nan", "inf", "-inf"])
def test_what_is_no_number_is_refused(whole: Folder, threshold: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        setting_of(whole, "gopher_quality.too_few_words", threshold)
    assert setting_of(whole, "gopher_quality.too_few_words", "1,200") == "quality.min_words=1200"
