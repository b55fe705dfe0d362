"""Two gloo processes whose communication is hidden by computing as planted: `sluice train profile` finds it
again."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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


class Planted(NamedTuple):
    """When a rank asked for a collective and ended to compute, by the clock that processes of a machine share."""

    asked: float
    computed: float


def planted(url: str, process: Process) -> dict[str, Planted]:
    """Rank 0 asks for each collective at once and computes for the planted share of the time until rank 1 comes,
    which does `LATE_SECONDS` later; then it sleeps."""
    found = {}
    torch.set_num_threads(1)
    # Each product takes so long that what Python and the profiler do between two is no share of the time.
    matrix = torch.randn(512, 512)
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
        asked = time.monotonic()
        work = ask()
        until = asked + PLANTED[name] * LATE_SECONDS
        while process.rank == 0 and time.monotonic() < until:
            torch.mm(matrix, matrix, out=matrix)
        found[name] = Planted(asked, time.monotonic())
        work.wait()
    profiler.after(0)
    return found


class Found(NamedTuple):
    """What the command says, the page, and what each rank did."""

    plain: dict[str, Any]
    page: str
    ranks: list[dict[str, Planted]]

    def waited(self, name: str) -> float:
        """Seconds that rank 0 was in a collective before rank 1 came."""
        return self.ranks[1][name].asked - self.ranks[0][name].asked

    def computed(self, name: str) -> float:
        """Seconds of these in which it computed."""
        first = self.ranks[0][name]
        return first.computed - first.asked if PLANTED[name] else 0.0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("planted")
    ranks = run_forked(folder / "processes", 2, partial(planted, str(folder / "run")))
    page = folder / "profile.html"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["train", "profile", str(folder / "run"), "--to", str(page), "--json"]) == 0
    return Found(json.loads(out.getvalue()), page.read_text(), ranks)


def test_the_share_of_each_collective_that_is_hidden_is_the_planted_one(found: Found) -> None:
    # Rank 1 is in each collective for a moment: the seconds are rank 0's.
    shares = {row["name"]: row["hidden_share"] for row in found.plain["collectives"]}
    for name in PLANTED:
        assert shares[name] == pytest.approx(found.computed(name) / found.waited(name), abs=0.05), name


def test_a_rank_that_comes_late_is_named_with_what_the_other_waited(found: Found) -> None:
    first, last = found.plain["ranks"]
    waited = sum(found.waited(name) - found.computed(name) for name in PLANTED)
    assert first["waited_for"]["1"] == pytest.approx(waited, rel=0.05)
    assert first["waiting"] == pytest.approx(waited, rel=0.05)
    assert sum(last["waited_for"].values()) < 0.05 * waited


def test_the_time_of_a_rank_is_divided_without_a_rest(found: Found) -> None:
    for rank in found.plain["ranks"]:
        parts = ("computing", "exposed", "copying", "idle")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["seconds"], rel=1e-9)
        assert rank["hidden"] + rank["exposed"] == pytest.approx(rank["communication"], rel=1e-9)
        assert sum(gap["seconds"] for gap in rank["gaps"]) == pytest.approx(rank["idle"], rel=1e-6)


def test_the_sleep_of_the_late_rank_is_idle_time_of_its_phases(found: Found) -> None:
    slept = dict.fromkeys(("forward", "loss", "backward"), 0.0)
    for gap in found.plain["ranks"][1]["gaps"]:
        slept[gap["phase"]] = slept.get(gap["phase"], 0.0) + gap["seconds"]
    for phase in ("forward", "loss", "backward"):
        assert slept[phase] > 0.95 * LATE_SECONDS


def test_the_page_has_the_collectives_and_the_kernels(found: Found) -> None:
    assert "all-gather" in found.page and "aten::mm" in found.page
    assert found.plain["kernels"][0]["name"] == "aten::mm"
    assert found.plain["num_steps"] == 1 and found.plain["first_step"] == 0
