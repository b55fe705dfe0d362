"""What parsed texts cannot serve is said in a sentence before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lineage.index.output_index import NotFinishedError
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.lineage_query import query
from tests.support.outputs.parsed_texts import Tables, recipe
from tests.support.outputs.runs import run

REFUSED: dict[str, tuple[Tables, str]] = {
    "parse": (
        {"parse": {"extractor": "trafilatura"}},
        r"the step parse .* \(parse\.extractor is 'trafilatura' now",
    ),
    "reading": (
        {"limits": {"max_document_bytes": 99_999}},
        r"the reading .* \(limits\.max_document_bytes is 99999 now",
    ),
    "prefilter": ({"language": {"prefilter": True}}, r"the step prefilter .* \(in its place was parse\)"),
    "ledger": ({"quality": {"ledger": "all"}}, r'quality\.ledger = "all", and .* was made with "first"'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_came_before_the_parsed_texts_cannot_be_changed(
    what: str, crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    tables, said = REFUSED[what]
    with pytest.raises(RecipeError, match=said):
        run(tmp_path, recipe(crawl, str(tmp_path / "out"), tables), earlier["plain"])
    assert not (tmp_path / "out").exists()


def test_a_file_of_an_early_step_that_changed_is_named(crawl: Path, tmp_path: Path) -> None:
    hosts, first = tmp_path / "hosts.txt", str(tmp_path / "first")
    hosts.write_text("blocked.example.com\n")
    tables: Tables = {"url": {"block_hosts": [str(hosts)]}}
    run(tmp_path / "a", recipe(crawl, first, tables))
    hosts.write_text("blocked.example.com\nanother.example.com\n")
    with pytest.raises(RecipeError, match=r"the step url .*a file that it names has another content"):
        run(tmp_path / "b", recipe(crawl, str(tmp_path / "out"), tables), first)


def test_other_versions_of_what_a_step_runs_on_are_named(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(earlier["plain"], older)
    summary = json.loads((older / "run.json").read_text())
    summary["identity"]["versions"] |= {"resiliparse": "0.0.1", "phonenumbers": "0.0.1"}
    (older / "run.json").write_text(json.dumps(summary))
    with pytest.raises(
        RecipeError, match=r"the reading of source 'web' .*resiliparse is \S+ now and was 0\.0\.1"
    ):
        run(tmp_path, recipe(crawl, str(tmp_path / "out")), str(older))
    summary["identity"]["versions"]["resiliparse"] = query_version("resiliparse")
    (older / "run.json").write_text(json.dumps(summary))
    run(tmp_path, recipe(crawl, str(tmp_path / "out")), str(older))
    reused = query(Folder(str(tmp_path / "out")), "SELECT DISTINCT stage FROM reused_steps ORDER BY 1").rows
    assert reused == [("language",), ("parse",), ("quality",), ("url",)], "phonenumbers are what pii runs on"


def query_version(library: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(library)


def test_the_release_of_what_decides_block_words_counts_for_url(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(earlier["plain"], older)
    summary = json.loads((older / "run.json").read_text())
    summary["identity"]["versions"]["regex"] = "0.0.1"
    (older / "run.json").write_text(json.dumps(summary))
    with pytest.raises(RecipeError, match=r"the step url .*regex is \S+ now and was 0\.0\.1"):
        run(tmp_path, recipe(crawl, str(tmp_path / "out")), str(older))


def test_an_output_that_keeps_no_texts_is_refused(crawl: Path, tmp_path: Path) -> None:
    first = str(tmp_path / "first")
    run(tmp_path / "a", recipe(crawl, first, {"run": {"keep_text": False}}))
    assert not (tmp_path / "first" / "texts").exists()
    with pytest.raises(RecipeError, match=r"made without run\.keep_text"):
        run(tmp_path / "b", recipe(crawl, str(tmp_path / "out")), first)


def test_an_output_whose_run_is_not_finished_is_refused(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(earlier["plain"], tmp_path / "first")
    (tmp_path / "first" / "index.json").unlink()
    with pytest.raises(NotFinishedError, match="the run is not finished"):
        run(tmp_path, recipe(crawl, str(tmp_path / "out")), str(tmp_path / "first"))


def test_a_source_that_the_earlier_run_did_not_have_is_named(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    plain = recipe(crawl, str(tmp_path / "out"))
    plain["source"][0]["name"] = "another"
    with pytest.raises(RecipeError, match=r"source\.name = 'another'.*has no such source, only web, posts"):
        run(tmp_path, plain, earlier["plain"])


def test_a_step_of_ones_own_behind_parse_is_refused_where_it_would_run(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    plain = recipe(crawl, str(tmp_path / "out"))
    for source in plain["source"]:
        source["steps"] = [
            "url",
            "parse",
            "language",
            "tests.support.steps.dying_steps:die_once",
            "quality",
            "pii",
        ]
    with pytest.raises(RecipeError, match="stands after parse and may look at the page"):
        run(tmp_path, plain, earlier["plain"])


def test_a_finished_run_from_parsed_texts_is_not_continued_without_them(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    plain = recipe(crawl, str(tmp_path / "out"))
    run(tmp_path, plain, earlier["plain"])
    before = run(tmp_path, plain, earlier["plain"])
    assert before["num_kept"], "the same call again finds it finished"
    with pytest.raises(RecipeError, match=r"outputs: --from .* is gone"):
        run(tmp_path, plain)


def test_the_output_itself_is_no_source(crawl: Path, earlier: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(earlier["plain"])
    for output in (earlier["plain"], str(tmp_path / "link")):
        with pytest.raises(RecipeError, match=r"is run\.output itself"):
            run(tmp_path, recipe(crawl, output), earlier["plain"])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "texts": lambda out: cut(next(out.glob("texts/web/*.parquet"))),
    "facts": lambda out: cut(next(out.glob("texts/facts/web/*.zip"))),
    "texts.json": lambda out: cut(out / "texts" / "texts.json"),
}


def cut(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_named_by_the_run_and_by_verify(
    what: str, crawl: Path, earlier: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    shutil.copytree(earlier["plain"], first)
    DAMAGE[what](first)
    with pytest.raises(Exception, match="damaged"):
        run(tmp_path, recipe(crawl, str(tmp_path / "out")), str(first))
    assert main(["verify", str(first)]) == 1
    assert "texts/" in capfd.readouterr().out
