"""Rings of ranks as a diagnosis reads them, made without processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.recorder.ring import CallSite, Operation, RingContent, RingHeader, StepTimes, runs_of

WORLD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A collective that a rank asks for; of a message the other rank is `peer`."""

    line: int
    name: str = "all_reduce"
    group: Sequence[int] = tuple(range(WORLD))
    size: int = 32
    peer: int = -1


def ring(
    rank: int,
    steps: Sequence[Sequence[Asked]],
    *,
    is_open: bool = False,
    times: Sequence[StepTimes] = (),
    node: str = "",
) -> RingContent:
    """The ring of a rank that has asked for these in each step; in the last one it still is if `is_open`."""
    counts: dict[tuple[tuple[int, ...], int, bool], int] = {}
    operations = []
    for step, asked in enumerate(steps):
        for each in asked:
            key = (tuple(each.group), each.peer, "send" in each.name)
            counts[key] = counts.get(key, 0) + 1
            number = len(operations) + 1
            operations.append(
                Operation(
                    number=number,
                    site=CallSite(
                        name=each.name,
                        group=f"group {'-'.join(map(str, each.group))}",
                        ranks=runs_of(each.group),
                        phase="forward",
                        file="trainer/run/step.py",
                        line=each.line,
                        function="train_step",
                    ),
                    peer=each.peer,
                    step=step,
                    group_number=counts[key],
                    size=each.size,
                    enter=number + rank * 100.0,
                    exit=number + 0.5 + rank * 100.0,
                )
            )
    if is_open:
        last = operations[-1]
        names = Operation.__slots__
        operations[-1] = Operation(**{**{name: getattr(last, name) for name in names}, "exit": None})
    header = RingHeader(
        rank=rank,
        world_size=WORLD,
        attempt=1,
        node=node or f"node-{rank // 2}",
        pid=100 + rank,
        thread=0x7F00 + rank,
        device="cpu",
        num_operations=2048,
        num_steps=512,
        wall=0.0,
    )
    return RingContent(header=header, operations=tuple(operations), steps=tuple(times))


def times(step: int, forward: float, waiting: float = 0.1) -> StepTimes:
    """A step in which forward took so much own work."""
    return StepTimes(
        step=step, own=(0.0, forward, 0.01, 0.2, 0.02, 0.05, 0.0), waiting=(0.0, waiting) + (0.0,) * 5
    )
