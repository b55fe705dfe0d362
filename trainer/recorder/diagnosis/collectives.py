"""Who never came to which collective, and who came with another one: the rings of all ranks held against each
other.

The n-th collective of a group is the same one on each of its ranks. A rank that has not begun it keeps the
others waiting; a rank whose n-th differs from theirs has left one out, or has another program or shape. A
message is matched by sender, receiver and its number between these two."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer.recorder.ring import CallSite, Operation, RingContent, ranks_of

_SAME_SIZE: Final = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single", "reduce_scatter_single",
})  # fmt: skip
"""Collectives to which every rank brings as many bytes; others may be uneven."""
_SENDS: Final = frozenset({"send", "isend"})
_RECENT_STEPS: Final = 3

_Group = tuple[str, tuple[tuple[int, int, int], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A collective or message that ranks wait in since others never came to it. `skipped`: of the absent
    those that went on past it, with the operation that they are in instead."""

    operation: Operation
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    skipped: Mapping[int, Operation]
    is_cause: bool
    """Whether an absent rank waits for nobody itself, or has gone past it: what is not follows from one that
    is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A collective to which ranks came with different operations: `usual` on `ranks`, and each of `others`,
    by rank. `skipped`: those of the others whose operation is the one that comes next on the rest."""

    usual: Operation
    ranks: tuple[int, ...]
    others: Mapping[int, Operation]
    skipped: tuple[int, ...]


def describe(operation: Operation) -> str:
    """An operation in words."""
    site = operation.site
    to = ""
    if operation.peer >= 0:
        to = f" {'to' if site.name in _SENDS else 'from'} rank {operation.peer}"
    size = "" if operation.size < 0 else f" of {operation.size:,} bytes"
    phase = f", {site.phase}" if site.phase else ""
    return (
        f"{site.name}{to}{size} (number {operation.group_number} of {site.group}, step"
        f" {operation.step}{phase}) at {place(site)}"
    )


def place(site: CallSite) -> str:
    """The line where the trainer asked for an operation."""
    return f"{site.file}:{site.line} in {site.function}" if site.file else "an unknown line"


def absences(rings: Mapping[int, RingContent]) -> list[Absence]:
    """Operations that ranks wait in for others: causes first, and what an absent rank had come to first in
    earlier steps before what it had come to later."""
    collectives, messages = _by_group(rings), _by_messages(rings)
    reached = {
        group: {rank: max(numbers) for rank, numbers in of_ranks.items()}
        for group, of_ranks in collectives.items()
    }
    waits: dict[tuple[object, ...], tuple[Operation, set[int], tuple[int, ...]]] = {}
    for rank, ring in rings.items():
        for operation in ring.operations:
            if operation.exit is not None:
                continue
            absent = (
                _absent_from_group(operation, rings, reached)
                if operation.peer < 0
                else _absent_from_message(operation, rank, messages)
            )
            if absent:
                key = (
                    _group(operation.site),
                    operation.peer,
                    operation.group_number,
                    operation.peer >= 0 and rank,
                )
                waits.setdefault(key, (operation, set(), absent))[1].add(rank)
    waiting_ranks = {rank for _, ranks, _ in waits.values() for rank in ranks}
    found = []
    for operation, ranks, absent in waits.values():
        skipped = _went_past(operation, absent, rings)
        is_cause = bool(skipped) or any(rank not in waiting_ranks for rank in absent)
        found.append(
            Absence(
                operation=operation,
                waiting=tuple(sorted(ranks)),
                absent=absent,
                skipped=skipped,
                is_cause=is_cause,
            )
        )
    return sorted(
        found,
        key=lambda each: (
            not each.is_cause,
            each.operation.step,
            _order(each, rings),
            each.operation.group_number,
        ),
    )


def causes(found: Sequence[Absence]) -> list[Absence]:
    """Of absences in their order the first of each set of ranks that others wait for and that wait for nobody
    themselves: the rest follows from these."""
    waiting = {rank for each in found for rank in each.waiting}
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], Absence] = {}
    for each in found:
        if each.is_cause:
            missed = tuple(rank for rank in each.absent if rank not in waiting or rank in each.skipped)
            first.setdefault((missed, tuple(each.skipped)), each)
    return list(first.values())


def mismatches(rings: Mapping[int, RingContent]) -> list[Mismatch]:
    """The first collective of each group to which its ranks came with different operations."""
    found = []
    for of_ranks in _by_group(rings).values():
        for number in sorted({number for numbers in of_ranks.values() for number in numbers}):
            came = {rank: numbers[number] for rank, numbers in sorted(of_ranks.items()) if number in numbers}
            if (mismatch := _mismatch(came, number, of_ranks)) is not None:
                found.append(mismatch)
                break
    return found


def _mismatch(
    came: Mapping[int, Operation], number: int, of_ranks: Mapping[int, Mapping[int, Operation]]
) -> Mismatch | None:
    kinds = Counter(map(_kind, came.values()))
    lines = Counter(map(_line, came.values()))
    if len(kinds) == 1 and len(lines) == 1:
        return None
    # Of as many on either side those of the first rank are the usual ones.
    ((usual, _), *_), ((usual_line, _), *_) = kinds.most_common(1), lines.most_common(1)
    if len(kinds) > 1:
        alike = [rank for rank, each in came.items() if _kind(each) == usual]
        usual_line = _line(came[alike[0]])
    else:
        alike = [rank for rank, each in came.items() if _line(each) == usual_line]
    others = {rank: each for rank, each in came.items() if rank not in alike}
    next_lines = {_line(of_ranks[rank][number + 1]) for rank in alike if number + 1 in of_ranks[rank]}
    before = _line_after(usual_line, of_ranks, number)
    skipped = tuple(
        rank
        for rank, each in others.items()
        if _line(each) != usual_line and (_line(each) in next_lines or _line(each) == before)
    )
    # Ranks may ask for one collective in two lines, as sender and receiver of a broadcast: that alone is no
    # fault.
    if len(kinds) == 1 and not skipped:
        return None
    return Mismatch(usual=came[alike[0]], ranks=tuple(alike), others=others, skipped=skipped)


def _kind(operation: Operation) -> tuple[str, int]:
    return operation.site.name, operation.size if operation.site.name in _SAME_SIZE else -1


def _line(operation: Operation) -> tuple[str, int]:
    return operation.site.file, operation.site.line


def _line_after(
    line: tuple[str, int], of_ranks: Mapping[int, Mapping[int, Operation]], before: int
) -> tuple[str, int] | None:
    """The line that came after this one in the group when it was last gone through, before operation
    `before`."""
    for numbers in of_ranks.values():
        for number in sorted(numbers, reverse=True):
            if number < before - 1 and _line(numbers[number]) == line and number + 1 in numbers:
                return _line(numbers[number + 1])
    return None


def _group(site: CallSite) -> _Group:
    return site.group, site.ranks


def recent(ring: RingContent) -> Iterator[Operation]:
    """The operations of the last steps, and those that are still under way: what ranks are compared by."""
    last = max((operation.step for operation in ring.operations), default=0)
    return (each for each in ring.operations if each.step > last - _RECENT_STEPS or each.exit is None)


def _by_group(rings: Mapping[int, RingContent]) -> dict[_Group, dict[int, dict[int, Operation]]]:
    """The collectives of each group, by rank and number."""
    found: dict[_Group, dict[int, dict[int, Operation]]] = defaultdict(dict)
    for rank, ring in rings.items():
        for operation in recent(ring):
            if operation.peer < 0 and operation.site.group:
                found[_group(operation.site)].setdefault(rank, {})[operation.group_number] = operation
    return found


def _by_messages(rings: Mapping[int, RingContent]) -> dict[tuple[_Group, int, int, bool], int]:
    """How many messages a rank has sent or asked for: by group, rank, peer and direction."""
    found: dict[tuple[_Group, int, int, bool], int] = {}
    for rank, ring in rings.items():
        for operation in ring.operations:
            if operation.peer >= 0:
                key = (_group(operation.site), rank, operation.peer, operation.site.name in _SENDS)
                found[key] = max(found.get(key, 0), operation.group_number)
    return found


def _absent_from_group(
    operation: Operation, rings: Mapping[int, RingContent], reached: Mapping[_Group, Mapping[int, int]]
) -> tuple[int, ...]:
    of_group = reached.get(_group(operation.site), {})
    members = ranks_of(operation.site.ranks)
    return tuple(
        rank for rank in members if rank not in rings or of_group.get(rank, 0) < operation.group_number
    )


def _absent_from_message(
    operation: Operation, rank: int, messages: Mapping[tuple[_Group, int, int, bool], int]
) -> tuple[int, ...]:
    sends = operation.site.name in _SENDS
    other = messages.get((_group(operation.site), operation.peer, rank, not sends), 0)
    return (operation.peer,) if other < operation.group_number else ()


def _went_past(
    operation: Operation, absent: Sequence[int], rings: Mapping[int, RingContent]
) -> dict[int, Operation]:
    """Of the absent ranks those that are in an operation that comes after this one in a step."""
    found = {}
    for rank in absent:
        ring = rings.get(rank)
        inside = None if ring is None else next((each for each in ring.operations if each.exit is None), None)
        if ring is None or inside is None or inside.step < operation.step:
            continue
        if inside.step > operation.step or _comes_after(ring, operation, inside):
            found[rank] = inside
    return found


def _order(absence: Absence, rings: Mapping[int, RingContent]) -> float:
    """How many operations the absent rank had gone through in a step before until it came to this one;
    infinite where that is not known. Those of other groups may wait for the same rank further on."""
    missing = absence.operation
    orders = [math.inf]
    for ring in (rings[rank] for rank in absence.absent if rank in rings):
        # A message has the waiting rank as its peer there.
        wanted = _wanted(ring, missing, missing.peer if missing.peer < 0 else absence.waiting[0])
        for step in _steps_before(ring, missing.step):
            if wanted in (before := _places(ring, step)):
                orders.append(before.index(wanted))
                break
    return min(orders)


def _wanted(ring: RingContent, missing: Operation, peer: int) -> tuple[_Group, int, int]:
    """The place of the operation that a rank is missed at, as `_places` has it."""
    group = _group(missing.site)
    now = _places(ring, missing.step)
    return group, peer, sum(place[:2] == (group, peer) for place in now)


def _steps_before(ring: RingContent, step: int) -> list[int]:
    return sorted({each.step for each in ring.operations if each.step < step}, reverse=True)


def _comes_after(ring: RingContent, missing: Operation, inside: Operation) -> bool:
    """Whether on this rank, in a step before, `inside` came after the operation that it is missed at, of the
    same step. One line makes many operations of a step (a layer each), so both are known by their group and
    their place among its operations."""
    now = _places(ring, inside.step)
    wanted = _wanted(ring, missing, missing.peer)
    at = now[[each.number for each in ring.operations if each.step == inside.step].index(inside.number)]
    for step in _steps_before(ring, inside.step):
        before = _places(ring, step)
        if wanted in before and at in before:
            return before.index(wanted) < before.index(at)
    return False


def _places(ring: RingContent, step: int) -> list[tuple[_Group, int, int]]:
    """Of each operation of a step, in their order: its group, its peer, and how many came before it in
    these."""
    num: Counter[tuple[_Group, int]] = Counter()
    places = []
    for each in ring.operations:
        if each.step == step:
            key = _group(each.site), each.peer
            places.append((*key, num[key]))
            num[key] += 1
    return places
