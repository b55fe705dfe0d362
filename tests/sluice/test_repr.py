"""What a notebook shows of the library's objects: what they are, how much they hold, which version."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import sluice
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.outputs.small_out.output import make_small_out


def test_an_output_shows_its_place_texts_tokens_and_version(tmp_path: Path) -> None:
    small = make_small_out(str(tmp_path / "out"))
    num = sum(part.num_rows for part in small.index.dedup)
    tokens = f"{small.index.num_tokens:,} tokens"
    assert (
        repr(sluice.Output(str(tmp_path / "out")))
        == f"Output('{tmp_path}/out': {num:,} texts, {tokens}, version 1)"
    )


def test_steps_show_their_source_and_names(tmp_path: Path) -> None:
    plain = recipe(str(tmp_path / "out"), {"posts": ("a.jsonl",)})
    plain["source"][0]["steps"] = ["url", "parse"]
    steps = sluice.Steps(write_recipe(tmp_path / "r.toml", plain))
    assert repr(steps) == f"Steps(source 'posts': 2 steps, url, parse; sluice {version('sluice')})"


def test_a_notebook_shows_an_output_as_a_table_of_its_sources(tmp_path: Path) -> None:
    out = str(tmp_path / "<b>out")
    small = make_small_out(out)
    shown = sluice.Output(out)._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;out" in shown
    assert all(f">{source}</td>" in shown for source in {part.source for part in small.index.dedup})
