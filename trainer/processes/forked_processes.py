"""The processes of a run that recovers in place, on this machine: forked from a server that has imported
everything, so that each begins at once and shares that memory.

The server, and not this process, is forked: what threads this one has, as its store's, would not survive
it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final

from trainer.processes.participant import Rendezvous

PRELOADED: Final = (
    "torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.tensor.parallel",
    "torch._dynamo", "torch.utils.tensorboard", "deltalake.fs", "pandas", "pyarrow.dataset",
    "lineage.store.arrow_table", "trainer.in_place.survivor",
)  # fmt: skip
"""What a process of a run imports, the last of it when it first reads a table or makes an optimizer."""

Work = Callable[[Rendezvous], int]


class ForkedProcesses:
    """Processes that do `work` with the place of the store and their number, and exit with what it gives."""

    def __init__(self, work: Work, port: int, num_local: int) -> None:
        self._work, self._port, self._num_local = work, port, num_local
        # Each connection that is cut would be told with a stack of torch's C++.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._running: dict[int, BaseProcess] = {}

    def start(self, process: int) -> None:
        place = Rendezvous(host="127.0.0.1", port=self._port, process=process)
        started = self._context.Process(target=_child, args=(self._work, place, self._num_local), daemon=True)
        # The first start starts the server, which inherits the mask: a scheduler that ends a job sends SIGTERM
        # to each of its processes, and those that save a checkpoint must stay known. The tracker is started by
        # itself: its start would lift the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        try:
            started.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._running[process] = started

    def ended(self, seconds: float) -> Sequence[tuple[int, str]]:
        wait([process.sentinel for process in self._running.values()], seconds)
        found = [
            (number, _how(process.exitcode))
            for number, process in self._running.items()
            if process.exitcode is not None
        ]
        for number, _ in found:
            del self._running[number]
        return found

    def kill(self, process: int) -> None:
        if process in self._running:
            self._running[process].kill()

    def close(self) -> None:
        """Nothing is held."""


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _child(work: Work, place: Rendezvous, num_local: int) -> None:
    # Ctrl-C goes to every process of a terminal: the one that started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["LOCAL_WORLD_SIZE"] = str(num_local)
    code = 1
    try:
        code = work(place)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads that still write or wait, as those of a checkpoint that was given up, must not keep it.
        os._exit(code)
