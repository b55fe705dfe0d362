"""The mixture of recipes/mix: five sources, each by its own recipe, from its data set's fields to a training
order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from pipeline import process
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load
from tests.support.inputs.five_sources import write_five_sources
from tests.support.outputs.lineage_query import query
from trainer.data.corpus import open_corpus
from trainer.data.recipe_order import make_order
from trainer.options import load_train_recipe

MIX = Path(__file__).parents[2] / "recipes/mix"
NAMES = ("web", "code", "arxiv", "wikipedia", "books")


def ask(out: Path, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(Folder(str(out)), sql).rows]


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each of the five recipes has run."""
    folder: Path = tmp_path_factory.mktemp("mix")
    write_five_sources(folder)
    with _in(folder):
        for name in NAMES:
            process.run(load(MIX / f"{name}.toml", ["ray.address=none"]), ProgressReporter(quiet=True))
    return folder


def test_each_recipe_keeps_what_suits_it(world: Path) -> None:
    kept = {
        name: ask(world / f"out/mix/{name}", "SELECT status, count(*) FROM documents GROUP BY 1 ORDER BY 1")
        for name in NAMES
    }
    assert kept == {
        "web": [("kept", 40)], "code": [("kept", 41), ("rejected", 1)], "arxiv": [("kept", 30)],
        "wikipedia": [("kept", 30)], "books": [("kept", 6)],
    }  # fmt: skip
    code = world / "out/mix/code"
    kept_code = (
        "SELECT language, license, count(*) FROM documents WHERE status = 'kept' GROUP BY ALL ORDER BY ALL"
    )
    assert ask(code, kept_code) == [
        ("jupyter", "MIT", 1), ("python", "MIT", 40),
    ]  # fmt: skip
    assert ask(code, "SELECT rule, record_id FROM documents WHERE status = 'rejected'") == [
        ("code.generated", "area.min.js")
    ]
    (part,) = (code / "documents/code").glob("*.parquet")
    assert set(pq.read_table(part)["license"].to_pylist()) == {"MIT"}
    assert ask(
        world / "out/mix/arxiv", "SELECT min(url), min(record_id), min(captured_at) FROM documents"
    ) == [("https://arxiv.org/abs/2401.00000", "2401.00000", "2024-01-02T00:00:00Z")]


def test_the_order_draws_the_shares_exactly(world: Path) -> None:
    with _in(world):
        recipe = load_train_recipe(MIX / "train.toml")
        order = make_order(recipe, open_corpus(recipe.train.data))
        places = order.locate(np.arange(20_000))
    for first in range(0, 20_000, 1_000):
        drawn = Counter(order.plan.sources[source] for source in places.source[first : first + 1_000])
        assert drawn == {"web": 700, "code": 100, "arxiv": 50, "wikipedia": 50, "books": 100}
