"""A document of an output explained again from its crawl file: every format, rejections, dropped
languages."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.demo.pages import Article, render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from pipeline.inspect.explain.explanation import agrees, explain, with_whole_ledger
from pipeline.inspect.explain.refetch import RefetchError, refetch
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.phases.steps import step_tables
from pipeline.recipe.load import recipe_of
from stages.chain import build_chain
from tests.support.inputs.make_warc import good, member
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe

Answer = Callable[..., tuple[int, str, str]]


def pages_of(articles: list[Article], host: str, rng: random.Random) -> list[DemoPage]:
    return [
        DemoPage(url=f"https://{host}/stories/{number}", html=render_page(article, host, rng))
        for number, article in enumerate(articles)
    ]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run with a prefilter over WARC files whose names end alike, JSONL rows without ids, and a Parquet
    file."""
    folder, rng = tmp_path_factory.mktemp("refetch"), random.Random(3)
    english = [write_article("en", rng) for _ in range(6)]
    deep = folder / "crawl" / "deep"
    deep.mkdir(parents=True)
    first = [*english, english[1], write_article("en", rng, 2)]
    write_source(folder / "crawl", "web", pages_of(first, "www.tales.example", rng), 1, rng)
    write_source(
        deep, "web", pages_of([write_article("it", rng) for _ in range(4)], "racconti.example", rng), 1, rng
    )
    texts = [write_article("en", rng).text for _ in range(4)] + ["Too few words.", english[0].text]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "posts.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(
        pa.table({"text": texts[2:], "url": [f"https://rows.example/{n}" for n in range(4)]}),
        folder / "rows.parquet",
    )
    sources = {
        "web": (str(folder / "crawl" / "**" / "*.warc.gz"),),
        "posts": (str(folder / "posts.jsonl.gz"),),
    }
    sources["rows"] = (str(folder / "rows.parquet"),)
    run(folder, recipe(str(folder / "out"), sources, language={"keep": ["en"], "prefilter": True}))
    return Folder(str(folder / "out"))


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    """Calls the command line in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def ask(out: Folder, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(out, sql).rows]


def one_url(out: Folder, where: str) -> str:
    [(url,)] = ask(out, f"SELECT min(url) FROM documents WHERE {where}")
    return str(url)


def test_every_document_is_found_again_and_the_steps_decide_as_they_did(out: Folder) -> None:
    settings, tracer = recipe_of(out), make_tracer(out.url)
    tables = with_whole_ledger(step_tables(settings))
    ends: Counter[str] = Counter()
    for (doc_id,) in ask(out, "SELECT doc_id FROM documents"):
        history = tracer.by_id(bytes.fromhex(doc_id))
        found = refetch(out, settings, history)
        assert found.document.doc_id == history.doc_id and found.source.name == history.row.source
        explanation = explain(found.document, build_chain(found.source.steps, tables))
        assert agrees(explanation, history.row), history.row
        ends[history.row.rule or history.row.status] += 1
    assert ends["prefilter.language"] == 4 and ends["kept"] >= 8
    assert ends["dedup.exact"] >= 2 and ends["gopher_quality.too_few_words"] >= 2


def test_a_page_of_a_language_that_the_prefilter_dropped_goes_through_every_step(
    out: Folder, answer: Answer
) -> None:
    url = one_url(out, "host = 'racconti.example'")
    code, said, _ = answer("explain", out.url, "--url", url.replace("https://", "HTTP://"), "--json")
    told = json.loads(said)
    steps = {step["stage"]: step for step in told["steps"]}
    assert code == 0 and told["status"] == "rejected" and told["verdict"]["rule"] == "prefilter.language"
    assert steps["prefilter"]["judged_language"] == "it" and len(steps["prefilter"]["judged_text"]) > 100
    assert len(steps["parse"]["text"]) > 100 and told["language"] == "it"
    assert {finding["rule"] for finding in steps["quality"]["findings"]} >= {"gopher_quality.too_few_words"}
    assert told["recorded"] == {
        "status": "rejected",
        "stage": "prefilter",
        "rule": "prefilter.language",
        "value": told["verdict"]["value"],
        "threshold": 0.05,
        "duplicate_of": None,
        "similarity": None,
        "agrees": True,
    }
    code, said, _ = answer("explain", out.url, "--url", url)
    assert code == 0 and "what it looked at, likeliest in it" in said


def test_what_a_prefilter_saw_stands_in_the_lineage_and_no_text_does(out: Folder) -> None:
    found = ask(
        out, "SELECT DISTINCT language, num_chars, text_hash FROM documents WHERE stage = 'prefilter'"
    )
    assert found == [("it", 0, None)]


def test_a_duplicate_is_told_with_what_it_repeats(out: Folder, answer: Answer) -> None:
    [(doc_id, of)] = ask(out, "SELECT doc_id, duplicate_of FROM documents WHERE rule = 'dedup.exact' LIMIT 1")
    code, said, _ = answer("explain", out.url, "--doc", doc_id)
    assert code == 0 and f"repeats {of}" in said.replace("\n", " ") and "decide otherwise" not in said


def test_another_threshold_is_tried_on_a_recorded_document(out: Folder, answer: Answer) -> None:
    [(doc_id,)] = ask(out, "SELECT min(doc_id) FROM documents WHERE status = 'kept' AND source = 'posts'")
    code, said, _ = answer("explain", out.url, "--doc", doc_id, "--set", "quality.min_words=100000", "--json")
    told = json.loads(said)
    assert code == 0 and told["verdict"]["rule"] == "gopher_quality.too_few_words"
    assert told["recorded"]["status"] == "kept" and told["recorded"]["agrees"] is False
    code, said, _ = answer("explain", out.url, "--doc", doc_id, "--set", "quality.min_words=100000")
    assert "The steps above decide otherwise" in said


def test_a_purged_document_is_not_shown(out: Folder, answer: Answer, tmp_path: Path) -> None:
    copy = str(tmp_path / "out")
    shutil.copytree(out.url, copy)
    url = one_url(out, "host = 'racconti.example'")
    assert answer("purge", copy, "--url", url, "--reason", "asked", "--by", "me", "--apply")[0] == 0
    code, said, complaint = answer("explain", copy, "--url", url)
    assert (code, said) == (1, "") and "was purged" in complaint


def test_a_crawl_file_that_moved_is_named_and_one_that_changed_is_refused(
    out: Folder, tmp_path: Path
) -> None:
    settings, tracer = recipe_of(out), make_tracer(out.url)
    [history] = tracer.by_url(one_url(out, "host = 'www.tales.example' AND status = 'kept'"))
    [(file,)] = ask(out, "SELECT file FROM inputs WHERE source = 'web' AND NOT contains(file, 'deep')")
    moved = shutil.copy(file, tmp_path / "moved.warc.gz")
    assert refetch(out, settings, history, str(moved)).document.doc_id == history.doc_id
    data = bytearray(Path(moved).read_bytes())
    data[history.row.warc_offset : history.row.warc_offset + 40] = bytes(40)
    Path(moved).write_bytes(data)
    with pytest.raises(RefetchError, match="does not hold document"):
        refetch(out, settings, history, str(moved))
    with pytest.raises(RefetchError, match=r"--warc FILE says where it lies now"):
        refetch(out, settings, history, str(tmp_path / "gone.warc.gz"))


def test_records_that_share_a_compressed_member_are_each_found_again(tmp_path: Path, answer: Answer) -> None:
    names = ("one", "two", "three")
    (tmp_path / "whole.warc.gz").write_bytes(member(b"".join(map(good, names))))
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "whole.warc.gz"),)})
    plain["source"][0]["steps"] = ["url", "parse", "identity"]
    run(tmp_path, plain)
    for name in names:
        code, said, complaint = answer(
            "explain", str(tmp_path / "out"), "--url", f"https://example.org/{name}", "--json"
        )
        assert code == 0, complaint
        assert f"The keeper of {name} wrote" in json.loads(said)["text"]
    copying = ("--format", "warc", "--to", str(tmp_path / "copy"), "--address", "none")
    code, _, complaint = answer("export", str(tmp_path / "out"), *copying)
    assert code == 1 and "lies behind other records in one compressed member" in complaint


def test_a_source_says_how_a_file_of_any_name_is_read(tmp_path: Path, answer: Answer) -> None:
    (tmp_path / "posts.warc").write_text(json.dumps({"text": "A few words of a post."}) + "\n")
    plain = recipe(str(tmp_path / "out"), {"posts": (str(tmp_path / "posts.warc"),)})
    plain["source"][0]["format"] = "jsonl"
    path = write_recipe(tmp_path / "recipe.toml", plain)
    code, said, complaint = answer(
        "explain", str(path), "--warc", str(tmp_path / "posts.warc"), "--offset", "0", "--json"
    )
    assert code == 0, complaint
    assert json.loads(said)["text"] == "A few words of a post."


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("https://www.tales.example/stories/77", "https://www.tales.example/stories/7"),
        ("tales.example/stories/3", "https://www.tales.example/stories/3"),
        ("http://www.tales.example/storys/5", "https://www.tales.example/stories/5"),
    ],
)
def test_the_nearest_urls_are_named_where_none_is_equal(
    out: Folder, answer: Answer, asked: str, nearest: str
) -> None:
    for command in ("trace", "explain"):
        code, said, complaint = answer(command, out.url, "--url", asked)
        assert (code, said) == (1, "") and f"; nearest: {nearest}" in complaint


def test_a_url_of_a_host_without_documents_says_so(out: Folder, answer: Answer) -> None:
    code, _, complaint = answer("trace", out.url, "--url", "https://nowhere.example/a'b\udcff")
    assert code == 1 and "its host nowhere.example has no document" in complaint


def test_trace_shows_the_score_of_a_language_that_passed(out: Folder, answer: Answer) -> None:
    doc_id, score = ask(out, "SELECT doc_id, language_score FROM documents WHERE status = 'kept' ORDER BY 1")[
        0
    ]
    told = json.loads(answer("trace", out.url, "--doc", doc_id, "--json")[1])
    [language] = [decision for decision in told["decisions"] if decision["stage"] == "language"]
    assert (language["verdict"], language["value"]) == ("keep", score)
    assert f"passed: its score is {score:,.4g}" in answer("trace", out.url, "--doc", doc_id)[1]


@pytest.mark.parametrize("command", ["explain", "trace", "purge"])
def test_a_name_that_is_no_document_id_is_told_with_where_a_records_own_id_stands(
    out: Folder, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--reason", "asked for", "--by", "me"] if command == "purge" else []
    assert main([command, out.url, "--doc", "post-7", *more]) == 2
    complaint = capsys.readouterr().err
    assert "--doc: 'post-7' is not an id: expected 32 hexadecimal digits" in complaint
    assert "SELECT doc_id FROM documents WHERE record_id = " in complaint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["OUT"], "--doc ID or --url URL"),
        (
            ["OUT", "--doc", "0" * 32, "--file", "page.html"],
            "--file, --text, --offset, --row and --element go with a RECIPE",
        ),
        (["recipes/crawl.toml", "--doc", "0" * 32], "--doc goes with an output"),
        (
            ["recipes/crawl.toml", "--warc", "a.warc", "--offset", "0", "--url", "https://a.org/"],
            "--url goes with a --file of HTML and with --text",
        ),
        (
            ["recipes/crawl.toml", "--text", "a.txt", "--offset", "0"],
            "--offset and --row go with --warc and --file",
        ),
        (["recipes/crawl.toml", "--file", "a", "--offset", "0", "--row", "0"], "expected one of them"),
        (
            ["recipes/crawl.toml", "--file", "a.html", "--element", "0"],
            "--element goes with --offset or --row",
        ),
        (["recipes/crawl.toml", "--warc", "a.warc"], "--warc needs --offset N"),
        (
            ["nowhere/out", "--url", "https://example.org/"],
            "--url goes with an output, and nowhere/out is no folder",
        ),
        (["recipes/crawl.toml"], "expected --file HTML, --text FILE, --file JSONL --offset N"),
    ],
)
def test_a_call_that_mixes_recipe_and_output_is_told_what_was_expected(
    out: Folder, answer: Answer, words: list[str], said: str
) -> None:
    code, _, complaint = answer("explain", *[out.url if word == "OUT" else word for word in words])
    assert code == 2 and said in complaint
