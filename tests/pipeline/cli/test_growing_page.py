"""docs/growing.md, command by command: three small crawls of which each repeats some of those before."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from lineage.storage.folder import Folder
from pipeline.demo.pages import Article, drop_words, render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from tests.support.checkout import ROOT
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, write_recipe

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "growing.md").read_text(encoding="utf-8")
ASKED = "https://one.example.com/3"
"""The page that is taken down once all has grown; the second crawl holds its text too, under another URL."""
GONE = "https://one.example.com/7"
"""The page that is purged from the first output before the second crawl, which holds it again."""


@dataclass(slots=True)
class Grown:
    """The folder in which the page's commands were run, what each printed, and what the outputs held before
    the last purges."""

    folder: Path
    articles: list[Article]
    printed: dict[str, str] = field(default_factory=dict)
    first_before: dict[str, str] = field(default_factory=dict)
    second_before: dict[str, Any] = field(default_factory=dict)

    def out(self, name: str) -> Path:
        return self.folder / "data" / name

    def ask(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in query(Folder(str(self.out(name))), sql).rows]

    def call(self, words: list[str], code: int = 0) -> str:
        """A call as a user makes it; what it printed."""
        ended = subprocess.run(
            [sys.executable, "-m", "pipeline", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ended.returncode == code, f"{words}: {ended.stdout[-2000:]}{ended.stderr[-3000:]}"
        return ended.stdout + ended.stderr


def page_calls() -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r" *\\\n *", " ", block).splitlines()]
    assert lines
    assert all(line.startswith("sluice ") for line in lines)
    return lines


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    folder = tmp_path_factory.mktemp("growing")
    rng = random.Random(0)
    articles = [write_article("en", rng) for _ in range(60)]
    world = Grown(folder=folder, articles=articles)
    _write_crawls(folder, articles, rng)
    _write_recipes(folder)
    world.call(["run", "recipes/crawl.toml", "--set", f"run.output={world.out('out')}"])
    takedown = ["--reason", "takedown", "--by", "you", "--apply"]
    world.call(["purge", str(world.out("out")), "--url", GONE, *takedown])
    asked = world.ask("out", f"SELECT doc_id FROM documents WHERE url = '{ASKED}'")[0][0]
    (folder / "takedown.csv").write_text(f"url\n{ASKED}\nhttps://two.example.com/new-48\n")
    world.first_before = fingerprint(str(world.out("out")))
    for line in page_calls():
        if line.startswith("sluice purge") and not world.second_before:
            world.second_before = {"first": fingerprint(str(world.out("out")))}
        real = line.replace("/data/", f"{folder}/data/").replace("'ID'", f"'{asked}'")
        world.printed[line] = world.call(shlex.split(real)[1:])
    yield world


def _write_crawls(folder: Path, articles: list[Article], rng: random.Random) -> None:
    """40 pages; then 10 of these anew: some with their URL, some under another, one nearly; and 8 of
    neither."""
    near = replace(articles[5], paragraphs=drop_words(articles[5].paragraphs, rng, 3))
    one = [(f"https://one.example.com/{number}", article) for number, article in enumerate(articles[:40])]
    two = [
        ("https://one.example.com/0", articles[0]),
        ("https://one.example.com/1", articles[40]),  # another text by now
        ("https://two.example.com/copy", articles[2]),
        ("https://two.example.com/asked", articles[3]),
        ("https://two.example.com/near", near),
        (GONE, articles[7]),
        ("https://two.example.com/gone", articles[7]),
        *((f"https://two.example.com/new-{number}", articles[number]) for number in range(41, 49)),
    ]
    three = [
        ("https://three.example.com/first", articles[4]),
        ("https://three.example.com/second", articles[42]),
        ("https://three.example.com/gone", articles[7]),
        *((f"https://three.example.com/new-{number}", articles[number]) for number in range(49, 55)),
    ]
    for name, pages in (("crawl", one), ("crawl-2", two), ("crawl-3", three)):
        at = folder / "data" / name
        at.mkdir(parents=True)
        rendered = [
            DemoPage(url=url, html=render_page(article, "example.com", rng)) for url, article in pages
        ]
        write_source(at, name, rendered, 2, rng)


def _write_recipes(folder: Path) -> None:
    (folder / "recipes").mkdir()
    plain = recipe("out", {"cc": (str(folder / "data" / "crawl" / "*.warc.gz"),)})
    write_recipe(folder / "recipes" / "crawl.toml", plain)
    train = {
        "data": "out",
        "output": "trained",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 2,
        "steps": 2,
    }
    (folder / "recipes" / "train.toml").write_text(tomli_w.dumps({"run": {"name": "one"}, "train": train}))


def test_nothing_of_the_first_crawl_is_kept_again(grown: Grown) -> None:
    kept = {url for (url,) in grown.ask("out-2", "SELECT url FROM documents WHERE status = 'kept'")}
    assert kept == {f"https://two.example.com/new-{number}" for number in range(41, 49)}
    dropped = dict(grown.ask("out-2", "SELECT url, stage FROM documents WHERE status = 'duplicate'"))
    assert dropped == {
        "https://one.example.com/0": "dedup.url",
        "https://one.example.com/1": "dedup.url",
        "https://two.example.com/copy": "dedup.exact",
        "https://two.example.com/asked": "dedup.exact",
        "https://two.example.com/near": "dedup.near",
    }
    first = {doc_id for (doc_id,) in grown.ask("out", "SELECT doc_id FROM documents WHERE status = 'kept'")}
    assert {
        of for (of,) in grown.ask("out-2", "SELECT duplicate_of FROM documents WHERE status = 'duplicate'")
    } <= first


def test_what_was_purged_from_the_first_output_stays_out_of_the_later_ones(grown: Grown) -> None:
    for name, urls in (
        ("out-2", {GONE, "https://two.example.com/gone"}),
        ("out-3", {"https://three.example.com/gone"}),
    ):
        found = grown.ask(name, "SELECT url, rule FROM documents WHERE rule = 'purged'")
        assert {url for url, _ in found} == urls


def test_a_third_crawl_is_compared_with_both(grown: Grown) -> None:
    dropped = {url for (url,) in grown.ask("out-3", "SELECT url FROM documents WHERE status = 'duplicate'")}
    assert dropped == {"https://three.example.com/first", "https://three.example.com/second"}


def test_the_runs_change_no_byte_of_the_first_output(grown: Grown) -> None:
    assert grown.first_before == grown.second_before["first"]


def test_the_training_reads_the_sources_of_both(grown: Grown) -> None:
    weights = grown.ask("out", "SELECT weights FROM training_segments WHERE run = 'grown'")[0][0]
    assert "first-cc" in str(weights)
    assert "second-cc" in str(weights)


def test_the_purges_leave_the_text_in_neither_output(grown: Grown) -> None:
    state = dict(grown.ask("out-2", "SELECT url, purged IS NOT NULL FROM documents WHERE url LIKE '%asked'"))
    assert state == {"https://two.example.com/asked": True}
    sentence = grown.articles[3].paragraphs[0][:60]
    for name in ("out", "out-2"):
        import pyarrow.parquet as pq

        texts = [
            text
            for part in (grown.out(name) / "documents").rglob("*.parquet")
            for text in pq.read_table(part)["text"].to_pylist()
        ]
        assert texts
        assert not [text for text in texts if text and sentence in text]


def test_the_same_call_after_a_purge_of_the_first_is_refused_by_its_name(grown: Grown) -> None:
    first = next(line for line in page_calls() if "run.output=/data/out-2" in line)
    words = shlex.split(first.replace("/data/", f"{grown.folder}/data/"))[1:]
    assert f"{grown.out('out')}" in grown.call(words, code=2)
