"""The blocks of docs/api.md run one after the other, on a small crawl."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import sluice
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import recipe, write_recipe

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_lists_every_public_name_of_a_call() -> None:
    named = set(re.findall(r"`sluice\.(\w+)\(", PAGE))
    public = {name for name in sluice.__all__ if name[0].islower()} | {"Steps", "Sequences"}
    listed = {name for name in public if re.search(rf"`(sluice\.)?{name}`", PAGE)}  # several in a row
    assert public - listed <= named <= set(sluice.__all__)


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_ray: None
) -> None:
    make_tiny_crawl(tmp_path)
    plain = recipe("out/crawl", {"web": ("web-*.warc.gz",), "posts": ("posts-*.jsonl",)})
    plain["tokenize"]["encoding"] = tiny_tokenizer(tmp_path)
    (tmp_path / "recipes").mkdir()
    write_recipe(tmp_path / "recipes" / "crawl.toml", plain)
    shutil.copy(ROOT / "recipes" / "train.toml", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        missing = [name for name in re.findall(r"^import (\w+)", block, re.MULTILINE) if _is_missing(name)]
        if missing:
            assert set(missing) <= {"polars", "datasets"}
            continue
        exec(compile(block, "docs/api.md", "exec"), names)
    assert names["kept"].fetchall()
    assert names["judged"].decided_by.rule
    assert len(names["rest"]) == 16
    assert names["replayed"].purges and names["certificate"].purges[-1].readings


def _is_missing(name: str) -> bool:
    return importlib.util.find_spec(name) is None
