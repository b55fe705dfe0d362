"""Which training steps read some tokens, from the facts on a run and the inverse of its order.

A run is made of attempts; one that dies is continued by a child from a checkpoint. A step counts as applied
if it lies on the line of attempts that leads to the newest one, and was not skipped: what a dead attempt did
after the checkpoint that its child started from is in no model. Each (run, step, row) of a document counts
once.

A mixture that lies ahead may be edited between attempts, so a run can have several plans. What is applied was
fed by the newest one: an attempt begins from a checkpoint only where both give the same order up to there.
What a dead attempt did beyond may have followed another, which its stretches' weights tell; where they leave
several, all count: too many exposures rather than too few."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lineage.store.delta import StoreError
from lineage.store.rows import PurgeRow, RunRow, SegmentRow, ShardSpan
from lineage.trace.attempt_line import AttemptStart, line_to


class Reading(NamedTuple):
    """A sequence that reads some tokens, and which of its positions hold them."""

    sequence: int
    epoch: int
    first_token: int
    num_tokens: int


FindReadings = Callable[[str, ShardSpan, int], Sequence[Reading]]
"""(a run's plan as JSON, a span, n) -> every sequence below n that reads any of it, rising."""

LocateSequences = Callable[[str, Sequence[int]], Sequence[ShardSpan]]
"""(a run's plan as JSON, sequence numbers) -> where each lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """A row of a training batch that held tokens of a document: `first_token` is their first position in the
    sequence, `applied` whether the step changed the model that the run led to."""

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
    """A run with the latest fact of each of its stretches, by (attempt, first_step), and each of its plans,
    the newest first."""

    run: str
    plans: tuple[RunRow, ...]
    segments: tuple[SegmentRow, ...]

    @property
    def output(self) -> str:
        """Where the run's checkpoints and files lie."""
        return self.plans[0].output

    @property
    def global_batch(self) -> int:
        """Sequences of a batch."""
        return self.plans[0].global_batch

    @property
    def plan(self) -> str:
        """The newest plan, as JSON."""
        return self.plans[0].plan

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the run puts before this output's source names; several where an attempt that saved nothing
        had another."""
        return tuple(dict.fromkeys(segment.prefix or "" for segment in self.segments))

    @property
    def num_steps(self) -> int:
        """One more than the last step that any attempt reached."""
        return max((_last(segment) + 1 for segment in self.segments), default=0)


def fold(runs: Iterable[RunRow], segments: Iterable[SegmentRow]) -> list[TrainingRun]:
    """The runs by name, with the latest fact on each of their plans and each stretch. StoreError where two
    runs have one name, as of two outputs that were given together."""
    plans: dict[str, dict[str, RunRow]] = {}
    for run in sorted(runs, key=lambda run: run.fact or 0):
        known = plans.setdefault(run.run, {})
        other = next((plan.output for plan in known.values() if plan.output != run.output), None)
        if other is not None:
            raise StoreError(
                f"{other} and {run.output} are both runs called {run.run!r}: expected a name for each; trace"
                " one at a time"
            )
        known.pop(run.plan_fingerprint, None)  # so that the newest stands last
        known[run.plan_fingerprint] = run
    latest: dict[tuple[str, int, int], SegmentRow] = {}
    for segment in segments:
        key = (segment.run, segment.attempt, segment.first_step)
        if key not in latest or (segment.fact or 0) >= (latest[key].fact or 0):
            latest[key] = segment
    return [
        TrainingRun(
            run=name,
            plans=tuple(reversed(known.values())),
            segments=tuple(latest[key] for key in sorted(latest) if key[0] == name),
        )
        for name, known in sorted(plans.items())
    ]


def exposures(
    run: TrainingRun, span: ShardSpan, find: FindReadings, erased_in: frozenset[str] = frozenset()
) -> list[Exposure]:
    """Every row of `run` that read tokens of `span`, by (step, row).

    Stretches that read a content in `erased_in` (content fingerprints from a purge of the span on) met only
    end-of-text there and are left out: the attempt before the purge that read the span, and died, is
    named instead."""
    if not run.segments:
        return []
    found: dict[tuple[int, int], tuple[_DecidingAttempt, Reading]] = {}
    for prefix in run.prefixes:
        there = span._replace(source=prefix + span.source)
        account = _Account(run, erased_in, prefix)
        for plan in account.plans():
            for reading in find(plan.plan, there, run.num_steps * plan.global_batch):
                place = divmod(reading.sequence, plan.global_batch)
                fed = account.of_step(place[0], plan)
                if fed is not None and (place not in found or fed.counts_before(found[place][0])):
                    found[place] = fed, reading
    return [
        Exposure(
            run=run.run,
            attempt=fed.attempt,
            step=step,
            row=row,
            epoch=reading.epoch,
            sequence=reading.sequence,
            first_token=reading.first_token,
            num_tokens=reading.num_tokens,
            applied=fed.applied,
        )
        for (step, row), (fed, reading) in sorted(found.items(), key=lambda item: item[0])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStretch:
    """Steps [first_step, end_step) on the line of attempts to the newest one, which one plan (JSON) fed from one
    content of an output; `skipped` of them were not applied."""

    plan: str
    prefix: str
    content_fingerprint: str | None
    first_step: int
    end_step: int
    skipped: frozenset[int]


def applied_stretches(run: TrainingRun) -> list[AppliedStretch]:
    """The steps whose readings `exposures` calls applied, by rising step."""
    return _Account(run, frozenset()).applied_stretches()


def plans_of_step(run: TrainingRun, step: int) -> list[RunRow]:
    """The plans by which `step` was fed, the newest first."""
    account = _Account(run, frozenset())
    return [plan for plan in run.plans if account.of_step(step, plan) is not None]


def erased_from(purge: PurgeRow, purges: Sequence[PurgeRow]) -> frozenset[str]:
    """The content fingerprints that a corpus has had since `purge`: those that purges lead to from it.

    A purge of files beside the index leads nowhere, and two lead from one content where a backup was laid
    over it in between."""
    after: dict[str, set[str]] = {}
    for each in purges:
        if each.content_fingerprint_after is not None:
            after.setdefault(each.content_fingerprint_before, set()).add(each.content_fingerprint_after)
    left = [purge.content_fingerprint_after]
    reached: set[str] = set()
    while left:
        fingerprint = left.pop()
        if fingerprint is not None and fingerprint not in reached:
            reached.add(fingerprint)
            left += after.get(fingerprint, ())
    if purge.content_fingerprint_after == purge.content_fingerprint_before:
        return frozenset(reached)  # only files beside the index held it
    return frozenset(reached) - {purge.content_fingerprint_before}


class _DecidingAttempt(NamedTuple):
    """The attempt that counts for a step by some plan, whether it lies on the line to the newest attempt
    there, and whether the step was applied."""

    attempt: int
    on_line: bool
    applied: bool

    def counts_before(self, other: _DecidingAttempt) -> bool:
        """Whether a row that two plans read counts by this one."""
        return (self.on_line, self.attempt) > (other.on_line, other.attempt)


class _Account:
    """The attempt that counts for each step of a run, of those that read no content in `erased_in`, and with
    `prefix` no other one."""

    def __init__(self, run: TrainingRun, erased_in: frozenset[str], prefix: str | None = None) -> None:
        self._run = run
        self._erased_in = erased_in
        self._prefix = prefix
        self._attempts: dict[int, list[SegmentRow]] = {}
        for segment in sorted(run.segments, key=lambda segment: segment.attempt, reverse=True):
            self._attempts.setdefault(segment.attempt, []).append(segment)
        self._skipped = {
            (s.attempt, step) for s in run.segments for step in json.loads(s.skipped_steps or "[]")
        }
        self._line = self._line_of_descent()
        self._known: dict[tuple[int, int, bool], Sequence[RunRow]] = {}

    def _line_of_descent(self) -> dict[int, range]:
        """The steps of the newest attempt, and of each ancestor up to where its child took over."""
        begun = {
            number: AttemptStart(
                first_step=min(segment.first_step for segment in segments),
                parent=next((s.parent_attempt for s in segments if s.parent_attempt is not None), None),
            )
            for number, segments in self._attempts.items()
        }
        reached = {
            number: max(_last(segment) + 1 for segment in segments)
            for number, segments in self._attempts.items()
        }
        newest = max(reached, default=0)
        return {
            number: range(begun[number].first_step, min(reached[number], end))
            for number, end in line_to(begun, newest, reached.get(newest, 0))
            if number in begun
        }

    def plans(self) -> list[RunRow]:
        """The run's plans by which any step was fed, the newest first."""
        used: list[RunRow] = []
        for attempt, segments in self._attempts.items():
            for segment in segments:
                line = self._line.get(attempt, range(0))
                if segment.first_step in line:
                    used += self._plans_of(segment, on_line=True)
                if _last(segment) >= max(segment.first_step, line.stop):
                    used += self._plans_of(segment, on_line=False)
        return [plan for plan in self._run.plans if plan in used]

    def applied_stretches(self) -> list[AppliedStretch]:
        """As of the function of this name."""
        found = []
        for attempt, line in self._line.items():
            # Where stretches overlap the one that began last holds, as in `_segment`.
            starts = sorted(self._attempts[attempt], key=lambda segment: segment.first_step)
            cuts = sorted(
                {line.start, *(s.first_step for s in starts), *(_last(s) + 1 for s in starts), line.stop}
            )
            for first, end in itertools.pairwise(cut for cut in cuts if line.start <= cut <= line.stop):
                segment = self._segment(attempt, first)
                if segment is not None:
                    found.append(
                        AppliedStretch(
                            plan=self._plans_of(segment, on_line=True)[0].plan,
                            prefix=segment.prefix or "",
                            content_fingerprint=segment.content_fingerprint,
                            first_step=first,
                            end_step=end,
                            skipped=frozenset(
                                step for at, step in self._skipped if at == attempt and first <= step < end
                            ),
                        )
                    )
        return sorted(found, key=lambda stretch: stretch.first_step)

    def of_step(self, step: int, plan: RunRow) -> _DecidingAttempt | None:
        """The attempt that counts for `step` among those that `plan` fed; None if there is none."""
        for on_line in (True, False):
            for attempt in self._attempts:
                if (step in self._line.get(attempt, ())) is not on_line:
                    continue
                segment = self._segment(attempt, step)
                if segment is not None and plan in self._plans_of(segment, on_line=on_line):
                    return _DecidingAttempt(
                        attempt, on_line, on_line and (attempt, step) not in self._skipped
                    )
        return None

    def _segment(self, attempt: int, step: int) -> SegmentRow | None:
        holding = [s for s in self._attempts[attempt] if s.first_step <= step <= _last(s)]
        found = max(holding, key=lambda segment: segment.first_step, default=None)
        if found is None or found.content_fingerprint in self._erased_in:
            return None
        return found if self._prefix in (None, found.prefix or "") else None

    def _plans_of(self, segment: SegmentRow, *, on_line: bool) -> Sequence[RunRow]:
        """The plans that may have fed the stretch where it is or is not on the line to the newest attempt."""
        key = (segment.attempt, segment.first_step, on_line)
        if key not in self._known:
            agreeing = [plan for plan in self._run.plans if _agrees(plan, segment)] or self._run.plans
            self._known[key] = agreeing[:1] if on_line else agreeing
        return self._known[key]


def _agrees(plan: RunRow, segment: SegmentRow) -> bool:
    """Whether the plan's mixture is that of the stretch."""
    if segment.weights is None:
        return True
    told = json.loads(segment.weights)
    mixtures = _mixtures(plan.plan)
    starts = [step for step in mixtures if segment.first_step < step <= _last(segment)]
    begun = [step for step in mixtures if step <= segment.first_step]
    return all(_same(mixtures[step], told) for step in (*starts, *begun[-1:]))


def _same(mixture: Mapping[str, float], told: Mapping[str, float]) -> bool:
    return mixture.keys() == told.keys() and all(
        math.isclose(share, told[name]) for name, share in mixture.items()
    )


@functools.lru_cache(maxsize=64)
def _mixtures(plan: str) -> Mapping[int, Mapping[str, float]]:
    """The share of each source, by the step from which on it holds, rising: the segments of a plan's JSON."""
    found = {}
    for segment in json.loads(plan).get("segments", ()):
        total = sum(segment["counts"].values())
        found[segment["first_step"]] = {name: count / total for name, count in segment["counts"].items()}
    return found


def _last(segment: SegmentRow) -> int:
    return segment.first_step - 1 if segment.last_step is None else segment.last_step
