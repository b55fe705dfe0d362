"""What the traces of all ranks come to: communication hidden and exposed, kernels beside their roofline, idle
time, and what the plan expects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.evidence.profiles.expected import Expected, Peaks
from trainer.evidence.profiles.gaps import IdleGap, gaps_of
from trainer.evidence.profiles.intervals import Intervals, union
from trainer.evidence.profiles.late import Waits, waits_of
from trainer.evidence.profiles.rank_trace import Message, RankTrace, Work
from trainer.evidence.profiles.work import SHORT

NUM_KERNELS = 10
"""Kernels that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """Where the time of a rank's device went, seconds of all steps: `seconds` = computing + exposed + copying +
    idle. `communication` is when at least one collective ran, `hidden` the part of it beside which kernels
    computed; `waiting` the part of `exposed` in which another rank had not come yet, None where ranks cannot be
    compared."""

    rank: int
    host_name: str
    device: str
    seconds: float
    computing: float
    communication: float
    hidden: float
    exposed: float
    waiting: float | None
    copying: float
    idle: float
    waited_for: Mapping[int, float]
    gaps: Sequence[IdleGap]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One kind of collective, the mean of ranks, in all steps: how many, bytes that a rank sends on a ring (None:
    not known), seconds from begin to end of each, and of these beside computing and not. `waiting`: of
    `exposed`, before the last rank had come (None: not known)."""

    name: str
    num: float
    num_bytes: float | None
    seconds: float
    hidden: float
    exposed: float
    waiting: float | None

    @property
    def hidden_share(self) -> float:
        """Of its seconds, 0 to 1."""
        return self.hidden / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel, the mean of ranks, in all steps. `share` of the seconds of all kernels that compute.
    `flops` and `num_bytes` (the least that it must move) of its runs whose shapes are known;
    `roofline_share`: the seconds that the device's peaks allow for these over those that they took (None: not
    known), `bound` by what."""

    name: str
    operator: str
    num: float
    seconds: float
    share: float
    flops: float | None
    num_bytes: float | None
    bound: str | None
    roofline_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that `sluice train profile` shows. `tool`: what wrote the traces; `num_steps`: None where they do not
    say; `peaks` names the device whose peaks the roofline is made of, None without one."""

    output: str
    attempt: int | None
    tool: str
    first_step: int | None
    num_steps: int | None
    device: str
    peaks: str | None
    ranks: Sequence[RankTime]
    collectives: Sequence[CollectiveTime]
    kernels: Sequence[KernelTime]
    expected: Expected | None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def hidden_share(self) -> float | None:
        """Of the communication of all ranks, what computing hides; None without communication."""
        whole = sum(rank.communication for rank in self.ranks)
        return sum(rank.hidden for rank in self.ranks) / whole if whole else None

    def mean(self, part: str) -> float:
        """A field of `RankTime`, the mean of ranks, seconds of a step where the number of steps is known."""
        return float(np.mean([getattr(rank, part) or 0.0 for rank in self.ranks])) / (self.num_steps or 1)


def profile_of(
    traces: Sequence[RankTrace],
    peaks: Peaks | None,
    expected: Expected | None,
    *,
    output: str,
    attempt: int | None,
    tool: str,
    notes: Sequence[str] = (),
) -> Profile:
    """The profile of some ranks; `peaks` bound the kernels."""
    waits = waits_of(traces)
    steps = {trace.num_steps for trace in traces}
    firsts = {trace.first_step for trace in traces}
    return Profile(
        output=output,
        attempt=attempt,
        tool=tool,
        first_step=firsts.pop() if len(firsts) == 1 else None,
        num_steps=steps.pop() if len(steps) == 1 else None,
        device=" and ".join(sorted({trace.device for trace in traces})),
        peaks=None if peaks is None else peaks.device,
        ranks=[_rank_time(trace, waits) for trace in traces],
        collectives=_collectives(traces, waits),
        kernels=_kernels(traces, peaks),
        expected=expected,
        notes=notes,
    )


def _rank_time(trace: RankTrace, waits: Waits | None) -> RankTime:
    whole = union([0], [trace.end - trace.begin])
    computing, copying = trace.activity.computing.both(whole), trace.activity.copying.both(whole)
    communication = _union_of(trace.activity.messages).both(whole)
    hidden = communication.both(computing)
    exposed = communication.minus(computing)
    copies = copying.minus(computing).minus(communication)
    idle = whole.minus(computing).minus(communication).minus(copying)
    late = None if waits is None else waits.of_rank.get(trace.rank)
    return RankTime(
        rank=trace.rank,
        host_name=trace.host_name,
        device=trace.device,
        seconds=whole.length / 1e9,
        computing=computing.length / 1e9,
        communication=communication.length / 1e9,
        hidden=hidden.length / 1e9,
        exposed=exposed.length / 1e9,
        waiting=None if late is None else late.exposed.length / 1e9,
        copying=copies.length / 1e9,
        idle=idle.length / 1e9,
        waited_for={} if late is None else late.by_rank,
        gaps=gaps_of(trace, idle),
    )


def _union_of(messages: Sequence[Message]) -> Intervals:
    return union([one.start for one in messages], [one.end for one in messages])


def _collectives(traces: Sequence[RankTrace], waits: Waits | None) -> list[CollectiveTime]:
    """By name, the most exposed seconds first."""
    names = sorted({message.name for trace in traces for message in trace.activity.messages})
    found = []
    for name in names:
        num, seconds, hidden, waiting = 0, 0, 0, 0.0
        sent: float | None = 0.0
        for trace in traces:
            own = [message for message in trace.activity.messages if message.name == name]
            starts = np.array([message.start for message in own], dtype=np.int64)
            ends = np.array([message.end for message in own], dtype=np.int64)
            num += len(own)
            seconds += int((ends - starts).sum())
            hidden += int(trace.activity.computing.within(starts, ends).sum())
            known = [message.num_bytes for message in own if message.num_bytes is not None]
            sent = None if sent is None or len(known) < len(own) else sent + sum(known)
            if waits is not None and trace.rank in waits.of_rank:
                waiting += waits.of_rank[trace.rank].by_name.get(name, 0.0)
        found.append(
            CollectiveTime(
                name=name,
                num=num / len(traces),
                num_bytes=None if sent is None else sent / len(traces),
                seconds=seconds / 1e9 / len(traces),
                hidden=hidden / 1e9 / len(traces),
                exposed=(seconds - hidden) / 1e9 / len(traces),
                waiting=None if waits is None else waiting / len(traces),
            )
        )
    return sorted(found, key=lambda one: (-one.exposed, one.name))


def _kernels(traces: Sequence[RankTrace], peaks: Peaks | None) -> list[KernelTime]:
    by_name: dict[str, list[Work]] = defaultdict(list)
    for trace in traces:
        for work in trace.activity.works:
            by_name[work.name].append(work)
    whole = sum(work.duration for own in by_name.values() for work in own)
    longest = sorted(by_name, key=lambda name: (-sum(work.duration for work in by_name[name]), name))
    return [_kernel(name, by_name[name], whole, len(traces), peaks) for name in longest[:NUM_KERNELS]]


def _kernel(name: str, works: Sequence[Work], whole: int, num_ranks: int, peaks: Peaks | None) -> KernelTime:
    duration = sum(work.duration for work in works)
    flops = [work.flops for work in works if work.flops is not None]
    moved = [work.num_bytes for work in works if work.num_bytes is not None]
    computed = stored = taken = least = 0.0
    for work in works:
        bounds = None if peaks is None else _bounds(work, peaks)
        if bounds is not None and work.duration:
            computed, stored = computed + bounds[0], stored + bounds[1]
            least, taken = least + max(bounds), taken + work.duration / 1e9
    operators = {work.operator for work in works if work.operator}
    return KernelTime(
        name=name,
        operator=operators.pop() if len(operators) == 1 else "",
        num=len(works) / num_ranks,
        seconds=duration / 1e9 / num_ranks,
        share=duration / whole if whole else 0.0,
        flops=sum(flops) / num_ranks if flops else None,
        num_bytes=sum(moved) / num_ranks if moved else None,
        bound=None if not taken else "arithmetic" if computed >= stored else "memory",
        roofline_share=least / taken if taken else None,
    )


def _bounds(work: Work, peaks: Peaks) -> tuple[float, float] | None:
    """Seconds that arithmetic and memory need at least. None where the shapes are not known, or the device's
    peak in this dtype."""
    if work.num_bytes is None or not peaks.memory_bandwidth:
        return None
    if work.flops is None:
        return 0.0, work.num_bytes / peaks.memory_bandwidth
    peak = peaks.flops.get(SHORT.get(work.dtype, ""))
    return None if peak is None else (work.flops / peak, work.num_bytes / peaks.memory_bandwidth)
