"""How the processes of one of torchrun's starts find each other on its store, which keeps what earlier starts
wrote.

torchrun makes that store once for all restarts and keeps no start's keys apart (`_create_c10d_store` of torch
2.13), so a process of the third start may connect to addresses of the first. The number of restarts
(TORCHELASTIC_RESTART_COUNT) would not tell them apart either: the agent of each node counts its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol

_NEWEST: Final = "sluice/start"
_LONGEST_PAUSE: Final = 0.5
_TELL_AFTER_SECONDS: Final = 10.0
_NAMED: Final = 8
"""So many ranks that have not come are named."""


class MeetingStore(Protocol):
    """What is asked of a store of torch's."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


def meet(
    store: MeetingStore, rank: int, world_size: int, *, seconds: float, say: Callable[[str], None]
) -> str:
    """The prefix of the keys of this start: one for all its processes, and another than that of each start
    before it. `say` tells after some seconds for whom the others wait.

    TimeoutError where not all have come after `seconds`. All processes of earlier starts must have ended,
    which torchrun sees to."""
    began = time.monotonic()
    told, pause = False, 0.01
    own = uuid.uuid4().hex
    if rank == 0:
        store.set(_NEWEST, own)
    while True:
        start = store.get(_NEWEST).decode() if store.check([_NEWEST]) else None
        if start is not None:
            # One before this one's rank 0 has come. Under it either an earlier process of this rank is here, or
            # it is not, and then that start's rank 0, which has ended, never found it whole.
            is_mine = store.compare_set(_arrival_key(start, rank), "", own).decode() == own
            if rank == 0 and store.check([_arrival_key(start, each) for each in range(world_size)]):
                store.set(_complete_key(start), "")
            if is_mine and store.check([_complete_key(start)]):
                return f"sluice/{start}"
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(
                f"rank {rank} of {world_size} waited {seconds:.0f} s for the processes that torchrun started"
                f" with it, and {_missing(store, start, rank, world_size)}: look at what these say, or whether"
                " their nodes reach MASTER_ADDR; a longer train.faults.watchdog_seconds waits longer"
            )
        if waited > _TELL_AFTER_SECONDS and not told and rank in (0, 1):
            told = True
            missing = _missing(store, start, rank, world_size)
            say(f"rank {rank}: after {waited:.0f} s {missing}; it waits for {seconds:.0f} s at most")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _missing(store: MeetingStore, start: str | None, rank: int, world_size: int) -> str:
    if rank or start is None:
        return "rank 0 has not found all of them"
    ranks = [each for each in range(world_size) if not store.check([_arrival_key(start, each)])]
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    named = ", ".join(map(str, ranks[:_NAMED]))
    return f"{len(ranks)} {'has' if len(ranks) == 1 else 'have'} not come (rank {named}{more})"


def _arrival_key(start: str, rank: int) -> str:
    return f"sluice/{start}/came/{rank}"


def _complete_key(start: str) -> str:
    return f"sluice/{start}/whole"
