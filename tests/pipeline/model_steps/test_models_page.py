"""The step, the class and the recipe that docs/models.md prints: they run as printed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.outputs.runs import ON_RAY, recipe, run

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
ENGLISH = "the committee said that it would look at the plans of the city again and then decide what to do with them"


def block(language: str) -> str:
    """The first block of the page in this language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_steps_of_the_page_judge_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_steps.py").write_text(block("python"))
    Path("words.txt").write_text("committee\n")
    texts = [ENGLISH, f"{ENGLISH} tablespoon", ENGLISH.replace("committee", "council")]
    Path("texts.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(texts))
    )
    printed = tomllib.loads(block("toml"))
    plain = recipe(str(tmp_path / "out"), {"web": ("texts.jsonl",)}, ray=ON_RAY) | {"step": printed["step"]}
    plain["source"][0]["steps"] = printed["source"][0]["steps"]
    summary = run(tmp_path, plain)
    assert summary["num_kept"] == 1
    rejected = {rule: num for rules in summary["rejected"].values() for rule, num in rules.items()}
    assert rejected == {"recipes": 1, "no_known_word": 1}
    assert summary["devices"] == {"my_steps:RareWords": "cpu"}
