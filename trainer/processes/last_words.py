"""What all of torchrun's processes end with is printed once, by rank 0. The agent's store, which outlives them,
tells the others what it printed."""

from __future__ import annotations

import datetime
import os
import signal
import sys
from typing import Any, Final, cast

import torch.distributed as dist

_WAIT: Final = datetime.timedelta(seconds=10)
"""For the ranks that end too. One that comes later prints by itself, or the agent ends it."""


def print_last(text: str) -> None:
    """Print on stderr why this process ends, unless rank 0 ends with the same text. Under torchrun the ranks
    wait for each other: its agent kills those that are left when one has ended, whatever they would exit with."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        sys.stderr.write(text)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent's, to a process that is ending
    printed = f"sluice/printed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    is_first, is_printed = os.environ["RANK"] == "0", False
    try:
        store = cast(Any, dist).TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, _WAIT
        )
        if not is_first:
            is_printed = store.get(printed).decode() == text  # waits for it
    except dist.DistError:
        store = None
    if not is_printed:
        sys.stderr.write(text)
        sys.stderr.flush()
    if store is not None:
        _wait_for_all(store, printed, text if is_first else None)


def _wait_for_all(store: Any, printed: str, text: str | None) -> None:
    try:
        if text is not None:
            store.set(printed, text)
        if store.add(f"{printed}/ended", 1) == int(os.environ["WORLD_SIZE"]):
            store.set(f"{printed}/all", "")
        store.wait([f"{printed}/all"], _WAIT)
    except dist.DistError:  # some rank is elsewhere, or the agent is gone
        return
