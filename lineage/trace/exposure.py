"""Which training steps read some tokens, from the facts on a run and the inverse of its order.

A run is made of attempts; one that dies is continued by a child from a checkpoint. A step counts as applied if it lies
on the line of attempts that leads to the newest one, and was not skipped: what a dead attempt did after the checkpoint
that its child started from is in no model. Each (run, step, row) counts once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lineage.store.rows import PurgeRow, RunRow, SegmentRow, Span


class Reading(NamedTuple):
    """A sequence that reads some tokens, and which of its positions hold them."""

    sequence: int
    epoch: int
    first_token: int
    num_tokens: int


FindReadings = Callable[[str, Span, int], Sequence[Reading]]
"""(a run's plan as JSON, a span, n) -> every sequence below n that reads any of it, rising."""

LocateSequences = Callable[[str, Sequence[int]], Sequence[Span]]
"""(a run's plan as JSON, sequence numbers) -> where each lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """A row of a training batch that held tokens of a document: `first_token` is their first position in the sequence,
    `applied` whether the step changed the model that the run led to."""

    run: str
    attempt: int
    step: int
    row: int
    epoch: int
    sequence: int
    first_token: int
    num_tokens: int
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run with the latest fact of each of its stretches, by (attempt, first_step)."""

    run: str
    output: str
    global_batch: int
    plan: str
    segments: tuple[SegmentRow, ...]

    @property
    def prefix(self) -> str:
        """What the run puts before this output's source names."""
        return next((segment.prefix for segment in self.segments if segment.prefix), "")

    @property
    def num_steps(self) -> int:
        """One more than the last step that any attempt reached."""
        return max((_last(segment) + 1 for segment in self.segments), default=0)


def fold(runs: Iterable[RunRow], segments: Iterable[SegmentRow]) -> list[TrainingRun]:
    """The runs by name, with the latest fact on each run and each stretch."""
    latest_run: dict[str, RunRow] = {}
    for run in runs:
        if run.run not in latest_run or (run.fact or 0) >= (latest_run[run.run].fact or 0):
            latest_run[run.run] = run
    latest: dict[tuple[str, int, int], SegmentRow] = {}
    for segment in segments:
        key = (segment.run, segment.attempt, segment.first_step)
        if key not in latest or (segment.fact or 0) >= (latest[key].fact or 0):
            latest[key] = segment
    return [
        TrainingRun(
            run=name,
            output=run.output,
            global_batch=run.global_batch,
            plan=run.plan,
            segments=tuple(latest[key] for key in sorted(latest) if key[0] == name),
        )
        for name, run in sorted(latest_run.items())
    ]


def exposures(
    run: TrainingRun, span: Span, find: FindReadings, erased_in: frozenset[str] = frozenset()
) -> list[Exposure]:
    """Every row of `run` that read tokens of `span`, by (step, row).

    Stretches that read a content in `erased_in` (content fingerprints from a purge of the span on) met only
    end-of-text there and are left out: the attempt before the purge that read the span, and died, is
    named instead."""
    if not run.segments:
        return []
    there = span._replace(source=run.prefix + span.source)
    readings = find(run.plan, there, run.num_steps * run.global_batch)
    account = _Account(run, erased_in)
    rows = []
    for reading in readings:
        step, row = divmod(reading.sequence, run.global_batch)
        found = account.of_step(step)
        if found is None:
            continue
        rows.append(
            Exposure(
                run=run.run,
                attempt=found[0].attempt,
                step=step,
                row=row,
                epoch=reading.epoch,
                sequence=reading.sequence,
                first_token=reading.first_token,
                num_tokens=reading.num_tokens,
                applied=found[1],
            )
        )
    return rows


def erased_from(purge: PurgeRow, purges: Sequence[PurgeRow]) -> frozenset[str]:
    """The content fingerprints that a corpus has had since `purge`: those that the chain of purges leads to from it."""
    after = {p.content_fingerprint_before: p.content_fingerprint_after for p in purges}
    chain = []
    fingerprint: str | None = purge.content_fingerprint_after
    while fingerprint is not None and fingerprint not in chain:
        chain.append(fingerprint)
        fingerprint = after.get(fingerprint)
    if purge.content_fingerprint_after == purge.content_fingerprint_before:
        return frozenset(chain)  # only files beside the index held it
    return frozenset(chain) - {purge.content_fingerprint_before}


class _Account:
    """The attempt that counts for each step of a run, of those that read no content in `erased_in`."""

    def __init__(self, run: TrainingRun, erased_in: frozenset[str]) -> None:
        self._erased_in = erased_in
        self._attempts: dict[int, list[SegmentRow]] = {}
        for segment in run.segments:
            self._attempts.setdefault(segment.attempt, []).append(segment)
        self._skipped = {(s.attempt, step) for s in run.segments for step in json.loads(s.skipped_steps or "[]")}
        self._applied = self._line_of_descent()

    def _line_of_descent(self) -> list[tuple[int, int, int]]:
        """(attempt, first step, end) of the newest attempt and of each ancestor up to where its child took over."""
        line: list[tuple[int, int, int]] = []
        attempt: int | None = max(self._attempts)
        end: int | None = None
        while attempt is not None and attempt in self._attempts and attempt not in [known for known, _, _ in line]:
            segments = self._attempts[attempt]
            first = min(segment.first_step for segment in segments)
            reached = max(_last(segment) + 1 for segment in segments)
            line.append((attempt, first, reached if end is None else min(reached, end)))
            end = first if end is None else min(first, end)
            attempt = next((s.parent_attempt for s in segments if s.parent_attempt is not None), None)
        return line

    def of_step(self, step: int) -> tuple[SegmentRow, bool] | None:
        """The stretch that counts for `step`, and whether the step was applied; None if there is none."""
        for attempt, first, end in self._applied:
            if first <= step < end:
                segment = self._segment(attempt, step)
                if segment is not None:
                    return segment, (attempt, step) not in self._skipped
        for attempt in sorted(self._attempts, reverse=True):
            segment = self._segment(attempt, step)
            if segment is not None:
                return segment, False
        return None

    def _segment(self, attempt: int, step: int) -> SegmentRow | None:
        holding = [s for s in self._attempts[attempt] if s.first_step <= step <= _last(s)]
        found = max(holding, key=lambda segment: segment.first_step, default=None)
        return None if found is None or found.content_fingerprint in self._erased_in else found


def _last(segment: SegmentRow) -> int:
    return segment.first_step - 1 if segment.last_step is None else segment.last_step
