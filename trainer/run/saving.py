"""When a run saves a checkpoint, and what goes before and after it.

The order counts: the account of what was fed is committed, then the copy of weights and moments is taken, then the
reports of its steps are made durable; only then may the checkpoint be published."""

from __future__ import annotations

import sys
import time

from trainer.checkpoint.store import Position, checkpoint_name
from trainer.processes.heard import by_first_rank
from trainer.run.assemble import state_tensors
from trainer.run.parts import Run
from trainer.run.step import StepOutcome


def save_if_due(run: Run, step: int, outcome: StepOutcome | None) -> None:
    """The last phase of a step: a checkpoint of `step` steps where one is due."""
    if _is_due(run, step):
        _save(run, step, outcome)


def save_where_due(run: Run, begun: int) -> None:
    """A checkpoint of the steps that are done where that of `begun` steps was given up, or one is due now.
    Collective; between two steps."""
    progress = run.progress
    step = progress.step
    if step == 0 or (
        progress.last_saved >= begun and (progress.last_saved == step or not _is_due(run, step))
    ):
        return
    _save(run, step)
    after_save(run)


def save_the_rest(run: Run) -> float:
    """A checkpoint of what none holds yet, once all steps are reported; the seconds that it took."""
    run.stepping.watchdog.rest()
    began = time.monotonic()
    if run.progress.last_saved != run.progress.step:
        _save(run, run.progress.step)
    run.saving.saver.release()
    run.saving.saver.wait()
    return time.monotonic() - began


def after_save(run: Run) -> None:
    """Let the checkpoint that has begun be published: what is reported of its steps is durable."""
    for sink in run.reporting.sinks:
        sink.flush()
    # From here on the thread that writes it may publish: until then a crash leaves the checkpoint before.
    run.saving.saver.release()
    progress = run.progress
    if progress.next_save is not None:
        steps = by_first_rank(lambda: _steps_to_next_save(run), run.groups.control)
        progress.next_save = progress.last_saved + steps


def note_losses(run: Run, outcome: StepOutcome) -> None:
    """The losses of a step's rows, where the recipe wants them recorded. Waits for the device."""
    if run.stepping.context.keeps_rows:
        losses_2G = outcome.figures.read().rows_2G
        assert losses_2G is not None, "the step was asked to keep them"
        run.stepping.feed.note_losses(outcome.step, losses_2G)


def _is_due(run: Run, step: int) -> bool:
    """Whether a checkpoint of `step` steps is to be saved, one or more."""
    table = run.recipe.train.checkpoint
    if table.every == "auto":
        due = step == run.progress.next_save or (table.keep_every > 0 and step % table.keep_every == 0)
    else:
        due = step % table.every == 0
    return due or step == run.recipe.train.steps


def _steps_to_next_save(run: Run) -> int:
    """Of rank 0, after a checkpoint whose step has been reported."""
    cadence = run.saving.cadence
    assert cadence is not None
    if run.progress.stall:  # a batch that was passed over has no report that says it
        cadence.note_save(run.progress.stall)
    return cadence.steps(run.saving.saver.writing_seconds)


def _save(run: Run, step: int, outcome: StepOutcome | None = None) -> None:
    """Begin a checkpoint of `step` steps; `outcome` is that of the last one where its report is still to
    come, as that of the one before it may be on a GPU."""
    progress, feed = run.progress, run.stepping.feed
    skipped: list[int] = list(progress.skipped)
    verdicts: list[tuple[int, str | None]] = []
    unreported = [pending for pending, _ in progress.pending]
    for each in (*unreported, *([] if outcome is None else [outcome])):
        reason = run.reporting.reporter.reason(each)
        # Rows are written before the checkpoint, and their report comes after it.
        note_losses(run, each)
        skipped += [each.step] if reason else []
        verdicts.append((each.step, reason))
    skips = progress.skips.after(verdicts)
    run.hooks.check_place()
    if run.rank == 0:
        run.saving.fence.check()  # what follows writes facts of the run
    feed.commit(step, skipped)
    position = Position(
        step=step,
        attempt=run.attempt,
        plan_fingerprint=feed.fingerprint(step),
        order_version=feed.order_version,
        world_size=run.launch.process.world_size,
        skipped_in_row=skips.row,
        lowered=skips.lowered,
        model=run.saving.config,
    )
    _wait_for_storage(run, step)
    saver = run.saving.saver
    saver.save(state_tensors(run.stepping.context), position)
    progress.checkpoint = saver.folder.at(checkpoint_name(step, run.attempt))
    progress.last_saved = step


def _wait_for_storage(run: Run, step: int) -> None:
    """Until the checkpoint before is published. That may take longer than any step: its writers have a limit
    of their own, and the watchdog rests."""
    saver, watchdog = run.saving.saver, run.stepping.watchdog
    if run.rank == 0 and saver.is_writing:
        sys.stderr.write(
            f"step {step}: waits until the checkpoint before is written; its storage is slower than"
            f" train.checkpoint.every = {run.recipe.train.checkpoint.every}\n"
        )
    watchdog.rest()
    saver.wait()
    watchdog.at(step - 1, "checkpoint")
