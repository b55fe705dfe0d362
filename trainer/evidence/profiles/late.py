"""Which rank the others waited for: a collective begins for all when the last rank has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.evidence.profiles.intervals import Intervals, union
from trainer.evidence.profiles.rank_trace import Message, RankTrace

_Key = tuple[str, tuple[int, ...], str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits:
    """Seconds in which a rank was in a collective that another rank had not come to, and computed nothing: by
    that rank, and by the name of the collective."""

    exposed: Intervals
    by_rank: Mapping[int, float]
    by_name: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Of each rank."""

    of_rank: Mapping[int, RankWaits]


def waits_of(traces: Sequence[RankTrace]) -> Waits | None:
    """None where no collective can be found again on all its ranks. Clocks of different hosts are set by the
    ends of collectives, which come for all ranks at once."""
    by_rank = {trace.rank: _keyed(trace) for trace in traces}
    if len(by_rank) < 2:
        return None
    shared = [
        key
        for key in next(iter(by_rank.values()))
        | {key: one for keyed in by_rank.values() for key, one in keyed.items()}
        if len(key[1]) > 1 and all(rank in by_rank and key in by_rank[rank] for rank in key[1])
    ]
    if not shared:
        return None
    clocks = _clocks(traces, by_rank, shared)
    starts: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    causes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for key in shared:
        came = {rank: by_rank[rank][key].start + clocks[rank] for rank in key[1]}
        last = max(key[1], key=lambda rank: (came[rank], rank))
        for rank in key[1]:
            own = by_rank[rank][key]
            until = min(own.end, came[last] - clocks[rank])
            if rank != last and until > own.start:
                starts[rank].append(own.start)
                ends[rank].append(until)
                causes[rank].append((last, key[0]))
    return Waits(
        of_rank={
            trace.rank: _rank_waits(
                trace, np.array(starts[trace.rank], dtype=np.int64), np.array(ends[trace.rank], dtype=np.int64),
                causes[trace.rank],
            )
            for trace in traces
        }
    )  # fmt: skip


def _keyed(trace: RankTrace) -> dict[_Key, Message]:
    """Each collective by what all its ranks call it alike: name, ranks, group, and its number among those."""
    counts: dict[tuple[str, tuple[int, ...], str], int] = defaultdict(int)
    found: dict[_Key, Message] = {}
    for message in sorted(trace.activity.messages, key=lambda one: one.start):
        if message.members and message.name != "send, receive":
            kind = (message.name, message.members, message.group)
            found[(*kind, counts[kind])] = message
            counts[kind] += 1
    return found


def _clocks(
    traces: Sequence[RankTrace], by_rank: Mapping[int, Mapping[_Key, Message]], shared: Sequence[_Key]
) -> dict[int, int]:
    """What is added to the times of each rank to compare them with those of the first: the traces' begins on one
    host, the median of the differences between ends elsewhere."""
    first = traces[0]
    clocks = {}
    for trace in traces:
        clocks[trace.rank] = trace.begin - first.begin
        if trace.host_name != first.host_name:
            both = [key for key in shared if first.rank in key[1] and trace.rank in key[1]]
            apart = [by_rank[first.rank][key].end - by_rank[trace.rank][key].end for key in both]
            clocks[trace.rank] = int(np.median(apart)) if apart else clocks[trace.rank]
    return clocks


def _rank_waits(
    trace: RankTrace,
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    ends: np.ndarray[tuple[int], np.dtype[np.int64]],
    causes: Sequence[tuple[int, str]],
) -> RankWaits:
    idle = (ends - starts) - trace.activity.computing.within(starts, ends)
    by_rank: dict[int, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    for (rank, name), length in zip(causes, idle.tolist(), strict=True):
        by_rank[rank] += length / 1e9
        by_name[name] += length / 1e9
    return RankWaits(
        exposed=union(starts, ends).minus(trace.activity.computing),
        by_rank=dict(sorted(by_rank.items(), key=lambda pair: -pair[1])),
        by_name=dict(by_name),
    )
