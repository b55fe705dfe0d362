"""A diagnosis in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trainer.recorder.diagnosis.collectives import Absence, Mismatch, describe, place
from trainer.recorder.diagnosis.diagnose import Diagnosis
from trainer.telemetry.stragglers import Straggler

_SHOWN: Final = 8


def diagnosis_lines(found: Diagnosis) -> Iterator[str]:
    """All of it, a line each."""
    yield (
        f"Attempt {found.recorders.attempt}: the recorders of {len(found.recorders.rings):,} of"
        f" {found.world_size:,} ranks"
    )
    if found.silent:
        yield f"  none of {named(found.silent)}: killed with its node, or on a node that nobody has read yet"
    for name, why in found.recorders.unreadable.items():
        yield f"  {name} cannot be read: {why}"
    for mismatch in found.mismatches:
        yield from mismatch_lines(mismatch, found)
    for absence in found.causes:
        yield from absence_lines(absence, found)
    if (more := len(found.absences) - len(found.causes)) > 0:
        yield f"Others wait in {more:,} more operations for these, or for ranks that wait for them"
    if not found.is_stopped:
        yield "No rank is missing from a collective, and none brought another one"
    for rank, why in sorted(found.errors.items())[:_SHOWN]:
        yield f"  rank {rank} ended: {why}"
    for straggler in found.stragglers:
        yield straggler_line(straggler)
    if not found.stragglers:
        yield "No rank is slower than others at the same work over two windows of steps"
    if found.times:
        yield "Seconds of a step (medians), own work and waiting, the most own work first:"
        for each in sorted(found.times, key=lambda each: each.own_seconds, reverse=True)[:_SHOWN]:
            phase = max(each.own, key=lambda phase: each.own[phase])
            yield (
                f"  rank {each.rank} on {each.node}: own {each.own_seconds:.4f} (most in {phase}, "
                f"{each.own[phase]:.4f}), waiting {each.waiting_seconds:.4f}"
            )


def absence_lines(absence: Absence, found: Diagnosis) -> Iterator[str]:
    """Who never came to which collective, and where each of them is."""
    yield f"{_capital(named(absence.absent))} never came to {describe(absence.operation)}"
    yield f"  {named(absence.waiting)} {'waits' if len(absence.waiting) == 1 else 'wait'} there"
    for rank in absence.absent[:_SHOWN]:
        yield f"  {whereabouts(rank, absence, found)}"


def whereabouts(rank: int, absence: Absence, found: Diagnosis) -> str:
    """Where an absent rank is, as far as it is known."""
    node = f" on {found.node(rank)}" if found.node(rank) else ""
    if rank in absence.skipped:
        return f"rank {rank}{node} left it out: it is in {describe(absence.skipped[rank])}"
    if rank in found.stacks and found.stacks[rank].frames:
        stack = found.stacks[rank]
        inner = stack.frames[0]
        ours = stack.in_trainer
        return f"rank {rank}{node} is at {ours or inner}" + (
            f", in {inner}" if ours not in (None, inner) else ""
        )
    ring = found.recorders.rings.get(rank)
    if ring is None or not ring.operations:
        return f"rank {rank}{node} gives no sign of life: it left no recorder"
    last = ring.operations[-1]
    return (
        f"rank {rank}{node} wrote no stack: killed, or stopped by a signal; its last operation was"
        f" {last.site.name} of step {last.step} at {place(last.site)}"
    )


def mismatch_lines(mismatch: Mismatch, found: Diagnosis) -> Iterator[str]:
    """Which collectives met that do not fit."""
    yield f"Ranks came with different collectives: {named(mismatch.ranks)} with {describe(mismatch.usual)}"
    for rank, operation in list(mismatch.others.items())[:_SHOWN]:
        node = f" on {found.node(rank)}" if found.node(rank) else ""
        left_out = "; it left the other one out" if rank in mismatch.skipped else ""
        yield f"  rank {rank}{node} with {describe(operation)}{left_out}"


def straggler_line(straggler: Straggler) -> str:
    """Who was slow, in which phase and by how much."""
    over = "was slow and has caught up" if straggler.ended else "is slow"
    slow = straggler.seconds / straggler.usual if straggler.usual else float("inf")
    return (
        f"Rank {straggler.rank} on {straggler.node} {over}: {straggler.phase} took {slow:.2f} times as long"
        f" as on others at the same work ({straggler.seconds:.4f} s a step beside {straggler.usual:.4f}),"
        f" since step {straggler.since_step}"
    )


def named(ranks: Sequence[int]) -> str:
    """Some ranks in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _SHOWN:,} more" if len(ranks) > _SHOWN else ""
    return f"ranks {', '.join(map(str, ranks[:_SHOWN]))}{more}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
