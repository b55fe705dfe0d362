"""Two gloo processes whose communication is hidden by computing as planted: `sluice train profile` finds it
again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.processes.forked import run_forked
from trainer.processes.runtime import Process
from trainer.telemetry.profiling import Profiler

LATE_SECONDS = 0.6
PLANTED = {"all-reduce": 0.25, "all-gather": 0.75, "reduce-scatter": 0.0}
"""Of what rank 0 spends in the collective, the share beside which it computes."""


def planted(url: str, process: Process) -> None:
    """Rank 0 asks for each collective at once and computes for the planted share of the time until rank 1 comes,
    which does `LATE_SECONDS` later; then it sleeps."""
    torch.set_num_threads(1)
    matrix = torch.randn(128, 128)
    given, wide = torch.ones(1000), torch.empty(2000)
    collectives: dict[str, Callable[[], Any]] = {
        "all-reduce": lambda: dist.all_reduce(given, async_op=True),
        "all-gather": lambda: dist.all_gather_single(wide, given, async_op=True),
        "reduce-scatter": lambda: dist.reduce_scatter_single(given, wide, async_op=True),
    }
    profiler = Profiler((0, 0), Folder(url), process.rank, 1)
    dist.barrier()
    profiler.before(0)
    for phase, (name, ask) in zip(("forward", "loss", "backward"), collectives.items(), strict=True):
        dist.barrier()
        profiler.at(phase)
        if process.rank == 1:
            time.sleep(LATE_SECONDS)
        work = ask()
        until = time.monotonic() + PLANTED[name] * LATE_SECONDS
        while process.rank == 0 and time.monotonic() < until:
            for _ in range(64):
                torch.mm(matrix, matrix, out=matrix)
        work.wait()
    profiler.after(0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("planted")
    run_forked(folder / "processes", 2, partial(planted, str(folder / "run")))
    page = folder / "profile.html"
    saved = folder / "profile.json"
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["train", "profile", str(folder / "run"), "--to", str(page), "--json"]) == 0
    saved.write_text(out.getvalue())
    plain: dict[str, Any] = json.loads(out.getvalue()) | {"html": page.read_text()}
    return plain


def test_the_share_of_each_collective_that_is_hidden_is_the_planted_one(found: dict[str, Any]) -> None:
    # Rank 1 is in each collective for a moment: the seconds are rank 0's.
    shares = {row["name"]: row["hidden_share"] for row in found["collectives"]}
    for name, share in PLANTED.items():
        assert shares[name] == pytest.approx(share, abs=0.05), name


def test_a_rank_that_comes_late_is_named_with_what_the_other_waited(found: dict[str, Any]) -> None:
    first, last = found["ranks"]
    planted_wait = sum(LATE_SECONDS * (1 - share) for share in PLANTED.values())
    assert first["waited_for"]["1"] == pytest.approx(planted_wait, rel=0.05)
    assert first["waiting"] == pytest.approx(planted_wait, rel=0.05)
    assert sum(last["waited_for"].values()) < 0.05 * planted_wait


def test_the_time_of_a_rank_is_divided_without_a_rest(found: dict[str, Any]) -> None:
    for rank in found["ranks"]:
        parts = ("computing", "exposed", "copying", "idle")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["seconds"], rel=1e-9)
        assert rank["hidden"] + rank["exposed"] == pytest.approx(rank["communication"], rel=1e-9)
        assert sum(gap["seconds"] for gap in rank["gaps"]) == pytest.approx(rank["idle"], rel=1e-6)


def test_the_sleep_of_the_late_rank_is_idle_time_of_its_phases(found: dict[str, Any]) -> None:
    slept = {phase: 0.0 for phase in ("forward", "loss", "backward")}
    for gap in found["ranks"][1]["gaps"]:
        slept[gap["phase"]] = slept.get(gap["phase"], 0.0) + gap["seconds"]
    assert slept["forward"] == pytest.approx(LATE_SECONDS, rel=0.05)
    assert slept["backward"] == pytest.approx(LATE_SECONDS, rel=0.05)


def test_the_page_has_the_collectives_and_the_kernels(found: dict[str, Any]) -> None:
    assert "all-gather" in found["html"] and "aten::mm" in found["html"]
    assert found["kernels"][0]["name"] == "aten::mm"
    assert found["num_steps"] == 1 and found["first_step"] == 0
