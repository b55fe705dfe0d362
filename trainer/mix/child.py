"""A process that dies with the one that started it: `main(arguments)` of a module, in this process.

    python -m trainer.mix.child PARENT trainer.__main__ /dev/stdin < RECIPE

PARENT is the starter's process id. The kernel kills this process when the thread that started it ends, however it ends,
so an ablation that is killed leaves no run behind. Its checkpoints stand, and the next start goes on from them.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2)."""


def die_with(parent: int) -> None:
    """Be killed when the thread of `parent` that started this process ends; at once if it has ended already. Linux
    only: elsewhere a run outlives a parent that was killed, and is fenced out by the next start."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # Before any import that takes seconds: the parent may die meanwhile.
    die_with(int(sys.argv[1]))
    sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))
