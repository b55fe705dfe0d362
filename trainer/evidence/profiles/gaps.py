"""Idle time of a device, and who caused it."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.evidence.profiles.intervals import Intervals
from trainer.evidence.profiles.rank_trace import Named, RankTrace

Cause = Literal["data loading", "synchronisation", "host", "dependency", "end", "unknown"]
CAUSES: dict[Cause, str] = {
    "data loading": "the host was still loading the batch",
    "synchronisation": "the host had waited for the device and launched nothing meanwhile",
    "host": "the host launched the next kernel too late",
    "dependency": "the next kernel was launched already and waited for another stream",
    "end": "nothing was launched any more until the end of the trace",
    "unknown": "the trace does not say when the next kernel was launched",
}
"""Why a device is idle, in words."""
CPU_CAUSES: dict[Cause, str] = {
    **CAUSES,
    "host": "Python ran between two operators",
    "synchronisation": "the process waited where no collective ran",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGap:
    """Idle time with one cause, in a phase, while the host did `during` ("": nothing that has a name): seconds in
    all steps, in `num` stretches."""

    cause: Cause
    phase: str
    during: str
    seconds: float
    num: int


def gaps_of(trace: RankTrace, idle: Intervals) -> list[IdleGap]:
    """The idle stretches of a rank, by cause, the longest first."""
    starts = [one.start for one in trace.activity.starts]
    phases = sorted(trace.phases)
    waits = sorted(trace.activity.waits)
    found: dict[tuple[Cause, str, str], list[int]] = defaultdict(list)
    asked: list[tuple[str, int, int, Cause]] = []
    for begin, end in idle.bounds_N2.tolist():
        next_start = bisect.bisect_left(starts, end)
        thread, cause = "", _cause(trace, begin, end, next_start, waits)
        if next_start < len(starts):
            thread = trace.activity.starts[next_start].thread
        asked.append((thread, begin, end, cause))
    doing = _doing(trace, [(thread, (begin + end) // 2) for thread, begin, end, _ in asked])
    for (_, begin, end, cause), during in zip(asked, doing, strict=True):
        phase = _at(phases, (begin + end) // 2)
        found[_of_host(cause, phase, during, on_gpu=trace.activity.on_gpu), phase, during].append(end - begin)
    gaps = [
        IdleGap(cause=cause, phase=phase, during=during, seconds=sum(own) / 1e9, num=len(own))
        for (cause, phase, during), own in found.items()
    ]
    return sorted(gaps, key=lambda gap: (-gap.seconds, gap.cause, gap.phase, gap.during))


def _cause(trace: RankTrace, begin: int, end: int, next_start: int, waits: Sequence[Named]) -> Cause:
    if next_start == len(trace.activity.starts):
        return "end"
    launched = trace.activity.starts[next_start].launched
    if launched is None:
        return "unknown"
    if launched < begin:
        return "dependency"
    # A wait that ends in the gap: the host came back when the device was empty.
    place = bisect.bisect_left(waits, (begin,))
    before = waits[max(0, place - 1) :]
    for wait in before:
        if wait.start > end:
            break
        if begin <= wait.end <= launched:
            return "synchronisation"
    return "host"


def _of_host(cause: Cause, phase: str, during: str, *, on_gpu: bool) -> Cause:
    """The cause, where it is the host's: what the host was about tells more."""
    if cause in ("host", "synchronisation") and phase == "data loading":
        return "data loading"
    if cause == "host" and not on_gpu and "wait" in during.lower():
        return "synchronisation"
    return cause


def _at(named: Sequence[Named], time: int) -> str:
    """The name of the stretch that holds a time."""
    place = bisect.bisect_right(named, (time, 1 << 62, "")) - 1
    return named[place].name if place >= 0 and named[place].end > time else ""


def _doing(trace: RankTrace, questions: Sequence[tuple[str, int]]) -> Iterator[str]:
    """The innermost operation of the host at each (thread, time); thread "" is the one with the most
    operations."""
    busiest = max(trace.activity.host, key=lambda thread: len(trace.activity.host[thread]), default="")
    by_thread: dict[str, list[int]] = defaultdict(list)
    for thread, time in questions:
        by_thread[thread or busiest].append(time)
    answers = {
        thread: dict(zip(times, _innermost(trace.activity.host.get(thread, ()), times), strict=True))
        for thread, times in ((thread, sorted(set(times))) for thread, times in by_thread.items())
    }
    for thread, time in questions:
        yield answers[thread or busiest][time]


def _innermost(operations: Sequence[Named], times: Sequence[int]) -> Iterator[str]:
    order = sorted(operations, key=lambda one: (one.start, -one.end))
    stack: list[Named] = []
    place = 0
    for time in times:
        while place < len(order) and order[place].start <= time:
            while stack and stack[-1].end <= order[place].start:
                stack.pop()
            stack.append(order[place])
            place += 1
        while stack and stack[-1].end <= time:
            stack.pop()
        yield stack[-1].name if stack else ""
