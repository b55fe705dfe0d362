"""What a process keeps of a run from one generation to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trainer.checkpoint.store import LoweredRate
from trainer.data.corpus import Corpus
from trainer.feed.feed import Feed
from trainer.order import Order
from trainer.run.parts import Run
from trainer.run.step import ReadyStep, StepOutcome
from trainer.telemetry.step_report import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The progress of a run, as all take it over from one rank. `attempt`: the one that ended; `step`: steps
    that are done. `unfinished`: the report of step `step` where that is in the weights and its end is still to be
    done, without what is evaluated there. `reports`: those since the last checkpoint but one; `row_losses`:
    by step, as of `Feed.note_losses`, those of as many steps, that of `unfinished` among them, where the recipe
    records them."""

    attempt: int
    step: int
    last_saved: int
    next_save: int | None
    skipped_in_row: tuple[int, ...]
    lowered: tuple[LoweredRate, ...]
    skipped: tuple[int, ...]
    stop: bool
    loss: float | None
    reports: tuple[StepReport, ...]
    row_losses: Mapping[int, np.ndarray]
    corpus: Corpus
    unfinished: StepReport | None

    @property
    def applied(self) -> int:
        """Steps in the weights."""
        return self.step + (self.unfinished is not None)


@dataclass(slots=True, kw_only=True)
class LocalState:
    """The state of a process between two generations. `tensors`: its pieces of weights and moments, and
    whatever else a checkpoint has, by name. `run`: the attempt that ended, until the ranks have agreed: its
    context may have the gradients of the step after those in the weights."""

    tensors: dict[str, Tensor]
    snapshot: Snapshot
    run: Run | None = None

    @property
    def ready(self) -> ReadyStep | None:
        """The step after those in the weights, where its gradients are there."""
        ready = None if self.run is None else self.run.stepping.context.ready
        return ready if ready is not None and ready.step == self.snapshot.applied else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCopies:
    """At the beginning of a step: this rank's pieces and those of the rank before it, as bytes in the order
    of `InMemoryState.pieces`, and the progress. `neighbours`: None on a rank that took a lost one's place at that
    step."""

    own: Tensor
    neighbours: Tensor | None
    snapshot: Snapshot


@dataclass(slots=True, kw_only=True)
class InMemoryState:
    """`order` is ready before a spare gets a rank; `feed`: that of the attempt whose state was loaded last, and
    `pieces` this rank's parts of that state. `state`: between two generations; None while the run works in it.
    `flushed`: steps in the last checkpoint but one, and in the last."""

    order: Order
    feed: Feed | None = None
    pieces: dict[str, Tensor] = field(default_factory=dict)
    state: LocalState | None = None
    copies: dict[int, StepCopies] = field(default_factory=dict)
    reports: list[StepReport] = field(default_factory=list)
    row_losses: dict[int, np.ndarray] = field(default_factory=dict)
    flushed: tuple[int, int] = (-1, -1)

    def forget(self) -> None:
        """Before an attempt that goes on from a checkpoint: nothing of the one before is part of it."""
        if self.feed is not None:
            self.feed.close()
            self.feed = None
        self.reports.clear()
        self.row_losses.clear()
        self.copies.clear()
        self.flushed = (-1, -1)

    def note_report(self, report: StepReport, applied: StepOutcome | None) -> None:
        """Keep a report, and the row losses of its step, for those that may need them."""
        self.reports.append(report)
        if applied is not None and applied.step == report.step:
            self.row_losses |= row_losses_of(applied)

    def forget_before_checkpoint(self, last_saved: int) -> None:
        """Forget reports: those before a checkpoint are flushed with it. Of the last one rank 0 may not have
        come so far: those before the last but one are known to be."""
        # `last_saved` is what this rank knows: rank 0 may have died before it flushed that far.
        if last_saved > self.flushed[1]:
            self.flushed = (self.flushed[1], last_saved)
        since = self.flushed[0]
        self.reports[:] = [report for report in self.reports if report.step >= since]
        self.row_losses = {step: rows for step, rows in self.row_losses.items() if step >= since}


def row_losses_of(outcome: StepOutcome) -> dict[int, np.ndarray]:
    """The losses of a step's rows, by its number; empty where they are not recorded."""
    losses_2G = outcome.figures.read().rows_2G
    return {} if losses_2G is None else {outcome.step: losses_2G}


def snapshot_of(run: Run, memory: InMemoryState, *, went_on: bool) -> Snapshot:
    """The progress of an attempt as this rank has it; `went_on`: from memory, not from a checkpoint."""
    progress, context = run.progress, run.stepping.context
    step, stop, unfinished = progress.step, progress.stop, None
    row_losses = dict(memory.row_losses)
    applied = context.applied
    if memory.reports and memory.reports[-1].step == step:
        step += 1  # reported, so nothing is left of it that another rank takes part in
    elif applied is not None and applied.step == step:
        # Applied and not reported. Alone: the others whose figures a report compares may be dead.
        timing = progress.pending[-1][1] if progress.pending else context.clock.end_step()
        read = run.reporting.reporter.report(applied, timing, None, alone=True)
        stop, unfinished = stop or read.stop, read.report
        row_losses |= row_losses_of(applied)
    begun = run.joined.attempt
    # One that goes on from memory has no facts before its first step, and none can be its child then.
    is_known = not went_on or step + (unfinished is not None) > begun.first_step
    ended = begun.number if is_known else begun.parent
    assert ended is not None
    return Snapshot(
        attempt=ended,
        step=step,
        last_saved=progress.last_saved,
        next_save=progress.next_save,
        skipped_in_row=progress.skips.row,
        lowered=progress.skips.lowered,
        skipped=tuple(sorted(set(progress.skipped))),
        stop=stop,
        loss=progress.loss,
        reports=tuple(memory.reports),
        row_losses=row_losses,
        corpus=run.stepping.feed.agreed,
        unfinished=unfinished,
    )
