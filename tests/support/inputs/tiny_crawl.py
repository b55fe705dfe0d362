"""A hundred documents in six files: as few as can hold duplicates, rejections and several shards."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from pipeline.demo.pages import drop_words, render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source
from stages.tokens.tokenizer import train_bpe

SOURCES = {"web": "web-*.warc.gz", "posts": "posts-*.jsonl"}


def make_tiny_crawl(folder: Path) -> dict[str, tuple[str, ...]]:
    """Write it below `folder`; the inputs of each source."""
    rng = random.Random(0)
    articles = [write_article("en", rng) for _ in range(40)] + [write_article("it", rng) for _ in range(5)]
    near = replace(articles[0], paragraphs=drop_words(articles[0].paragraphs, rng, 3))
    told = [*articles, articles[1], articles[2], near]
    pages = [
        DemoPage(url=f"https://web.example.com/{number}", html=render_page(article, "web.example.com", rng))
        for number, article in enumerate(told)
    ]
    write_source(folder, "web", pages, 3, rng)
    for file in range(3):
        texts = [write_article("en", rng, 10).text for _ in range(14)] + ["Too few words.", articles[3].text]
        rows = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
        (folder / f"posts-{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return inputs_of(folder)


def tiny_tokenizer(folder: Path) -> str:
    """A tokenizer of 1,024 ids, learnt from the posts of a crawl below `folder`: a debug model over it takes
    steps of milliseconds. The path of its file."""
    lines = [line for path in sorted(folder.glob("posts-*.jsonl")) for line in path.read_text().splitlines()]
    path = folder / "tiny.tiktoken"
    path.write_bytes(train_bpe([json.loads(line)["text"] for line in lines], 1024))
    return str(path)


def inputs_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """The inputs of each source of a crawl that lies below `folder`."""
    return {name: (str(folder / pattern),) for name, pattern in SOURCES.items()}
