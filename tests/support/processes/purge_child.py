"""A purge that kills its own process at a chosen act.

`python -m tests.support.processes.purge_child OUT DOC_ID ACT WAIT`.

ACT -1: never; then it prints how many acts there were. WAIT: seconds to wait for another holder."""

from __future__ import annotations

import os
import signal
import sys
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


def main() -> None:
    url, doc_id, fatal, wait = sys.argv[1:]
    countdown = Countdown(int(fatal))
    count_acts(countdown)
    order = ordered(PurgeMatch(kind="doc", values=(doc_id,)))
    apply(Folder(url), order, plan_hooks(), apply_hooks(), wait_seconds=float(wait))
    print(countdown.acts)


if __name__ == "__main__":
    main()
