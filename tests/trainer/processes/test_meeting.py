"""Processes of torchrun's starts on a store that keeps what earlier starts wrote."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from trainer.processes.meeting import MeetingStore, meet


def new_store() -> MeetingStore:
    return cast(MeetingStore, cast(Any, dist).HashStore())


def start(store: MeetingStore, ranks: range, world_size: int, said: list[str] | None = None) -> list[str]:
    """The prefixes that the ranks of a start come to."""
    said = [] if said is None else said
    with ThreadPoolExecutor(len(ranks)) as pool:
        came = [pool.submit(meet, store, rank, world_size, seconds=30, say=said.append) for rank in ranks]
        return [each.result() for each in came]


def test_each_start_has_a_prefix_of_its_own_on_one_store() -> None:
    store = new_store()
    prefixes = [start(store, range(3), 3) for _ in range(5)]
    assert all(len(set(each)) == 1 for each in prefixes)
    assert len({each[0] for each in prefixes}) == 5


@pytest.mark.parametrize("came", [range(1), range(2), range(1, 3), range(2, 3)])
def test_a_start_of_which_some_died_before_they_met_leaves_nothing_behind(came: range) -> None:
    store = new_store()
    before = start(store, range(3), 3)
    for rank in came:
        with pytest.raises(TimeoutError):
            meet(store, rank, 3, seconds=0, say=lambda line: None)
    after = start(store, range(3), 3)
    assert len(set(after)) == 1 and after[0] != before[0]


def test_a_rank_that_came_too_early_takes_no_earlier_start_for_its_own() -> None:
    store = new_store()
    (before, _) = start(store, range(2), 2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, store, 1, 2, seconds=30, say=lambda line: None)
        with pytest.raises(TimeoutError):
            first.exception(timeout=0.3)
        second = pool.submit(meet, store, 0, 2, seconds=30, say=lambda line: None)
        assert first.result() == second.result() != before


def test_who_waits_says_for_whom_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.processes.meeting._TELL_AFTER_SECONDS", 0.0)
    said: list[str] = []
    with pytest.raises(
        TimeoutError, match=r"rank 0 of 12 waited 0 s .* 11 have not come \(rank 1, 2, .* 3 more"
    ):
        meet(new_store(), 0, 12, seconds=0.2, say=said.append)
    (line,) = said
    assert "11 have not come" in line and "at most" in line
    with pytest.raises(TimeoutError, match="rank 0 has not found all of them"):
        meet(new_store(), 1, 2, seconds=0, say=said.append)


SCRIPT = """
import os, torch, torch.distributed as dist
from trainer.processes.runtime import join_process_group
process = join_process_group(2, 60.0)
one = torch.ones(1)
dist.all_reduce(one)
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("restart", restart, "rank", process.rank, "sum", int(one), flush=True)
if restart < 4 and process.rank == restart % 2:
    os._exit(1)
dist.all_reduce(one)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_restarts_processes_to_the_fifth_start(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*torchrun, "--max-restarts=4", str(tmp_path / "work.py")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "restart 4 rank 0 sum 2" in ended.stdout and "restart 4 rank 1 sum 2" in ended.stdout
    assert "torchrun's restart 4: its processes meet at" in ended.stderr
