"""The last operations of the ranks on one axis of time, as Perfetto and chrome://tracing read it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from statistics import median
from typing import Final

from trainer.recorder.diagnosis.collectives import describe
from trainer.recorder.ring import Operation, RingContent

_TOGETHER: Final = frozenset(
    {"all_reduce", "barrier", "all_gather", "all_gather_single", "all_to_all_single"}
)
"""Collectives that end on all their ranks at about the same time, since each needs what every other
brings."""
_MOST_RANKS: Final = 128


def timeline(rings: Mapping[int, RingContent]) -> bytes:
    """A gzipped trace of the first ranks: a process each, a line for each of its groups. Clocks of nodes
    differ: ranks are moved so that their common collectives end together."""
    shown = {rank: ring for rank, ring in sorted(rings.items())[:_MOST_RANKS] if ring.operations}
    if not shown:
        return gzip.compress(b'{"traceEvents": []}', mtime=0)
    offsets = clock_offsets(shown)
    start = min(ring.operations[0].enter + offsets[rank] for rank, ring in shown.items())
    events: list[dict[str, object]] = []
    for rank, ring in shown.items():
        last = max(each.exit or each.enter for each in ring.operations)
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": _name(rank, ring)}})
        lanes: dict[str, int] = {}
        for each in ring.operations:
            lane = lanes.setdefault(each.site.group, len(lanes))
            begin = (each.enter + offsets[rank] - start) * 1e6
            events.append({
                "ph": "X",
                "pid": rank,
                "tid": lane,
                "name": each.site.name + ("" if each.exit is not None else " (not ended)"),
                "ts": round(begin, 1),
                "dur": round(((each.exit if each.exit is not None else last) - each.enter) * 1e6, 1),
                "args": {"operation": describe(each), "step": each.step, "bytes": each.size},
            })  # fmt: skip
        events += [
            {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": group}}
            for group, lane in lanes.items()
        ]
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), mtime=0)


def clock_offsets(rings: Mapping[int, RingContent]) -> dict[int, float]:
    """Seconds to add to the times of each rank, so that they are those of the first one."""
    ends = {
        rank: {_key(each): each.exit for each in ring.operations if _ends_together(each)}
        for rank, ring in rings.items()
    }
    first = next(iter(rings))
    offsets = {}
    for rank, ring in rings.items():
        common = [
            of_first - mine
            for key, mine in ends[rank].items()
            if mine is not None and (of_first := ends[first].get(key)) is not None
        ]
        # Without a common collective the time of day is all that is known.
        offsets[rank] = median(common) if common else ring.header.wall - rings[first].header.wall
    return offsets


def _ends_together(operation: Operation) -> bool:
    return operation.exit is not None and operation.site.name in _TOGETHER


def _key(operation: Operation) -> tuple[object, ...]:
    return operation.site.group, operation.site.ranks, operation.group_number


def _name(rank: int, ring: RingContent) -> str:
    return f"rank {rank} on {ring.header.node}"
