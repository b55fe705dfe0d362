"""What the commands write for people: on a terminal that knows ASCII alone, and from pages that attack the
terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.commands import COMMANDS
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.terminal import harmless_json, visible
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202egnp.exe\u2069 ünïcode 漢字 😀"
URL = f"https://forum.example.org/{ATTACK}"
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_what_steers_a_terminal_is_shown_as_an_escape_and_the_rest_as_it_is() -> None:
    assert visible("a\x1b[2Jb\r\x07\x9b\u202e\u2069\u2028\ud800") == (
        r"a\x1b[2Jb\r\x07\x9b\u202e\u2069\u2028\ud800"
    )
    assert visible("ünïcode 漢字 😀\u00a0!") == "ünïcode 漢字 😀\u00a0!"
    assert visible("a\n\tb\x0b", "\n\t") == "a\n\tb\\x0b"


def test_json_without_steering_characters_says_the_same() -> None:
    value = {"text": ATTACK + "\ud800\x85", ATTACK: [ATTACK]}
    told = harmless_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(told) == value and not HARMFUL.search(told)
    assert "漢字 😀" in told


class _Terminal(io.BytesIO):
    """Bytes that say they are a terminal."""

    def isatty(self) -> bool:
        return True


def printed(call: list[str], encoding: str, *, terminal: bool) -> tuple[int, str]:
    """What a command writes to stdout and stderr of an encoding, and its exit code."""
    stream = io.TextIOWrapper(_Terminal() if terminal else io.BytesIO(), encoding)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        try:
            code = main(call)
        except SystemExit as error:
            code = int(str(error.code))
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return code, stream.buffer.getvalue().decode("utf-8" if "--csv" in call and not terminal else encoding)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run over posts whose URLs and texts attack the terminal, and files that calls
    name."""
    import random

    folder = tmp_path_factory.mktemp("terminal")
    rng = random.Random(3)
    texts = [f"{write_article('en', rng, 9).text} {ATTACK}" for _ in range(8)]
    posts = [
        {"id": f"{ATTACK}{n}", "url": f"{URL}{n}", "text": text} for n, text in enumerate([*texts, texts[0]])
    ]
    posts.append({"id": "short", "url": URL, "text": f"Too short. {ATTACK}"})
    (folder / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    (folder / "bench.jsonl").write_text(json.dumps({"text": texts[2]}) + "\n")
    body = "".join(f"<p>{ATTACK} {paragraph}</p>" for paragraph in write_article("en", rng, 9).paragraphs)
    (folder / "page.html").write_text(
        f"<html><title>{ATTACK}</title><body><article>{body}</article></body></html>"
    )
    run(folder, recipe(str(folder / "out"), {"forum": (str(folder / "posts.jsonl"),)}))
    write_recipe(
        folder / "train.toml",
        {
            "run": {"name": f"[/] {ATTACK}"},
            "train": {
                "data": str(folder / "out"),
                "output": str(folder / "trained"),
                "model": "debug",
                "seq_len": 64,
                "global_batch": 2,
                "micro_batch": 1,
                "steps": 2,
                "workers": 1,
            },
        },
    )
    return folder


def calls(folder: Path) -> dict[str, list[str]]:
    """A call of each command that prints for people and needs no cluster, by a name."""
    out = str(folder / "out")
    [(doc_id, clean_hash)] = query(
        Folder(out),
        "SELECT doc_id, clean_hash FROM documents WHERE status = 'kept' AND host = 'forum.example.org'"
        " ORDER BY 1 LIMIT 1",
    ).rows
    purge = ["purge", out, "--doc", str(doc_id), "--reason", ATTACK, "--by", ATTACK]
    every = "SELECT doc_id, url, status FROM documents ORDER BY 1"
    return {
        "explain": [
            "explain",
            str(folder / "recipe.toml"),
            "--file",
            str(folder / "page.html"),
            "--url",
            URL,
        ],
        "run, finished": ["run", str(folder / "recipe.toml")],
        "report": ["report", out],
        "verify": ["verify", out],
        "trace --doc": ["trace", out, "--doc", str(doc_id)],
        "trace --url": ["trace", out, "--url", URL],
        "trace --host": ["trace", out, "--host", "forum.example.org"],
        "trace --hash": ["trace", out, "--hash", str(clean_hash)],
        "trace --shard": ["trace", out, "--shard", "forum/0", "--offset", "0"],
        "trace, unknown": ["trace", out, "--url", f"https://nobody.example/{ATTACK}"],
        "lineage": ["lineage", out, every],
        "lineage, a name": ["lineage", out, f'SELECT 1 AS "{ATTACK}"'],
        "lineage, wrong": ["lineage", out, f'SELECT "{ATTACK}" FROM documents'],
        "lineage --csv": ["lineage", out, "--csv", every],
        "scan": [
            "scan",
            out,
            "--against",
            str(folder / "bench.jsonl"),
            "--to",
            str(folder / f"scan {ATTACK}.json"),
            "--max-share",
            "1",
        ],
        "tokenizer": ["tokenizer", "train", out, "--vocab", "300", "--to", str(folder / "mine.tiktoken")],
        "plan": ["plan", str(folder / "train.toml")],
        "purge, the plan": purge,
        "purge, unknown": [
            "purge",
            out,
            "--url",
            f"https://nobody.example/{ATTACK}",
            "--reason",
            "r",
            "--by",
            "b",
        ],
        "no such recipe": ["run", f"{ATTACK}.toml"],
    }


FAIL = {"trace, unknown": 1, "purge, unknown": 1, "lineage, wrong": 2, "no such recipe": 2}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_every_command_writes_on_every_terminal_and_no_page_steers_it(
    hostile: Path, encoding: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")  # no colours of our own
    for name, call in calls(hostile).items():
        code, told = printed(call, encoding, terminal=terminal)
        assert code == FAIL.get(name, 0), (name, told)
        if "--csv" in call and not terminal:
            assert any(ATTACK in line for line in told.split("\n")), "a file or pipe gets exact values"
        else:
            assert told and not HARMFUL.search(told.replace("\r\n", "\n")), (name, told)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_is_exact_in_every_encoding(hostile: Path, encoding: str) -> None:
    code, told = printed(["trace", str(hostile / "out"), "--url", URL, "--json"], encoding, terminal=True)
    assert code == 0 and not HARMFUL.search(told)
    assert [document["url"] for document in json.loads(told)["documents"]] == [URL]
    code, told = printed(
        ["explain", str(hostile / "recipe.toml"), "--file", str(hostile / "page.html"), "--json"],
        encoding,
        terminal=False,
    )
    assert code == 0 and "漢字 😀" in json.loads(told)["text"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_can_be_read_in_ascii(command: str) -> None:
    code, told = printed([command, "--help"], "ascii", terminal=False)
    assert code == 0 and f"usage: sluice {command}" in told


@pytest.mark.parametrize("settings", [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C"},
], ids=["PYTHONIOENCODING", "C without UTF-8", "C"])  # fmt: skip
def test_explain_ends_well_on_an_ascii_terminal(hostile: Path, settings: dict[str, str]) -> None:
    call = [sys.executable, "-m", "pipeline", *calls(hostile)["explain"]]
    plain: dict[str, Any] = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))
    }
    done = subprocess.run(call, capture_output=True, env=plain | settings, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"gopher_quality" in done.stdout and b"\x1b" not in done.stdout
