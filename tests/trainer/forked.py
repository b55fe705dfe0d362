"""Forked gloo processes for tests: 0.1 s to start, since the parent has imported what is slow.

Import it from a test as `from forked import run_forked`."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported here so that forked children need not
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

from trainer.runtime import Process

TIMEOUT_SECONDS = 120


class ChildFailedError(AssertionError):
    """A forked process ended with another code than 0."""


def run_forked(folder: Path, world_size: int, work: Callable[[Process], Any], *, kill_after: float = 0) -> list[Any]:
    """`work` of each rank in a process of its own, in a gloo group over a store in `folder`; gives what they return.

    `kill_after` > 0: all are killed (SIGKILL) so many seconds after they began, and None is returned for each."""
    pids = start_forked(folder, world_size, work)
    if kill_after:
        time.sleep(kill_after)
        kill(pids)
    codes = wait(pids)
    if kill_after:
        return [None] * world_size
    if any(codes):
        raise ChildFailedError(f"exit codes {codes}")
    return [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(world_size)]


def start_forked(folder: Path, world_size: int, work: Callable[[Process], Any]) -> list[int]:
    """Fork the processes; gives their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"store-{time.monotonic_ns()}"
    pids = []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            _child(folder, store, rank, world_size, work)
        pids.append(pid)
    return pids


def kill(pids: list[int]) -> None:
    """SIGKILL those that are still there."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait(pids: list[int]) -> list[int]:
    """Exit codes, negative for signals; every process is killed when the first fails or time is up."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        late = time.monotonic() > deadline
        if late or (any(codes.values()) and not getattr(wait, "patient", False)):
            time.sleep(0.3)  # the others may be about to say why, too
            for pid in pids:
                if pid not in codes and os.waitpid(pid, os.WNOHANG) == (0, 0):
                    os.kill(pid, signal.SIGKILL)
                    codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                codes.setdefault(pid, 1)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def _child(folder: Path, store: Path, rank: int, world_size: int, work: Callable[[Process], Any]) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            rank=rank,
            world_size=world_size,
            store=dist.FileStore(str(store), world_size),
            timeout=datetime.timedelta(seconds=60),
        )
        result = work(Process(rank=rank, world_size=world_size, device=torch.device("cpu")))
        (folder / f"rank-{rank}").write_bytes(pickle.dumps(result))
        dist.barrier()
        code = 0
    except BaseException:  # noqa: BLE001 (whatever it was, the parent must see it, and pytest must not run on here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
