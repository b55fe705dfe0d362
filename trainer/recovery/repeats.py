"""What follows on batches skipped one after the other: the run stops, goes back, or lowers its rate. No torch
here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from trainer.attempts import TrainingStoppedError
from trainer.checkpoint.store import LoweredRate

MOST_IN_A_ROW: Final = 3
"""So many times in a row a run may go back, or lower its rate, and meet the next skipped batches right
behind: then it is not their data, and it stops."""


class RepeatedFaultsError(RuntimeError):
    """`max_skips` steps in a row were skipped, and the run is to go back before the first of them and leave
    their sequences out; `steps` names them."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__(f"steps {steps[0]} to {steps[-1]} were skipped in a row")
        self.steps = steps


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRepeat:
    """What follows once `max_skips` batches in a row were skipped: the run stops, goes back and leaves their
    sequences out, or goes on with a rate that is `lower_factor` of what it would be, for `lower_steps`
    steps."""

    max_skips: int
    action: Literal["stop", "rollback", "lower_lr"] = "stop"
    lower_factor: float = 0.5
    lower_steps: int = 100


class SkipCounter:
    """Skipped batches in a row, faults only: those that the recipe lists do not count. A function of the
    verdicts since a checkpoint, and of what that checkpoint holds: `row`, the steps in the row, and
    `lowered`."""

    def __init__(
        self, table: OnRepeat, row: tuple[int, ...] = (), lowered: tuple[LoweredRate, ...] = ()
    ) -> None:
        self._table = table
        self.row = row
        self.lowered = lowered

    def note(self, step: int, reason: str | None) -> LoweredRate | None:
        """Count step `step`; the lowered rate that begins with it, if one does. TrainingStoppedError once
        `max_skips` came in a row and the run is to stop; RepeatedFaultsError where it is to go back."""
        if reason == "listed":
            return None
        self.row = (*self.row, step) if reason else ()
        if len(self.row) < self._table.max_skips:
            return None
        if self._table.action == "rollback":
            raise RepeatedFaultsError(self.row)
        # A GPU has begun the next step before the verdict on this one is known: the one after it is the first
        # whose rate can be another, on every device alike.
        first = step + 2
        running = sum(first < window.end_step for window in self.lowered)
        if self._table.action == "lower_lr" and running < MOST_IN_A_ROW:
            lowered = LoweredRate(first, first + self._table.lower_steps, self._table.lower_factor)
            self.lowered, self.row = (*self.lowered, lowered), ()
            return lowered
        raise TrainingStoppedError(self._why_stopped(step, reason, running))

    def after(self, verdicts: Iterable[tuple[int, str | None]]) -> SkipCounter:
        """What it will be after more steps, up to where the run stops or goes back."""
        ahead = SkipCounter(self._table, self.row, self.lowered)
        with suppress(TrainingStoppedError, RepeatedFaultsError):
            for step, reason in verdicts:
                ahead.note(step, reason)
        return ahead

    def rate_factor(self, step: int) -> float:
        """With what the learning rate of a step is multiplied."""
        return math.prod(
            window.factor for window in self.lowered if window.first_step <= step < window.end_step
        )

    def _why_stopped(self, step: int, reason: str | None, running: int) -> str:
        tried = f" though the rate was lowered {running} times for them" if running else ""
        return (
            f"{len(self.row)} batches in a row were skipped{tried}, the last at step {step} ({reason}): look"
            " at their sequences with `sluice trace --run --step`, leave them out with train.skip, lower the"
            " learning rate, raise train.faults.max_skips, or set train.faults.on_repeat"
        )
