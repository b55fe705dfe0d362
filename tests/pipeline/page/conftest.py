"""An output with texts after parse, the whole ledger, duplicates, personal data and a training run, and its
page."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.demo.pages import write_article
from tests.support.inputs.make_warc import http, member, record
from tests.support.made_once import made_once
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.runs import recipe, run
from tests.support.processes.chromium import chromium
from tests.support.processes.served_page import served

HOSTILE = "https://evil.example.org/<script>document.title='stolen'</script>/x"
EMAIL = "gardener@garden-club.example.org"


def prose(seed: int) -> str:
    """A text that the rules keep, another for each seed."""
    return write_article("en", random.Random(seed)).text


def made_pages() -> dict[str, str]:
    """The text of each page, by URL: two are copies, one is too short, one bears an address, one markup."""
    pages = {f"https://web.example.org/page-{i}": prose(i) for i in range(8)}
    pages["https://copy.example.org/of-3"] = prose(3) + "\nOne more word."
    pages["https://web.example.org/short"] = "Too few words to be kept."
    pages["https://web.example.org/people/"] = (
        f"{prose(50)}\nWrite to {EMAIL} to take part.\nThe last line of it."
    )
    pages[HOSTILE] = f"<b onmouseover=alert(1)>bold</b> {prose(60)}"
    return pages


def html(text: str) -> bytes:
    """A page with a text."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    lines = "".join(f"<p>{line}</p>" for line in escaped.split("\n"))
    return f"<html><head><title>a page</title></head><body><article>{lines}</article></body></html>".encode()


@pytest.fixture(autouse=True)
def own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page keeps for a person lies with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished run of a WARC file, and of a training run of 30 steps or so; of nobody's to change."""
    folder, _ = made_once(tmp_path_factory, "page", make_output)
    return str(folder / "out")


def make_output(folder: Path) -> None:
    """The run and the training run."""
    records = [
        member(record(http(html(text)), f"page-{number}", warc_target_uri=url))
        for number, (url, text) in enumerate(made_pages().items())
    ]
    (folder / "web.warc.gz").write_bytes(b"".join(records))
    tables: dict[str, Any] = {
        "run": {"keep_text": True},
        "quality": {"ledger": "all"},
        "ray": {"address": "none"},
    }
    run(folder, recipe(str(folder / "out"), {"web": (str(folder / "web.warc.gz"),)}, **tables))
    record_training(Folder(str(folder / "out")), str(folder / "training"))


@pytest.fixture
def out(made: str, tmp_path: Path) -> str:
    """A copy of the output, to be changed."""
    shutil.copytree(made, tmp_path / "out")
    return str(tmp_path / "out")


@pytest.fixture
def page(out: str) -> Iterator[tuple[str, str]]:
    """(address with token, output) of a page that is being served."""
    with served(out) as address:
        yield address, out


@pytest.fixture(scope="module")
def shared_page(made: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that nobody changes anything by."""
    with served(made, state=str(tmp_path_factory.mktemp("state"))) as address:
        yield address


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "chromium") as running:
        running.implicitly_wait(60)  # a click returns before the page that it leads to is there
        yield running
