"""What a plan expects of the traced recipe on the traced device, as whoever has the plan gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Peaks(NamedTuple):
    """What a device can do at most: operations a second by dtype, bytes of its memory a second."""

    device: str
    flops: Mapping[str, float]
    memory_bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraffic:
    """Communication of one kind of a GPU in a step: bytes sent, collectives, seconds on the wire."""

    axis: str
    what: str
    num: float
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Seconds of a step on `device`, as the plan has them. `hidden_share`: of communication, None without any."""

    device: str
    step_seconds: float
    computing: float
    communication: float
    exposed: float
    idle: float
    hidden_share: float | None
    traffic: Sequence[ExpectedTraffic]
