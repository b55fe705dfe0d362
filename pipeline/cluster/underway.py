"""How much is done of the units under way: a unit that takes long tells now and then, for the line of progress.

In a run without Ray it tells this process. On Ray it tells a board, an actor that the run makes once its first
line is due: short runs have none. What is told shapes no result, and may be lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ray.actor import ActorHandle

EVERY_SECONDS: Final = 5.0
"""A unit tells so often, for the first time when it has taken as long."""
_PATIENCE_SECONDS: Final = 2.0
_BOARD: Final = "sluice-units-under-way"

_here: dict[str, float] = {}
_boards: dict[str, ActorHandle] = {}


class UnitProgress:
    """What a unit tells of itself. `unit`: its marker."""

    def __init__(self, unit: str) -> None:
        self._unit, self._told_at = unit, time.monotonic()

    def tell(self, share: float) -> None:
        """This share of the unit is done; call it as often as there is something new."""
        now = time.monotonic()
        if now - self._told_at < EVERY_SECONDS:
            return
        self._told_at, share = now, min(1.0, max(0.0, share))
        _here[self._unit] = share
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized() and (board := _board_of_the_run(ray)) is not None:
            board.tell.remote(self._unit, share)


def reported_shares(*, on_ray: bool) -> Mapping[str, float]:
    """By the marker of a unit, what it told last; one that is finished may still be in it."""
    if not on_ray:
        return dict(_here)
    import ray

    if not ray.is_initialized():
        return {}
    job = ray.get_runtime_context().get_job_id()
    if job not in _boards:  # kept, since an actor whose handles are gone ends
        board = ray.remote(_Board).options(name=_BOARD, get_if_exists=True, num_cpus=0, max_restarts=-1)
        _boards[job] = board.remote()
    try:
        shares: Mapping[str, float] = ray.get(_boards[job].shares.remote(), timeout=_PATIENCE_SECONDS)
    except ray.exceptions.RayError:  # it starts, or its node is gone: the next line knows more
        return {}
    return shares


class _Board:
    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def tell(self, unit: str, share: float) -> None:
        self._shares[unit] = share

    def shares(self) -> Mapping[str, float]:
        return self._shares


def _board_of_the_run(ray: Any) -> Any:
    """The board, None as long as the run has made none."""
    job = ray.get_runtime_context().get_job_id()
    if job not in _boards:
        try:
            _boards[job] = ray.get_actor(_BOARD)
        except ValueError:
            return None
    return _boards[job]
