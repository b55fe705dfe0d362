"""The line of attempts that leads to a state of a run: one walk, for facts in stores and records in an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class AttemptStart(NamedTuple):
    """Where an attempt began: after `first_step` steps, from a checkpoint of attempt `parent`, or from first
    weights."""

    first_step: int
    parent: int | None


def line_to(begun: Mapping[int, AttemptStart], attempt: int, step: int) -> Iterator[tuple[int, int]]:
    """The attempts that lead to the state of `step` steps that `attempt` made, the newest first, each with
    the step up to which it counts: what it did after that is in no later state of the line. The last one may
    be unknown, if nothing is recorded of a parent."""
    number, end = attempt, step
    while True:
        yield number, end
        at = begun.get(number)
        # Numbers rise: a parent that is not older is a damaged record, and following it would never end.
        if at is None or at.parent is None or at.parent >= number:
            return
        number, end = at.parent, min(end, at.first_step)
