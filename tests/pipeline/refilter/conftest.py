"""A small crawl, and outputs of it that keep their texts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pipeline.demo.pages import write_article
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.made_once import made_once
from tests.support.outputs.parsed_texts import CUTTING, EDITING, recipe
from tests.support.outputs.runs import run

CONTACT = "Whoever wants to read the minutes of the meeting writes to jane.doe@mailbox.example and waits for an answer."
"""The last line of three posts: what the step pii changes."""


@pytest.fixture(scope="session")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "small-crawl", write_crawl)[0]


def write_crawl(folder: Path) -> None:
    """Pages and posts of a tiny crawl, and posts with an e-mail address."""
    make_tiny_crawl(folder)
    texts = [f"{write_article('en', random.Random(number), 10).text}\n{CONTACT}" for number in range(3)]
    rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts)]
    (folder / "posts-3.jsonl").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture(scope="session")
def earlier(crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An output with parsed texts of the default steps, one whose quality step edits texts and keeps the
    ledger, and one whose quality step edits texts and does not; nobody writes to them."""
    return made_once(tmp_path_factory, "earlier", lambda folder: make_earlier(crawl, folder))[1]


def make_earlier(crawl: Path, folder: Path) -> dict[str, str]:
    """Such outputs of the crawl, below `folder`."""
    outs = {name: str(folder / name) for name in ("plain", "editing", "cutting")}
    run(folder / "a", recipe(crawl, outs["plain"]))
    run(folder / "b", recipe(crawl, outs["editing"], EDITING))
    run(folder / "c", recipe(crawl, outs["cutting"], CUTTING))
    return outs
