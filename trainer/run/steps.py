"""The steps of an attempt, one by one: fetch or pass over, step, evaluate, report, save."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from functools import partial

import torch

from lineage.ids import content_hash
from trainer.evaluation.result import EvaluationResult
from trainer.recovery.repeated import documents_of
from trainer.run.assemble import note_health
from trainer.run.evaluating import evaluate_due
from trainer.run.parts import Run
from trainer.run.saving import after_save, note_losses, save_if_due
from trainer.run.step import evaluate, train_step
from trainer.telemetry.step_report import StepReport


def run_steps(run: Run) -> None:
    """Every step that is left, until a stop is requested; all are reported then. Collective."""
    progress, hooks, stepping = run.progress, run.hooks, run.stepping
    while progress.step < run.recipe.train.steps and not progress.stop:
        hooks.before_step(progress.step)
        stepping.profiler.before(progress.step)
        _run_step(run)
        stepping.profiler.after(progress.step)
        progress.step += 1
        symptoms = stepping.health.after_step(progress.step)
        if symptoms:
            stepping.model.weights_changed()  # a replica may have been mended
            note_health(run, symptoms)
        hooks.after_step(progress.step)
    _report_pending(run, keep=0)


def end_step(run: Run, report: StepReport) -> None:
    """The end of the step that `report` is of, which is in the weights of all already: evaluation, report,
    count. Collective."""
    found = _evaluate(run, report.step)
    _publish(run, dataclasses.replace(report, validation_loss=found.validation, evaluations=found.results))
    if report.skipped is None:
        run.progress.loss = report.loss
    _note_skip(run, report.step, report.skipped)
    run.progress.step = report.step + 1


def seed_step(seed: int, step: int, dp_rank: int) -> None:
    """Give this process the random state of a step. It depends on nothing else, so a checkpoint need not hold
    it and any layout goes on with it; ranks that work on the same rows draw the same numbers."""
    torch.manual_seed(int.from_bytes(content_hash(f"{seed}/{step}/{dp_rank}".encode())[:8], "little") >> 1)


def _run_step(run: Run) -> None:
    progress, stepping = run.progress, run.stepping
    step = stepping.recorder.operations.step = progress.step
    if run.rank == 0:
        run.saving.fence.check()
    # Known to all ranks alike, from the recipe and the rollbacks: no rank waits for a step that others pass over.
    listed = stepping.feed.is_listed(step)
    if listed:
        _pass_over(run, step)
    else:
        seed_step(run.recipe.seed, step, stepping.model.dp_rank)
        progress.pending.append(train_step(stepping.context, step, partial(save_if_due, run)))
    found = _evaluate(run, step)
    saved = progress.last_saved == step + 1
    # On a GPU the figures of this step are still being computed: report the step before, and keep it busy.
    at_rest = bool(found.validation or found.results) or saved or not _computes_behind(stepping.model.device)
    if listed:
        _publish(run, run.reporting.reporter.listed(step, found.validation, found.results))
    else:
        _report_pending(run, keep=0 if at_rest else 1, evaluated=found)
    if saved:
        after_save(run)


def _computes_behind(device: torch.device) -> bool:
    """Whether a step has returned before its figures are there."""
    return device.type != "cpu"


def _pass_over(run: Run, step: int) -> None:
    """A batch that the recipe's `skip` names consumes its step and its sequences, unseen. Steps before it are
    reported first, so that reports stay in order."""
    _report_pending(run, keep=0)
    run.stepping.feed.pass_over(step)
    _note_skip(run, step, "listed")
    save_if_due(run, step + 1, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluated:
    """What was evaluated after a step: the loss on each source's held-out sequences, and the results of
    `[[train.eval]]`; empty where nothing is due."""

    validation: dict[str, float]
    results: tuple[EvaluationResult, ...]


def _evaluate(run: Run, step: int) -> _Evaluated:
    """What is due after `step`. Collective."""
    clock = run.stepping.context.clock
    begin = clock.now()
    found = _Evaluated(validation=_validate(run, step), results=evaluate_due(run, step))
    if run.progress.pending and (found.validation or found.results):
        run.progress.pending[-1][1].evaluated(begin, clock.now())
    return found


def _validate(run: Run, step: int) -> dict[str, float]:
    """The loss on each source's held-out sequences where it is due after `step`; empty elsewhere."""
    table, context, feed = run.recipe.train, run.stepping.context, run.stepping.feed
    last = step + 1 == table.steps
    due = (step + 1) % table.eval_every == 0 if table.eval_every else False
    if table.validation == 0 or not (due or last):
        return {}
    sums, counts = evaluate(context, feed.validation())
    pairs = zip(feed.sources, sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in pairs if count}


def _report_pending(run: Run, keep: int, evaluated: _Evaluated | None = None) -> None:
    """Read the figures of all steps but the last `keep`, write them to the sinks, count skips."""
    progress, goodput = run.progress, run.reporting.goodput
    while len(progress.pending) > keep:
        outcome, timing = progress.pending[0]
        last = len(progress.pending) == 1
        validation = None if evaluated is None or not last else evaluated.validation
        read = run.reporting.reporter.report(outcome, timing, validation)
        report = read.report
        if evaluated is not None and last:
            report = dataclasses.replace(report, evaluations=evaluated.results)
        progress.stop = progress.stop or read.stop
        progress.stall = report.phases["checkpoint"]
        if run.saving.cadence is not None:
            run.saving.cadence.note_step(report.seconds - progress.stall)
        note_losses(run, outcome)
        if report.skipped is None:
            progress.loss = report.loss
        _publish(run, report if goodput is None else goodput.noted(report, time.time()))
        # Until here its times may be read once more, by the processes that go on without a lost one.
        progress.pending.popleft()
        _note_skip(run, outcome.step, report.skipped)


def _publish(run: Run, report: StepReport) -> None:
    """Give a report to all who want it."""
    if run.reporting.sinks:
        run.hooks.check_place()
    for sink in run.reporting.sinks:
        sink.write(report)
    run.hooks.after_report(report)


def _note_skip(run: Run, step: int, reason: str | None) -> None:
    progress = run.progress
    if reason is not None:
        progress.skipped.append(step)
    row = (*progress.skips.row, step)
    lowered = progress.skips.note(step, reason)
    if lowered is not None and run.rank == 0:
        sys.stderr.write(
            f"steps {', '.join(map(str, row))} were skipped in a row: the learning rate of steps"
            f" {lowered.first_step}"
            f" to {lowered.end_step - 1} is {lowered.factor:g} of what it would be (train.faults.on_repeat)\n"
        )
        sys.stderr.writelines(f"{line}\n" for line in documents_of(run.recipe, row))
