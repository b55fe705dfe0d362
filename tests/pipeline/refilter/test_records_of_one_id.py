"""Rows of a table that share their id and their text, and whose URLs differ: one is turned down by its host, or is
edited by the phone formats of another country. Each keeps what is its own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.inspect.tune import tune
from pipeline.recipe.load import recipe_of
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, run

PHONES = "Write to jane.doe@mailbox.example, call 030 901820, 030 901821 or 01 42 68 53 00."
URLS = {
    "blocked": ["https://blocked.example.com/1", "https://b.example.fr/2"],
    "phones": ["https://a.example.de/1", "https://b.example.fr/3"],
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The recipe of a finished output with texts and the whole ledger."""
    folder = tmp_path_factory.mktemp("one-id")
    rows = [
        {
            "id": name,
            "text": f"{write_article('en', random.Random(len(name)), 10).text}\n{PHONES}",
            "url": url,
        }
        for name, urls in URLS.items()
        for url in urls
    ]
    (folder / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "hosts.txt").write_text("blocked.example.com\n")
    made = recipe(
        str(folder / "out"),
        {"posts": (str(folder / "posts.jsonl"),)},
        run={"keep_text": True},
        url={"block_hosts": [str(folder / "hosts.txt")]},
        quality={"ledger": "all", "rules": ["gopher_quality"]},
    )
    made["source"][0] |= {"id_field": "id", "url_field": "url"}
    run(folder, made)
    return made


def test_the_edits_of_a_text_are_those_of_the_record_that_is_kept(plain: dict[str, Any]) -> None:
    out = Folder(plain["run"]["output"])
    edits = query(out, "SELECT d.url, e.kind, e.count FROM edits e JOIN documents d USING (doc_id)"
                  " WHERE d.status = 'kept' ORDER BY ALL").rows  # fmt: skip
    assert edits == [
        ("https://a.example.de/1", "email", 1),
        ("https://a.example.de/1", "phone", 2),
        ("https://b.example.fr/2", "email", 1),
        ("https://b.example.fr/2", "phone", 1),
    ]


def test_the_trace_of_a_kept_record_holds_no_rejection(
    plain: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    out = plain["run"]["output"]
    [(doc_id,)] = query(Folder(out), "SELECT doc_id FROM documents WHERE rule = 'url.blocked_host'").rows
    assert main(["trace", out, "--doc", str(doc_id), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["url"]) == ("kept", "https://b.example.fr/2")
    assert {decision["verdict"] for decision in told["decisions"]} == {"keep", "edit"}


def test_the_same_thresholds_lose_nothing(plain: dict[str, Any]) -> None:
    out = plain["run"]["output"]
    [answer] = tune(out, [("same", recipe_of(Folder(out)))])
    assert (answer.total.before, answer.total.lost, answer.total.gained) == (2, 0, 0)


@pytest.mark.parametrize(
    "change",
    [{"dedup": {"threshold": 0.9}}, {"quality": {"min_words": 20}}],
    ids=["only what counts as a duplicate", "a threshold"],
)
def test_a_run_from_the_texts_equals_one_from_the_inputs(
    plain: dict[str, Any], change: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    def changed(out: str) -> dict[str, Any]:
        tables = {name: {**plain.get(name, {}), **table} for name, table in change.items()}
        return {**plain, **tables, "run": {**plain["run"], "output": str(tmp_path / out)}}

    run(tmp_path / "a", changed("here"), plain["run"]["output"])
    run(tmp_path / "b", changed("there"))
    assert fingerprint(str(tmp_path / "here")) == fingerprint(str(tmp_path / "there"))
