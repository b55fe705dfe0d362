"""A run with [dedup.inside] publishes texts without their repeats, and everything that reads it knows of the cuts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from tests.pipeline.dedup.inside.test_look_inside import prose
from tests.support.outputs import runs
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint

INSIDE = {"method": "substring", "min_bytes": 64, "min_chars": 80}


def write_pages(folder: Path) -> dict[str, str]:
    """Pages of two files, by URL: most hold a passage that others hold too, some nothing else, and some stand twice."""
    chosen = random.Random(11)
    shared = [prose(chosen, 25) for _ in range(4)]
    pages = {}
    for number in range(40):
        own = prose(chosen, 60)
        parts = [own, chosen.choice(shared), prose(chosen, 30)] if number % 8 else [chosen.choice(shared)] * 2
        pages[f"https://example.org/{number}"] = "\n".join(parts)
        if number % 11 == 3:
            pages[f"https://example.org/copy-{number}"] = "\n".join(parts)
    folder.mkdir()
    for file in range(2):
        lines = [
            json.dumps({"url": url, "text": text})
            for n, (url, text) in enumerate(pages.items())
            if n % 2 == file
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    return pages


def recipe(out: Path, folder: Path, inside: dict[str, Any], **tables: dict[str, Any]) -> dict[str, Any]:
    plain = runs.recipe(str(out), {"web": (str(folder / "*.jsonl"),)}, dedup={"inside": inside}, **tables)
    plain["source"][0]["steps"] = ["url", "parse", "pii", "dedup.url", "dedup.exact", "dedup.near"]
    del plain["language"]
    return plain


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pages`, and outputs of them: `plain` and `cut`."""
    folder = tmp_path_factory.mktemp("inside")
    write_pages(folder / "pages")
    for name, inside in (("plain", {}), ("cut", INSIDE)):
        runs.run(
            folder / f"of-{name}", recipe(folder / name, folder / "pages", inside, run={"keep_text": True})
        )
    return folder


def rows(out: Path, sql: str) -> list[dict[str, Any]]:
    found = query(Folder(str(out)), sql)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def documents(out: Path) -> dict[str, dict[str, Any]]:
    return {row["url"]: row for row in rows(out, "SELECT * FROM documents")}


def test_the_output_holds_and_its_numbers_are_those_of_the_texts_that_are_left(made: Path) -> None:
    before, after = documents(made / "plain"), documents(made / "cut")
    assert not verify(Folder(str(made / "cut")), verify_hooks(Folder(str(made / "cut")))).problems
    cut = {
        row["doc_id"]: row
        for row in rows(made / "cut", "SELECT doc_id, sum(count) gone FROM edits GROUP BY 1")
    }
    assert len(cut) > 10
    for url, row in after.items():
        if row["doc_id"] in cut:
            assert row["num_chars"] == before[url]["num_chars"] - cut[row["doc_id"]]["gone"]
            assert row["clean_hash"] != before[url]["clean_hash"]
            assert row["num_tokens"] < before[url]["num_tokens"]
        else:
            assert row["clean_hash"] == before[url]["clean_hash"]
    rejected = [row for row in after.values() if row["status"] == "rejected"]
    assert {row["rule"] for row in rejected} == {"dedup.inside.min_chars"}
    assert all(row["stage"] == "dedup.inside" and row["value"] < row["threshold"] == 80 for row in rejected)
    summary = runs.summary_of(str(made / "cut"))
    assert summary["inside"]["num_documents"] == len(cut)
    assert (
        summary["inside"]["num_rejected"]
        == len(rejected)
        == summary["rejected"]["dedup.inside"]["dedup.inside.min_chars"]
    )
    (step,) = rows(made / "cut", "SELECT * FROM steps WHERE stage = 'dedup.inside'")
    assert (step["num_rejected"], step["num_out"]) == (len(rejected), summary["num_kept"])


def test_without_it_nothing_is_there_of_it(made: Path) -> None:
    assert "twin" not in query(Folder(str(made / "plain")), "SELECT * FROM edits").columns
    assert not rows(made / "plain", "SELECT * FROM steps WHERE stage = 'dedup.inside'")
    assert "inside" not in runs.summary_of(str(made / "plain"))


def test_trace_names_the_document_in_which_a_cut_stays(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows(made / "cut", "SELECT * FROM edits WHERE twin IS NOT NULL ORDER BY doc_id, start")[0]
    assert main(["trace", str(made / "cut"), "--doc", row["doc_id"], "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    edit = next(one for one in decisions if one["stage"] == "dedup.inside")
    assert (edit["verdict"], edit["rule"], edit["value"]) == ("edit", "substring", row["count"])
    assert edit["matched"] == f"{row['twin']}:{row['twin_start']}"


def test_a_run_from_parsed_texts_cuts_the_same(made: Path, tmp_path: Path) -> None:
    again = recipe(tmp_path / "again", made / "pages", INSIDE)
    runs.run(tmp_path / "of-again", again, from_output=str(made / "cut"))
    whole, there = fingerprint(str(made / "cut")), fingerprint(str(tmp_path / "again"))
    differing = {name for name in whole.keys() | there.keys() if whole.get(name) != there.get(name)}
    assert differing <= {"lineage/reused_steps"}


def test_a_purge_says_which_texts_relied_on_what_goes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs.run(tmp_path / "of", recipe(out, made / "pages", INSIDE))
    sql = (
        "SELECT twin, count(DISTINCT doc_id) num FROM edits WHERE twin <> doc_id GROUP BY 1 ORDER BY num DESC"
    )
    row = rows(out, sql)[0]
    call = ["purge", str(out), "--doc", row["twin"], "--reason", "asked", "--by", "test"]
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_relying"] == row["num"]
    assert main([*call, "--apply"]) == 0
    assert f"{row['num']} document" in (said := capsys.readouterr().out) and "does not come back" in said
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ({"method": "suffix"}, "dedup.inside.method"),
        ({"method": "substring", "min_bytes": 3}, "dedup.inside.min_bytes"),
        ({"method": "line", "share": 0}, "dedup.inside.share"),
        ({"methods": "line"}, "dedup.inside.methods"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    inside: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs.write_recipe(tmp_path / "r.toml", recipe(tmp_path / "out", tmp_path, inside))
    assert main(["run", str(path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_tasks_on_ray_write_the_same_output(made: Path, tmp_path: Path, small_ray: None) -> None:
    plain = recipe(tmp_path / "ray", made / "pages", INSIDE, run={"keep_text": True}, ray=runs.ON_RAY)
    plain["dedup"]["engine"] = "ray_data"
    runs.run(tmp_path / "of", plain)
    assert fingerprint(str(tmp_path / "ray")) == fingerprint(str(made / "cut"))
