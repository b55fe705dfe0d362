"""What the Tab key gives, typed into real shells on terminals of their own."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.commands import COMMANDS
from pipeline.cli.completion import keys_to_set, script
from pipeline.cli.main import main
from pipeline.recipe.load import load
from tests.support.outputs.runs import recipe, write_recipe

SECONDS = 30.0
"""How long an answer may take before the test is lost."""


class Shell:
    """A shell on a terminal, in which `sluice` prints its words instead of running."""

    def __init__(self, command: list[str], folder: Path, start: str) -> None:
        self._terminal, inner = pty.openpty()
        plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "PS1": "", "PROMPT": ""}
        self._process = subprocess.Popen(
            command, cwd=folder, env=plain, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        (folder / ".start").write_text(
            start + "\nsluice() { printf '<%s>' \"$@\" '.'; echo; }\necho 'is ready'\n"
        )
        self._read(". ./.start\r", r"is ready\r")

    def words(self, typed: str) -> list[str]:
        """The words of the call that a person sends who types this, a tab included, and Enter."""
        shown = self._read(f"{typed}\r", r"<\.>")
        # zsh takes the slash behind a folder's name away again when Enter follows.
        return [word.rstrip("/") for word in re.findall(r"<([^<>]*)>", shown)[:-1]]

    def _read(self, typed: str, until: str) -> str:
        os.write(self._terminal, typed.encode())
        shown = ""
        while not re.search(until, shown):
            assert select.select([self._terminal], [], [], SECONDS)[0], shown
            shown += os.read(self._terminal, 4096).decode()
        return shown

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a file that is none, and an output."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "crawl.toml").write_text("")
    (folder / "crawl.warc").write_text("")
    (folder / "finished").mkdir()
    return folder


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shell]:
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    (folder / "completion").write_text(script(request.param))
    first = "autoload -Uz compinit && compinit -u -D\n" if request.param == "zsh" else ""
    options = ["--norc", "--noprofile", "-i"] if request.param == "bash" else ["-f", "-i"]
    shell = Shell([found, *options], folder, f'{first}eval "$(cat completion)"')
    yield shell
    shell.end()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("sluice expla\t", ["explain"]),
        ("sluice recipe ch\t", ["recipe", "check"]),
        ("sluice export out --form\t", ["export", "out", "--format"]),
        ("sluice export out --format meg\t", ["export", "out", "--format", "megatron"]),
        ("sluice run --str\t", ["run", "--strict"]),
        ("sluice run c\t", ["run", "crawl.toml"]),
        ("sluice verify f\t", ["verify", "finished"]),
        (
            "sluice run crawl.toml --set quality.min_words\t80",
            ["run", "crawl.toml", "--set", "quality.min_words=80"],
        ),
        ("sluice train t.toml --set train.seq\t64", ["train", "t.toml", "--set", "train.seq_len=64"]),
        ("sluice recipe keys dedup.thr\t", ["recipe", "keys", "dedup.threshold"]),
        ("sluice completion z\t", ["completion", "zsh"]),
        ("sluice submit verify --addr\t", ["submit", "verify", "--address"]),
        ("sluice submit run c\t", ["submit", "run", "crawl.toml"]),
    ],
)
def test_tab_completes(shell: Shell, typed: str, words: list[str]) -> None:
    assert shell.words(typed) == words


def test_what_has_no_completion_stays_as_it_was_typed(shell: Shell) -> None:
    assert shell.words("sluice purge finished --reason asked\t") == ["purge", "finished", "--reason", "asked"]


def test_every_command_and_format_is_known() -> None:
    for name in ("bash", "zsh"):
        text = script(name)
        assert not [command for command in COMMANDS if command not in text and " " not in command]


def test_a_key_that_is_offered_is_one_that_set_takes(tmp_path: Path) -> None:
    offered = keys_to_set(("data",))
    plain = recipe(str(tmp_path / "out"), {"web": ("*.warc.gz",)})
    path = tmp_path / "recipe.toml"
    write_recipe(path, plain)
    assert {"source.0.limit", "quality.min_words", "run.seed"} <= set(offered)
    for override in ("source.0.limit=2", "quality.min_words=80", "run.seed=3"):
        assert load(str(path), [override])


def test_no_python_starts_when_tab_is_pressed(shell: Shell, folder: Path) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("python", "python3", "sluice"):
        trap = folder / "bin" / name
        trap.write_text("#!/bin/sh\ntouch started\n")
        trap.chmod(0o755)
    assert shell.words("PATH=$PWD/bin:$PATH; sluice first") == ["first"]
    assert shell.words("sluice ver\t") == ["verify"]
    assert not (folder / "started").exists()


def test_another_shell_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "csh"])
    assert ended.value.code == 2
    assert "'csh'" in capsys.readouterr().err


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    printed = capsys.readouterr().out
    assert printed == script("bash")
    assert (
        subprocess.run([shutil.which("bash") or "", "-n"], input=printed, text=True, check=False).returncode
        == 0
    )
