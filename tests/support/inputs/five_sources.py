"""Small data for the five recipes of recipes/mix, in the fields that the public data sets have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo.pages import render_page, write_article
from pipeline.demo.warcs import DemoPage, write_source

_CODE = """# SPDX-License-Identifier: MIT
def {name}(width, height):
    \"\"\"What {name} makes of a rectangle: {sentence}\"\"\"
    total = 0
    for step in range(width * {number}):
        total += height - step
    return total
"""


def write_five_sources(folder: Path) -> None:
    """Write data/<source>/ below `folder`: a crawl, source files, LaTeX papers, an encyclopaedia, books."""
    rng = random.Random(5)

    def prose(num_paragraphs: int) -> str:
        return "\n\n".join(write_article("en", rng, 12).text for _ in range(num_paragraphs))

    pages = [
        DemoPage(
            url=f"https://a.example.com/{number}",
            html=render_page(write_article("en", rng), "a.example.com", rng),
        )
        for number in range(40)
    ]
    (folder / "data/web").mkdir(parents=True)
    write_source(folder / "data/web", "web", pages, 2, rng)
    names = [f"area_{number}" for number in range(40)]
    code = [
        {
            "path": f"src/{name}.py",
            "content": "\n\n".join(_one_function(name, prose(1), rng) for name in [name, name + "_2"]),
        }
        for name in names
    ]
    notebook = {
        "cells": [{"cell_type": "code", "source": [_one_function("area", prose(1), rng)], "outputs": []}]
    }
    code += [
        {"path": "areas.ipynb", "content": json.dumps(notebook)},
        {"path": "area.min.js", "content": "var a=1;" * 9},
    ]
    _write_lines(folder, "code", code)
    papers = [
        {
            "text": f"\\section{{Results}}\n{prose(3)}\n\\begin{{equation}}\n a_{number} = b^2\n\\end{{equation}}\n",
            "meta": {
                "arxiv_id": f"2401.{number:05d}",
                "url": f"https://arxiv.org/abs/2401.{number:05d}",
                "timestamp": "2024-01-02T00:00:00",
            },
        }
        for number in range(30)
    ]
    _write_lines(folder, "arxiv", papers)
    articles = [
        {
            "id": str(number),
            "url": f"https://en.wikipedia.org/wiki/A{number}",
            "title": f"A{number}",
            "text": prose(2),
        }
        for number in range(30)
    ]
    (folder / "data/wikipedia").mkdir()
    pq.write_table(pa.Table.from_pylist(articles), folder / "data/wikipedia/train-00000-of-00001.parquet")
    _write_lines(
        folder,
        "books",
        [
            {"id": str(number), "title": f"B{number}", "created": f"19{20 + number}-01-01", "text": prose(20)}
            for number in range(6)
        ],
    )


def _one_function(name: str, text: str, rng: random.Random) -> str:
    return _CODE.format(name=name, sentence=text.split("\n", maxsplit=1)[0][:80], number=rng.randint(2, 900))


def _write_lines(folder: Path, source: str, rows: list[dict[str, Any]]) -> None:
    (folder / "data" / source).mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "data" / source / f"{source}-0.jsonl").write_text(lines)
