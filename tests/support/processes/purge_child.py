"""A purge that kills its own process at a chosen act."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import lineage.purge.execution
from lineage.purge.execution import apply
from lineage.purge.plan import PurgeMatch
from lineage.storage.folder import Folder
from tests.support.outputs.small_out.hooks import apply_hooks, ordered, plan_hooks


class Countdown:
    """Counts acts; the process dies by SIGKILL before or after the chosen one."""

    def __init__(self, fatal: int) -> None:
        self.acts, self._fatal = 0, fatal

    def tick(self) -> None:
        if self.acts == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        self.acts += 1


def count_acts(countdown: Countdown) -> None:
    """Let every act that changes the OUT tick before and after."""
    write = Folder.writing

    @contextmanager
    def writing(self: Folder, name: str) -> Iterator[IO[bytes]]:
        countdown.tick()
        with write(self, name) as file:
            yield file
            countdown.tick()
        countdown.tick()

    def ticking(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*arguments: Any, **named: Any) -> Any:
            countdown.tick()
            result = act(*arguments, **named)
            countdown.tick()
            return result

        return acting

    Folder.writing = writing  # type: ignore[method-assign]
    for name in ("remove", "remove_tree"):
        setattr(Folder, name, ticking(getattr(Folder, name)))
    lineage.purge.execution.append = ticking(lineage.purge.execution.append)


def purge_killed(url: str, doc_id: str, fatal: int, wait_seconds: float) -> int:
    """Purge a document of the output at `url`, in a process of its own; gives how many acts there were.
    `fatal`: the act at which it dies, -1 for never; `wait_seconds`: for another holder."""
    countdown = Countdown(fatal)
    count_acts(countdown)
    order = ordered(PurgeMatch(kind="doc", values=(doc_id,)))
    apply(Folder(url), order, plan_hooks(), apply_hooks(), wait_seconds=wait_seconds)
    return countdown.acts
