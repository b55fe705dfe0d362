"""The texts of the patched trafilatura are those of one left alone in another process, to the last
character."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType

from pipeline.demo.pages import render_page, write_article
from stages.html.extraction import Extractor, extract

pytestmark = pytest.mark.differential("stages/html")

UNTOUCHED = """
import json, logging, sys, trafilatura
from trafilatura.deduplication import LRUCache
logging.disable()
pages, favors = json.load(sys.stdin)
print(json.dumps([[trafilatura.extract(page, favor_precision=favor == "precision", favor_recall=favor == "recall",
    include_comments=False, deduplicate=LRUCache(maxsize=4096)) or "" for page in pages] for favor in favors]))
"""
FAVORS = ["precision", "balance", "recall"]


def check_texts(pages: list[str], favors: list[str]) -> None:
    asked = json.dumps([pages, favors])
    theirs = subprocess.run(
        [sys.executable, "-c", UNTOUCHED], input=asked, capture_output=True, text=True, check=True
    )
    for favor, texts in zip(favors, json.loads(theirs.stdout), strict=True):
        ours = Extractor(name="trafilatura", favor=favor, fast=False, timeout_seconds=60)
        assert [extract(page, ours) for page in pages] == texts
        assert sum(map(bool, texts)) > len(texts) / 2


def read_pages(file: Path) -> list[str]:
    with open(file, "rb") as stream:
        records = ArchiveIterator(stream, record_types=WarcRecordType.response, parse_http=True)
        return [record.reader.read().decode("utf-8", "replace") for record in records]


def sentences(num: int, word: str) -> str:
    return " ".join(
        f"The {word} of sentence {number} goes on for a while, and then it ends." for number in range(num)
    )


def page(*parts: str) -> str:
    return f"<!doctype html>\n<html><head><title>A page</title></head><body>{''.join(parts)}</body></html>"


def around_the_comparison() -> list[str]:
    """Pages on both sides of each question that decides between trafilatura's own text and readability's."""
    own = f"<article><p>{sentences(8, 'article')}</p></article>"
    other = f"<div><p>{sentences(20, 'other part')}</p></div>"
    rows = "".join(f"<tr><td>{sentences(2, f'row {number}')}</td></tr>" for number in range(9))
    links = "".join(f"<li><a href='/{number}'>menu {number}</a></li>" for number in range(200))
    return [
        page(own),
        page(own, other),
        page(own, other * 3),
        page(f"<ul>{links}</ul>", own),
        page(f"<div class='sidebar'>{sentences(40, 'sidebar')}</div>", own),
        page(f"<div class='cookie'>{sentences(40, 'notice')}</div>", own),
        page(f"<table>{rows}</table>"),
        page(f"<table>{rows}</table>", own),
        page(f"<div>{sentences(12, 'division')}</div>"),
        page(own, "<iframe src='https://www.youtube.com/embed/1'></iframe>" * 300),
        page(own.replace("</article>", f"<xmp>{'<' * 300}</xmp></article>")),
        page(
            f"<article><h2>Head</h2><p>{sentences(9, 'headed')}</p></article>",
            f"<div>{sentences(3, 'rest')}</div>",
        ),
        page(f"<script>var text = '{'x y, ' * 4000}';</script><style>p {{}}</style>", own),
        page(own.replace("The", "Th\x01\x0be\ufffe")),
        page("<div></div>"),
    ]


def test_the_texts_of_written_pages_are_those_of_a_trafilatura_left_alone():
    rng = random.Random(7)
    written = [
        render_page(write_article(language, rng), "example.org", rng) for language in ["en", "de", "fr"] * 8
    ]
    check_texts([html.decode() for html in written] + around_the_comparison(), FAVORS)


def test_the_texts_of_real_pages_are_those_of_a_trafilatura_left_alone(real_data):
    check_texts(read_pages(sorted((real_data / "crawl").glob("*.warc.gz"))[0])[:60], FAVORS)


@pytest.mark.slow
def test_all_texts_of_a_crawl_are_those_of_a_trafilatura_left_alone(real_data):
    for file in sorted((real_data / "crawl").glob("*.warc.gz")):
        check_texts(read_pages(file), FAVORS)
