"""Gloo processes for tests, forked from the server of `fork_server.py`."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.processes.fork_server import fork_server
from trainer.processes.runtime import Process

TIMEOUT_SECONDS = 600

Work = Callable[[Process], Any]


class ChildFailedError(AssertionError):
    """A process ended with another code than 0."""


def run_forked(folder: Path, world_size: int, work: Work) -> list[Any]:
    """`work` of each rank in a process of its own, in a gloo group; gives what they return."""
    codes = wait(start_forked(folder, world_size, work))
    if any(codes):
        raise ChildFailedError(f"exit codes {codes}: {said(folder)}")
    return [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(world_size)]


def start_forked(folder: Path, world_size: int, work: Work) -> list[BaseProcess]:
    """Start the processes and leave them running."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("error", "stderr"):
        for old in folder.glob(f"{kind}-*"):
            old.unlink()
    context = fork_server()
    store = folder / f"store-{time.monotonic_ns()}"
    processes: list[BaseProcess] = [
        context.Process(target=_child, args=(folder, store, rank, world_size, work))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    return processes


def wait(processes: list[BaseProcess]) -> list[int]:
    """Exit codes, negative for signals. When one fails or time is up, the others get a second and are
    killed."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while any(process.exitcode is None for process in processes):
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + 1)
        if time.monotonic() > deadline:
            for process in processes:
                if process.exitcode is None:
                    process.kill()
        time.sleep(0.01)
    return [process.exitcode or 0 for process in processes]


def said(folder: Path) -> str:
    """What the processes wrote to stderr, and the errors of those that failed."""
    return "\n".join(
        file.read_text() for kind in ("stderr", "error") for file in sorted(folder.glob(f"{kind}-*"))
    )


def killed(codes: list[int]) -> bool:
    """Whether one of the processes was killed."""
    return -signal.SIGKILL in codes


def _child(folder: Path, store: Path, rank: int, world_size: int, work: Work) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(folder / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY), 2)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=world_size,
        store=dist.FileStore(str(store), world_size),  # type: ignore[attr-defined]
        timeout=datetime.timedelta(seconds=500),
    )
    try:
        result = work(Process(rank=rank, world_size=world_size, device=torch.device("cpu")))
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise
    (folder / f"rank-{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
