"""Back to an earlier checkpoint: the call is checked and written down; the next attempt carries it out
(`joining`).

What the run did after that checkpoint is undone: its checkpoints are set aside, and lineage tells what those
steps read as not applied, since the line of attempts no longer goes through them. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lineage.ids import content_hash
from lineage.recipe import RecipeError, as_plain
from lineage.storage.folder import Folder
from trainer.attempts import attempts
from trainer.checkpoint.same_model import check_resumed
from trainer.checkpoint.store import (
    Checkpoint,
    check_owner,
    check_sizes,
    checkpoint_folder,
    complete_checkpoints,
    newest_with_files,
    read_position,
)
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.recipe_order import make_order
from trainer.model.config.sizes import model_config
from trainer.options import TrainRecipe
from trainer.provenance.facts import check_output
from trainer.provenance.same_plan import check_same_plan
from trainer.recovery.rollbacks import Rollback, has_ended, is_carried_out, newest_rollback, record_rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A run as it is now: what a call that goes back is checked against. `checkpoints`: the complete ones, by
    step."""

    recipe: TrainRecipe
    corpus: Corpus
    output: Folder
    folder: Folder
    checkpoints: tuple[Checkpoint, ...]

    @property
    def call(self) -> str:
        """A hash of what the steps are made of: the recipe, but for where its processes run, and the content
        read."""
        plain = as_plain(self.recipe)
        content = [output.content_fingerprint for output in self.corpus.outputs]
        row = [{name: plain[name] for name in ("run", "train")}, content]
        return content_hash(json.dumps(row, sort_keys=True).encode()).hex()


def open_run(recipe: TrainRecipe) -> BegunRun:
    """The run of a recipe, which must have begun. RecipeError where it has not, or where its places are
    another run's."""
    output = Folder(recipe.train.output)
    folder = checkpoint_folder(recipe)
    check_output(recipe.run.name, output)
    check_owner(folder, output)
    begun = attempts(output)
    if not begun:
        raise RecipeError(
            f"train.output = {output.url!r} holds no attempt of a run: there is nothing to go back from;"
            " sluice train begins the run",
            "train.output",
        )
    return BegunRun(
        recipe=recipe,
        corpus=open_corpus(recipe.train.outs),
        output=output,
        folder=folder,
        checkpoints=complete_checkpoints(folder, begun),
    )


def go_back_to(recipe: TrainRecipe, step: int) -> list[str]:
    """Write down that the run goes back to its checkpoint of `step` steps (0: to its first weights), unless
    the same call has done so; gives what the user should read.

    RecipeError where there is no such checkpoint, with the nearest before it; CheckpointError where it is
    damaged or of another order, as of a recipe that was changed."""
    run = open_run(recipe)
    last = newest_rollback(run.output)
    if last is not None and last.step == step and not last.purges and not last.left_out:
        if not is_carried_out(last, attempts(run.output)):
            _check_goes_on(run, next((entry for entry in run.checkpoints if entry.step == step), None))
            return [f"going back to step {step} was asked for before, and is carried out now"]
        if not has_ended(run.output, last):
            _check_goes_on(run, next(reversed(run.checkpoints), None))
            return [f"the run has gone back to step {step} already: it goes on from its newest checkpoint"]
        if last.call == run.call:
            return [
                f"the run has gone back to step {step} and has done its steps since, on this content and by"
                " this recipe: the same would come out again, so nothing is undone"
            ]
    chosen = next((entry for entry in run.checkpoints if entry.step == step), None)
    if chosen is None and step > 0:
        raise RecipeError(_no_such(run, step))
    if chosen is not None and chosen is run.checkpoints[-1]:
        _check_goes_on(run, chosen)
        return [
            f"step {step} is the newest checkpoint of the run: it goes on from there, and nothing is undone"
        ]
    return [record(run, chosen)]


def record(run: BegunRun, chosen: Checkpoint | None, purges: tuple[str, ...] = ()) -> str:
    """Write down that the run goes back to a checkpoint, or to its first weights; says what is undone.
    RecipeError where it was saved of another model or in another order."""
    step = 0 if chosen is None else chosen.step
    _check_goes_on(run, chosen)
    record_rollback(
        run.output,
        Rollback(
            number=0,
            step=step,
            checkpoint=None if chosen is None else chosen.name,
            parent=None if chosen is None else chosen.attempt,
            purges=purges,
            call=run.call,
        ),
    )
    undone = [entry.step for entry in run.checkpoints if entry.step > step]
    where = "the first weights" if chosen is None else f"checkpoint {chosen.name}"
    steps = ", ".join(map(str, undone))
    aside = (
        f"the checkpoint of step {steps} is" if len(undone) == 1 else f"the checkpoints of steps {steps} are"
    )
    return f"the run goes back to {where}" + (f"; {aside} set aside" if undone else "")


def _check_goes_on(run: BegunRun, chosen: Checkpoint | None) -> None:
    """RecipeError where a checkpoint was saved of another model or in another order than the recipe has."""
    if chosen is None:
        return
    check_sizes(run.folder.folder(chosen.name))
    order = make_order(run.recipe, run.corpus)
    config = model_config(run.recipe.train.model, run.corpus.tokenizer.vocab_size)
    position = read_position(run.folder.folder(chosen.name))
    check_resumed(position, config)
    check_same_plan(
        run.output,
        order.plan,
        step=chosen.step,
        order_version=position.order_version,
        fingerprint=position.plan_fingerprint,
    )


def newest_whole(run: BegunRun, up_to: int) -> Checkpoint | None:
    """As `newest_with_files` of the run's checkpoints."""
    return newest_with_files(run.folder, run.checkpoints, up_to)


def _no_such(run: BegunRun, step: int) -> str:
    before = [entry for entry in run.checkpoints if entry.step < step]
    there = f"the run has no checkpoint of {step} steps in {run.folder.url}"
    if not before:
        return f"--from-step {step}: {there}, and none before it: --from-step 0 begins again from the first weights"
    nearest = before[-1]
    way = f"--from-step {nearest.step} goes back to that"
    if nearest is run.checkpoints[-1]:
        way = "it is the run's newest, from which sluice train goes on"
    return f"--from-step {step}: {there}; the nearest before it is {nearest.name}: {way}"
