"""Mutated files through units and whole runs: no exception leaves a unit, and the output balances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases.read import read_job, read_unit
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from tests.support.inputs.mutations import KINDS, Mutator
from tests.support.outputs.runs import recipe, run, write_recipe

pytestmark = pytest.mark.hostile("pipeline", "stages")

TABLES: dict[str, Any] = {
    "limits": {"max_bad_records": 1.0, "max_document_bytes": 1 << 20},
    "language": {"keep": []},
    "quality": {"no_table": "pass"},
}


def write_mutated(folder: Path, seed: int, num: int) -> dict[str, tuple[str, ...]]:
    """`num` mutated files of each kind; gzipped WARCs also joined to one file, where damage has
    neighbours."""
    for kind in KINDS:
        mutator = Mutator(seed)
        for number in range(num):
            made = mutator.made(kind)
            path = folder / kind / f"{number:05d}-{made.name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made.data)
    joined = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.warc.gz")))
    (folder / "joined.warc.gz").write_bytes(joined)
    return {"joined": (str(folder / "joined.warc.gz"),), "each": (str(folder / "*" / "*"),)}


def assert_a_run_holds(folder: Path, sources: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    summary = run(folder, recipe(str(folder / "out"), sources, **TABLES))
    assert [fault["where"] for fault in summary["faults"] if fault["stage"] != "parse"] == []
    out = Folder(str(folder / "out"))
    assert not verify(out, verify_hooks(out)).problems
    return summary


def test_no_exception_leaves_a_unit_of_mutated_files(tmp_path: Path) -> None:
    sources = write_mutated(tmp_path / "in", seed=3, num=5)
    loaded = load(write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), sources, **TABLES)))
    plan = plan_run(loaded)
    job = replace(read_job(loaded), key=plan.key)
    results = [read_unit(job, unit) for unit in plan.units]
    assert sum(result.num_survivors for result in results) > 10
    assert sum(len(result.unreadable) for result in results) > 10
    assert [result.faults for result in results if result.faults] == []


def test_a_run_over_mutated_files_ends_well_and_balances(tmp_path: Path) -> None:
    sources = write_mutated(tmp_path / "in", seed=4, num=30)
    summary = assert_a_run_holds(tmp_path, {"joined": sources["joined"]})
    assert summary["num_unreadable"] > 10
    assert summary["num_documents"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_runs_over_a_thousand_mutated_files_each_end_well_and_balance(seed: int, tmp_path: Path) -> None:
    sources = write_mutated(tmp_path / "in", seed=100 + seed, num=1000 // len(KINDS) + 1)
    assert_a_run_holds(tmp_path, sources)
