"""SIGUSR2 to a process of a training run while no recorder answers it: the stacks go to stderr. No torch here."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

_STDERR: Final = 2


def stacks_to_stderr() -> None:
    """From now on SIGUSR2 writes where each thread is to stderr, and the process goes on: without a handler
    the signal would end it. A `Recorder` answers it while there is one."""
    faulthandler.register(signal.SIGUSR2, file=_STDERR, all_threads=True)
