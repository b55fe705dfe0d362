"""The calls of the tutorials: their recipes are made and right, and every other call is one that its command
takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipeline.cli.commands import parse_command
from pipeline.cli.main import main
from tests.support.checkout import ROOT

TUTORIALS = ("tutorial.md", "tutorial-ablation.md")
RECIPE = re.compile(r"Write `(\w+\.toml)`.*?```\n(.*?)```", re.DOTALL)


def calls(name: str) -> list[list[str]]:
    """The words of every call that a tutorial prints behind a prompt, in order."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(match[1]) for match in re.finditer(r"^\$ sluice (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("name", TUTORIALS)
def test_every_call_is_one_that_its_command_takes(name: str) -> None:
    assert len(calls(name)) > 5
    for command, *words in calls(name):
        parse_command(command, words)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_recipes_of_a_tutorial_are_made_and_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in RECIPE.findall((ROOT / "docs" / name).read_text(encoding="utf-8")):
        Path(file).write_text(text)
    for words in calls(name):
        if words[0] == "recipe":
            assert main(words) == 0
    # An input or a tokenizer that is not here is no matter of the recipe's keys.
    made = sorted(path.name for path in tmp_path.glob("*.toml"))
    assert (
        made
        == {"tutorial.md": ["crawl.toml", "train.toml"], "tutorial-ablation.md": ["mix.toml", "two.toml"]}[
            name
        ]
    )
    for file in made:
        assert main(["recipe", "check", file]) == 0
