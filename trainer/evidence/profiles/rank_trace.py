"""What the trace of one rank comes to, whichever tool wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.evidence.profiles.intervals import Intervals


class TraceError(ValueError):
    """A file is no trace that can be read, or there is none."""


class Work(NamedTuple):
    """One run of a kernel: its name, the operator that started it, nanoseconds of its own. `flops` and
    `num_bytes`: what it computes, and the least that it must move, from the operator's shapes; None where they
    do not tell."""

    name: str
    operator: str
    duration: int
    flops: float | None
    num_bytes: float | None
    dtype: str


class Message(NamedTuple):
    """One collective or message of this rank, from its begin to its end, nanoseconds. `members`: the ranks that
    take part, in the group of this name; none where the trace does not say. `num_bytes`: what the rank sends
    on a ring, None where the size of the group or of the data is not known."""

    name: str
    start: int
    end: int
    group: str
    members: tuple[int, ...]
    num_bytes: float | None


class Started(NamedTuple):
    """The device begins something at `start`. `launched`: when the host asked for it (None: unknown), and the
    thread that did."""

    start: int
    launched: int | None
    thread: str


class Named(NamedTuple):
    """A stretch of time with a name: a phase of the step, or an operation of the host."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a device and its host did, times from the begin of the trace. `computing` is when at least one kernel
    ran that is no communication, `copying` when the device copied memory. `host`: operations of the host by
    thread; `waits`: its waits for the device."""

    computing: Intervals
    copying: Intervals
    works: Sequence[Work]
    messages: Sequence[Message]
    starts: Sequence[Started]
    waits: Sequence[Named]
    host: Mapping[str, Sequence[Named]]
    on_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The steps of a trace: [begin, end) in nanoseconds since the epoch. `num_steps`, `first_step`: None where the
    trace does not say. `phases` of the steps, from `begin`."""

    rank: int
    host_name: str
    device: str
    begin: int
    end: int
    first_step: int | None
    num_steps: int | None
    phases: Sequence[Named]
    activity: Activity
