"""The account of one attempt for lineage: which stretches of steps it has fed, with which mixture and content.

A stretch begins with the attempt, with a mixture segment of the plan, or where the content changed (a purge). Facts
are written at the start, before each checkpoint and at the end. The start also closes attempts that died: how far they
got past their last checkpoint stands in metrics.jsonl.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from lineage.storage.folder import Folder
from trainer.data.corpus import Corpus
from trainer.order import OrderPlan
from trainer.provenance.facts import FactLog, RunFact, SegmentFact, SweepFact, check_name, commit, run_fact
from trainer.recovery.attempts import Attempt, FencedOutError, check_fence
from trainer.telemetry.metrics_file import read_reports


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """How far an attempt's metrics go, and what it skipped."""

    last_step: int
    skipped: tuple[int, ...]


class Account:
    """Kept by one process of the run. `changes`: from which step on which content was read."""

    def __init__(self, output: Folder, run: str, plan: OrderPlan, attempt: Attempt, corpus: Corpus) -> None:
        self._output, self._run, self._plan, self._attempt = output, run, plan, attempt
        self._log = FactLog(output, attempt.number)
        self._changes = [(attempt.first_step, corpus)]
        self._worker = ThreadPoolExecutor(1, "lineage")
        self._committing: Future[bool] | None = None

    def start(self, sweeps: Sequence[SweepFact] = ()) -> None:
        """Say that the attempt begins, and how earlier ones ended. StoreError if the run's name is taken;
        FencedOutError if a later attempt has begun already."""
        check_name(self._run, self._output, self._changes[-1][1].outputs)
        first = self._stretches(self._attempt.first_step, ())
        self._log.add(run_fact(self._run, self._output, self._plan), *self._closed(), *sweeps, *first)
        commit(self._log, self._changes[-1][1].outputs)

    def content_changed(self, step: int, corpus: Corpus) -> None:
        """Batches from `step` on are read from `corpus`."""
        self._changes.append((step, corpus))

    def commit(self, step: int, skipped: Sequence[int]) -> None:
        """Say that the steps below `step` are done and about to be in a checkpoint; `skipped` of them were not applied.

        The stores take it in the background; where one does not, the next commit or start makes up for it.
        FencedOutError if a later attempt has begun. Any other error of the commit before this one is raised here."""
        self._log.add(*self._stretches(step, skipped))
        if self._committing is None or self._committing.done():
            before, self._committing = self._committing, None
            if before is not None:
                before.result()
            self._committing = self._worker.submit(commit, self._log, self._changes[-1][1].outputs)

    def close(self) -> None:
        """Wait until the stores have what was written down, or could not take it; raises what a commit raised."""
        try:
            if self._committing is not None:
                self._committing.result()
                # A later attempt commits these facts too, and its plan is the one that must stand last.
                with suppress(FencedOutError):
                    check_fence(self._output, self._attempt.number)
                    commit(self._log, self._changes[-1][1].outputs)
        finally:
            self._worker.shutdown()

    def _stretches(self, step: int, skipped: Sequence[int]) -> list[SegmentFact]:
        first = self._attempt.first_step
        mixtures = {max(segment.first_step, first): segment for segment in self._plan.segments}
        contents = dict(self._changes)
        starts = sorted({*(start for start in mixtures if start < max(step, first + 1)), *contents})
        facts = []
        for begin, end in zip(starts, [*starts[1:], step], strict=True):
            mixture = mixtures[max(start for start in mixtures if start <= begin)]
            corpus = contents[max(start for start in contents if start <= begin)]
            fact = SegmentFact(
                run=self._run,
                attempt=self._attempt.number,
                parent_attempt=self._attempt.parent,
                out="",
                prefix="",
                content_fingerprint="",
                weights=tuple(mixture.weights.items()),
                first_sequence=begin * self._plan.global_batch,
                first_step=begin,
                last_step=max(end, begin) - 1,
                skipped_steps=tuple(s for s in sorted(set(skipped)) if begin <= s < end),
                last_checkpoint=step,
            )
            facts += [
                dataclasses.replace(
                    fact, out=output.url, prefix=output.prefix, content_fingerprint=output.content_fingerprint
                )
                for output in corpus.outputs
            ]
        return facts

    def _closed(self) -> list[SegmentFact]:
        """The last stretches of each earlier attempt, where it got further than its last fact says."""
        newest: dict[tuple[int, str], SegmentFact] = {}
        plans: dict[int, str] = {}
        plan = self._plan.to_json()
        for _, fact in self._log.facts():
            if isinstance(fact, RunFact):
                plan = fact.plan  # an attempt says first which plan it has
            elif isinstance(fact, SegmentFact) and fact.attempt < self._attempt.number:
                plans.setdefault(fact.attempt, plan)
                before = newest.get((fact.attempt, fact.out))
                if before is None or fact.first_step >= before.first_step:
                    newest[fact.attempt, fact.out] = fact
        reached = _reached(self._output) if newest else {}
        closed = []
        for (attempt, _), fact in newest.items():
            got = reached.get(attempt)
            if got is not None and got.last_step > fact.last_step:
                closed += _continued(fact, got, OrderPlan.from_json(plans[attempt]))
        return closed


def _continued(fact: SegmentFact, got: _Reached, plan: OrderPlan) -> list[SegmentFact]:
    """The stretches from the one of `fact` on, of an attempt with `plan` that got so far: one for each mixture."""
    later = [segment for segment in plan.segments if fact.first_step < segment.first_step <= got.last_step]
    starts = [fact.first_step, *(segment.first_step for segment in later)]
    weights = [fact.weights, *(tuple(segment.weights.items()) for segment in later)]
    skipped = {*fact.skipped_steps, *got.skipped}
    return [
        dataclasses.replace(
            fact,
            weights=shares,
            first_sequence=begin * plan.global_batch,
            first_step=begin,
            last_step=end - 1,
            skipped_steps=tuple(step for step in sorted(skipped) if begin <= step < end),
        )
        for begin, end, shares in zip(starts, [*starts[1:], got.last_step + 1], weights, strict=True)
    ]


def _reached(output: Folder) -> dict[int, _Reached]:
    """How far each attempt got, by its step reports."""
    last: dict[int, int] = {}
    skipped: dict[int, list[int]] = {}
    for report in read_reports(output):
        last[report.attempt] = max(last.get(report.attempt, -1), report.step)
        if report.skipped is not None:
            skipped.setdefault(report.attempt, []).append(report.step)
    return {
        attempt: _Reached(last_step=step, skipped=tuple(skipped.get(attempt, ()))) for attempt, step in last.items()
    }
