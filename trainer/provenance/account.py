"""The account of one attempt for lineage: which stretches of steps it has fed, with which mixture and
content.

A stretch begins with the attempt, with a mixture segment of the plan, or where the content changed (a purge).
Facts are written at the start, before each checkpoint and at the end. The start also closes attempts that
died: how far they got past their last checkpoint stands in metrics.jsonl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from lineage.storage.folder import Folder
from trainer.attempts import Attempt, FencedOutError, check_fence
from trainer.data.corpus import Corpus
from trainer.order import OrderPlan
from trainer.provenance.facts import (
    Fact,
    FactLog,
    SegmentFact,
    StartFact,
    SweepFact,
    check_name,
    commit,
    run_fact,
)
from trainer.provenance.reached import AttemptProgress, further_stretches, reached
from trainer.provenance.setup import read_setup


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
        plan = run_fact(self._run, self._output, self._plan)
        self._log.add(plan, *self._started(), *self._closed(), *sweeps, *first)
        commit(self._log, self._changes[-1][1].outputs)

    def take_over(self, got: Mapping[int, AttemptProgress]) -> None:
        """Say that the attempt begins in place of one that got so far (`got`), as `start` does; the stores
        take it in the background."""
        before = [fact for _, fact in self._log.facts()]
        plan = run_fact(self._run, self._output, self._plan)
        self._log.add(
            plan,
            *self._started(),
            *further_stretches(before, got),
            *self._stretches(self._attempt.first_step, ()),
        )
        self._committing = self._worker.submit(commit, self._log, self._changes[-1][1].outputs)

    def give_up(self) -> None:
        """Another attempt keeps the account from now on; what is being committed goes on."""
        self._worker.shutdown(wait=False)

    def content_changed(self, step: int, corpus: Corpus) -> None:
        """Batches from `step` on are read from `corpus`."""
        self._changes.append((step, corpus))

    def commit(self, step: int, skipped: Sequence[int]) -> None:
        """Say that the steps below `step` are done and about to be in a checkpoint; `skipped` of them were
        not applied.

        The stores take it in the background; where one does not, the next commit or start makes up for it.
        FencedOutError if a later attempt has begun. Any other error of the commit before this one is raised
        here."""
        self._log.add(*self._stretches(step, skipped))
        if self._committing is None or self._committing.done():
            before, self._committing = self._committing, None
            if before is not None:
                before.result()
            self._committing = self._worker.submit(commit, self._log, self._changes[-1][1].outputs)

    def facts_at(self, step: int, skipped: Sequence[int]) -> list[Fact]:
        """The facts as they would stand with the steps below `step` done, of which `skipped` were not applied."""
        return [*(fact for _, fact in self._log.facts()), *self._stretches(step, skipped)]

    def close(self) -> None:
        """Wait until the stores have what was written down, or could not take it; raises what a commit
        raised."""
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

    def _started(self) -> list[StartFact]:
        setup = read_setup(self._output, self._attempt.number)
        if setup is None:
            return []
        origin = setup.origin
        return [
            StartFact(
                run=self._run,
                attempt=self._attempt.number,
                recipe_hash=setup.recipe_hash,
                init_from=None if origin is None else origin.url,
                init_digest=None if origin is None else origin.digest,
            )
        ]

    def _closed(self) -> list[SegmentFact]:
        """The last stretches of each earlier attempt, where it got further than its last fact says."""
        before = [fact for _, fact in self._log.facts()]
        return further_stretches(before, reached(self._output)) if before else []
