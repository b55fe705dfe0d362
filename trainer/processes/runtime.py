"""The process as the trainer finds it: rank, device and process group, under torchrun, Ray Train or alone."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from lineage.allocator import keep_freed_memory
from lineage.recipe import RecipeError
from trainer.processes.asked_stacks import stacks_to_stderr
from trainer.processes.meeting import meet
from trainer.processes.watchdog import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One of the processes of a run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def store(self) -> Store:
        """The key-value store that all ranks share."""
        return cast(Store, _get_default_store())


def join_process_group(num_workers: int, watchdog_seconds: float, store: Any = None) -> Process:
    """This process as a member of the default process group, which is made unless it exists (as under Ray
    Train): on `store`, where the process that started all of them gives one.

    RecipeError where the number of processes is not the recipe's; TimeoutError where torchrun's do not find
    each other."""
    stacks_to_stderr()
    device = local_device()
    if device.type == "cpu":
        keep_freed_memory()
    if not dist.is_initialized():
        if num_workers > 1 and "WORLD_SIZE" not in os.environ:
            raise RecipeError(
                f"train.workers = {num_workers}: this is one process; start it with "
                f"`torchrun --nproc-per-node={num_workers} -m trainer RECIPE` or `sluice train RECIPE`"
            )
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = collective_timeout(watchdog_seconds)
        members = (
            _members(timeout)
            if store is None
            else {"store": store, "rank": int(os.environ["RANK"]), "world_size": num_workers}
        )
        dist.init_process_group(backend, timeout=timeout, **members)
    process = Process(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    if process.world_size != num_workers:
        raise RecipeError(
            f"{process.world_size} processes were started, and the recipe's [train.parallel] is"
            f" {num_workers}: set train.workers and train.parallel to match"
        )
    return process


def _members(timeout: datetime.timedelta) -> dict[str, object]:
    """Who the processes are, as `init_process_group` takes it; nothing where it finds that in the environment
    by itself, as under srun.

    TimeoutError where torchrun's processes do not find each other."""
    if "WORLD_SIZE" not in os.environ:
        return {"store": cast(Any, dist).HashStore(), "rank": 0, "world_size": 1}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    seconds = timeout.total_seconds()
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if rank == 0 and restarts:
        _say(f"torchrun's restart {restarts}: its processes meet at {host}:{port}, within {seconds:.0f} s")
    try:
        store = cast(Any, dist).TCPStore(host, port, None, False, timeout)
        prefix = meet(store, rank, world_size, seconds=seconds, say=_say)
    except dist.DistError as error:
        raise TimeoutError(
            f"rank {rank}: torchrun's store at {host}:{port} (MASTER_ADDR, MASTER_PORT) did not answer: {error}"
        ) from error
    return {"store": cast(Any, dist).PrefixStore(prefix, store), "rank": rank, "world_size": world_size}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def process_began() -> float:
    """When this process began, seconds since the epoch: before its imports. Where the kernel does not say:
    now."""
    now = time.time()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return now
    return now - max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))  # proc_pid_stat(5): starttime


def local_device() -> torch.device:
    """The GPU of this local rank, or the CPU. RecipeError where the machine has fewer GPUs than ranks: NCCL
    takes one rank a GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    rank, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if rank >= found:
        raise RecipeError(
            f"local rank {rank} has no GPU: this machine shows {found}; expected a GPU for each process of a"
            ' node (CUDA_VISIBLE_DEVICES="" trains on the processor)'
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def collective_timeout(watchdog_seconds: float) -> datetime.timedelta:
    """How long a collective may wait: longer than the watchdog, which can say more."""
    return datetime.timedelta(seconds=2 * watchdog_seconds + 60)


def stop_on_signal() -> Callable[[], bool]:
    """A function that says whether SIGTERM or SIGINT has come. Call it on the main thread."""
    came = threading.Event()
    on_stop(came.set)
    return came.is_set


@contextlib.contextmanager
def stopped_by_signals(ask: Callable[[], object]) -> Iterator[None]:
    """`on_stop` for the time of a block. Nothing off the main thread, where Python takes no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = on_stop(ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def on_stop(ask: Callable[[], object]) -> dict[signal.Signals, Any]:
    """From now on SIGTERM and SIGINT call `ask`; gives the handlers that they had. A second SIGINT is a
    KeyboardInterrupt: the steps since the newest checkpoint are lost."""

    def came(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            if os.environ.get("LOCAL_RANK", "0") == "0":  # one of torchrun's: a terminal's goes to each
                print(
                    "Stopping: the workers save a checkpoint first. Ctrl-C again ends at once.",
                    file=sys.stderr,
                )
        ask()

    return {number: signal.signal(number, came) for number in (signal.SIGTERM, signal.SIGINT)}
