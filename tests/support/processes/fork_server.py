"""A server that has imported what is slow, and processes of tests that are forked from it: .1 s to start.

The server, and not pytest itself, is forked: threads and runtimes that other tests have started would not
survive it. So what a process does must be picklable: a module's function, or a partial of one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

_SLOW_IMPORTS = [
    "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
    "torch.utils.tensorboard", "trainer.run.train", "pytest", "hypothesis",
    "deltalake.fs", "lineage.store.arrow_table", "pandas", "pyarrow.dataset",
    "tests.support.outputs.purging", "pipeline.page.serve",
]  # fmt: skip
"""What a training imports, `deltalake` to `pyarrow` when it reads a table: a quarter of a short run; and
children that purge, and servers of a page."""


def fork_server() -> ForkServerContext:
    """Starts processes that are forked from the one server of this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SLOW_IMPORTS)
    return context


class Child:
    """A process that does `work` with `arguments`."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        context = fork_server()
        self._answer, sent = context.Pipe(duplex=False)
        self._process = context.Process(target=_answering, args=(sent, work, arguments))
        self._process.start()
        sent.close()

    def end(self) -> tuple[int, Any]:
        """Wait for it: its exit code, negative for a signal, and what `work` gave, None where it was killed."""
        try:
            given = self._answer.recv()
        except EOFError:
            given = None
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode, given

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()


def _answering(answer: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    answer.send(work(*arguments))
