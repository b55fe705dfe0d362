"""Forget what purges took: back to the newest whole checkpoint before the run first read it, and on from
there.

The steps before are the same with and without those documents, and the steps after are done again in the same
order on shards in which end-of-text stands in their place. So what comes out is what a run gives that never
read them. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import attempts, counts
from trainer.checkpoint.store import CheckpointError
from trainer.options import TrainRecipe
from trainer.provenance.setup import read_recipe
from trainer.recovery.back import BegunRun, newest_whole, open_run, record
from trainer.recovery.readings import PurgedOutput, find_purges, readings
from trainer.recovery.rollbacks import has_ended, newest_rollback, pending_rollback
from trainer.recovery.same_recipe import changed_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """What a call with `--forget` comes to. `purges`: their ids; `trains`: whether there are steps to do;
    `is_done`: whether the replay has ended, so that its certificate is due; `lines`: what the user should
    read."""

    purges: tuple[str, ...]
    trains: bool
    lines: tuple[str, ...]
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadingCounts:
    """How often a run read documents, and the first step on the line to its newest checkpoint that did; None
    where each is undone."""

    num: int
    first: int | None


def forget(recipe: TrainRecipe, wanted: Sequence[str], *, restart: bool) -> Forgetting:
    """Write down that the run goes back before its first reading of what these purges took, or `all`; nothing
    where it read none of it, or goes back already.

    RecipeError for an unknown purge, where the recipe does steps otherwise than the run has done them, where
    the run's output is gone, and where no checkpoint is early enough and `restart` does not say to begin
    again; CheckpointError where an output holds the documents again."""
    purged = find_purges([table.out for table in recipe.train.outs], wanted)
    ids = tuple(sorted(purge.purge_id for each in purged for purge in each.purges))
    if not ids:
        return Forgetting(
            purges=(), trains=False, lines=("no purge is recorded: there is nothing to forget",)
        )
    for each in purged:
        if (back := each.restored_purge()) is not None:
            raise CheckpointError(
                f"{each.out.url} holds again what purge {back} took, as out of a backup: a replay would read"
                " it again. Make the purge's call again first"
            )
    output = Folder(recipe.train.output)
    if not attempts(output):
        _check_never_begun(recipe, purged)
        line = "the run has not begun, so it has read nothing: sluice train begins it on the purged shards"
        return Forgetting(purges=ids, trains=False, lines=(line,))
    run = open_run(recipe)
    read = _read(run, purged)
    last = newest_rollback(output)
    if read.first is None:
        if last is not None and last.purges and not has_ended(output, last):
            _check_recipe(run)
            line = f"the run has gone back to step {last.step} already: it goes on from its newest checkpoint"
            return Forgetting(purges=ids, trains=True, lines=(line,))
        undone = f"all {read.num:,} readings of it are undone" if read.num else "the run never read any of it"
        line = f"nothing to forget of {_named(ids)}: {undone}"
        is_done = last is not None and bool(last.purges) and read.num > 0
        return Forgetting(purges=ids, trains=False, lines=(line,), is_done=is_done)
    _check_recipe(run)
    pending = pending_rollback(output, attempts(output))
    if pending is not None and pending.step <= read.first and set(ids) <= set(pending.purges):
        line = f"going back to step {pending.step} was asked for before, and is carried out now"
        return Forgetting(purges=ids, trains=True, lines=(line,))
    # A rollback that nobody carried out yet stays part of what is to be forgotten: the earlier of both steps counts.
    chosen = newest_whole(run, read.first if pending is None else min(read.first, pending.step))
    if chosen is None and not restart:
        raise RecipeError(_no_checkpoint(run, ids, read.first))
    purges = tuple(sorted({*ids, *(pending.purges if pending is not None else ())}))
    told = f"the run read documents of {_named(ids)} {read.num:,} times, first in step {read.first}"
    return Forgetting(purges=ids, trains=True, lines=(told, record(run, chosen, purges)))


def _check_never_begun(recipe: TrainRecipe, purged: Sequence[PurgedOutput]) -> None:
    """RecipeError where the data has recorded that the run read the documents, and its output holds nothing
    of it."""
    for each in purged:
        for training in each.runs():
            if training.run == recipe.run.name and (num := sum(1 for _ in readings(training, each))):
                raise RecipeError(
                    f"train.output = {recipe.train.output!r} holds no attempt of a run, and {each.out.url}"
                    f" has recorded that run {training.run!r} read it {num:,} times: its output was moved or"
                    f" deleted; put it back to {training.output}",
                    "train.output",
                )


def _check_recipe(run: BegunRun) -> None:
    """RecipeError where steps that are done again would be done otherwise."""
    newest = attempts(run.output)[-1].number
    was = read_recipe(run.output, newest)
    if was is None:
        return
    done = run.checkpoints[-1].step if run.checkpoints else was.train.steps
    if changed := changed_steps(run.recipe, was, done):
        raise RecipeError(
            f"--forget does steps again as attempt {newest} did them, but {'; '.join(changed)}: restore the"
            " recipe, and change it when the replay has ended"
        )


def _read(run: BegunRun, purged: Sequence[PurgedOutput]) -> _ReadingCounts:
    begun, num, first = attempts(run.output), 0, None
    for each in purged:
        for training in each.runs([run.output.url]):
            if training.run != run.recipe.run.name:
                continue
            for _, exposure in readings(training, each):
                num += 1
                # A step that was skipped too: without the document it might not have been.
                if counts(exposure.step + 1, exposure.attempt, begun):
                    first = exposure.step if first is None else min(first, exposure.step)
    return _ReadingCounts(num=num, first=first)


def _no_checkpoint(run: BegunRun, ids: Sequence[str], first: int) -> str:
    there = "" if first == 0 else ", and no whole checkpoint before it is kept"
    if first > 0 and run.checkpoints:
        there += f" (the oldest is of step {run.checkpoints[0].step})"
    return (
        f"{_named(ids)}: first read in step {first}{there}: a new run is the only way; this call starts it"
        " with --restart, which does every step again from the first weights"
    )


def _named(ids: Sequence[str]) -> str:
    return f"purge {ids[0]}" if len(ids) == 1 else f"{len(ids):,} purges"
