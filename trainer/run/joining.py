"""How a start of the processes becomes an attempt of the run: find where it goes on from, claim the next
number.

That is the newest one, or the one that a rollback leads back to (`recovery/rollbacks.py`). Whatever is then
no part of the run any more is set aside: after the claim, so that no older attempt publishes anything that
counts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.attempts import Attempt, Claimant, attempts, begin, claim
from trainer.checkpoint.same_model import check_resumed
from trainer.checkpoint.store import (
    SET_ASIDE,
    Checkpoint,
    CheckpointError,
    Position,
    claim_folder,
    complete_checkpoints,
    delete_left_over,
    delete_passed,
    read_position,
    set_aside,
)
from trainer.feed.feed import Feed
from trainer.model.sizes import ModelConfig
from trainer.options import TrainRecipe, TrainTable
from trainer.processes.heard import by_first_rank
from trainer.provenance.facts import check_output, claim_output
from trainer.provenance.same_plan import check_same_plan
from trainer.recovery.rollbacks import pending_rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Where this attempt begins: `name` is the checkpoint's folder, None for a run's first step."""

    attempt: Attempt
    name: str | None = None
    position: Position | None = None


def join(
    output: Folder,
    checkpoints: Folder,
    data: Feed,
    config: ModelConfig,
    control: dist.ProcessGroup,
    *,
    recipe: TrainRecipe,
    began_at: float,
    claimant: Claimant | None = None,
) -> Joined:
    """Claim the next attempt of the recipe's run on rank 0, unless output or checkpoints are another run's,
    and broadcast it. `began_at`: when its processes began, seconds since the epoch.

    On rank 0 FencedOutError where another process has this one's place. RecipeError where output or
    checkpoints are another run's, or where the newest checkpoint was saved of another model or in another
    order, CheckpointError where the one to which the run is to go back is gone."""

    def claimed() -> Joined:
        check_output(recipe.run.name, output)
        claim_folder(checkpoints, output)
        _check_position(_continued(output, checkpoints).position, output, data, config)
        claim_output(recipe.run.name, output)
        number = claim(output, claimant)
        found = _continued(output, checkpoints)
        _check_position(found.position, output, data, config)
        newest = found.checkpoint
        first_step, parent = (newest.step, newest.attempt) if newest else (0, None)
        attempt = Attempt(
            number=number, first_step=first_step, parent=parent, rollback=found.rollback, began_at=began_at
        )
        begin(output, attempt)
        _clear(output, checkpoints, first_step, recipe.train)
        return Joined(attempt=attempt, name=newest.name if newest else None, position=found.position)

    return by_first_rank(claimed, control, CheckpointError)


def _clear(output: Folder, checkpoints: Folder, first_step: int, table: TrainTable) -> None:
    """Set aside or delete what is no part of a run that goes on from `first_step` steps."""
    for undone in set_aside(checkpoints, attempts(output)):
        if undone.step > first_step:
            sys.stderr.write(
                f"checkpoint {undone.name} is undone: it lies in {checkpoints.at(SET_ASIDE)} until the"
                f" run has done step {undone.step} again\n"
            )
    # An attempt that was superseded can write one of a step that the run has passed by then.
    delete_passed(checkpoints, first_step)
    # Of files that have the number of an attempt in their name no later writer removes what is left.
    for folder in (output, checkpoints):
        folder.drop_all_dead()
    # They may fill the disk on which this attempt is to save its own.
    delete_left_over(checkpoints, attempts(output), table.checkpoint, table.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continued:
    """What the next attempt goes on from: no checkpoint for the first weights; the number of the rollback
    that it carries out."""

    checkpoint: Checkpoint | None = None
    position: Position | None = None
    rollback: int | None = None


def _continued(output: Folder, checkpoints: Folder) -> _Continued:
    begun = attempts(output)
    complete = complete_checkpoints(checkpoints, begun)
    rollback = pending_rollback(output, begun)
    if rollback is not None:
        complete = tuple(entry for entry in complete if entry.name == rollback.checkpoint)
        if rollback.checkpoint is not None and not complete:
            raise CheckpointError(
                f"checkpoint {checkpoints.at(rollback.checkpoint)}, to which the run is to go back, is there"
                " no more: sluice train RECIPE --from-step T with an earlier step goes back further"
            )
    number = None if rollback is None else rollback.number
    if not complete:
        return _Continued(rollback=number)
    position = read_position(checkpoints.folder(complete[-1].name))
    return _Continued(checkpoint=complete[-1], position=position, rollback=number)


def _check_position(position: Position | None, output: Folder, data: Feed, config: ModelConfig) -> None:
    """RecipeError where a checkpoint's model is not that of this recipe, or its order not the one that this
    recipe and data give."""
    if position is None:
        return
    check_resumed(position, output, config)
    check_same_plan(
        output,
        data.dataset.order.plan,
        step=position.step,
        order_version=position.order_version,
        fingerprint=position.plan_fingerprint,
    )
