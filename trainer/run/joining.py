"""How a start of the processes becomes an attempt of the run: find where it goes on from, claim the next
number.

That is the newest one, or the one that a rollback leads back to (`recovery/rollbacks.py`). Whatever is then
no part of the run any more is set aside: after the claim, so that no older attempt publishes anything that
counts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.checkpoint.same_model import check_resumed
from trainer.checkpoint.store import (
    DAMAGED,
    SET_ASIDE,
    Checkpoint,
    CheckpointError,
    Position,
    claim_folder,
    complete_checkpoints,
    delete_left_over,
    delete_passed,
    going_back,
    newest_with_files,
    read_position,
    set_aside,
)
from trainer.checkpoint.together import by_first_rank, newest_whole
from trainer.feed.feed import Feed
from trainer.model.sizes import ModelConfig
from trainer.options import TrainRecipe, TrainTable
from trainer.provenance.facts import check_output, claim_output
from trainer.provenance.same_plan import check_same_plan
from trainer.recovery.attempts import Attempt, Claimant, attempts, begin, claim
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
    order, CheckpointError where the one to which the run is to go back is gone, or where none is whole."""
    claimed = by_first_rank(
        partial(_claim, output, checkpoints, data, config, recipe=recipe, claimant=claimant), control
    )
    # Each rank reads its part: before the attempt says where it begins.
    newest, damaged = newest_whole(
        checkpoints,
        claimed.candidates,
        control,
        goes_back=recipe.train.checkpoint.on_damage == "go_back",
    )
    first_step, parent = (newest.step, newest.attempt) if newest else (0, None)
    attempt = Attempt(
        number=claimed.number,
        first_step=first_step,
        parent=parent,
        rollback=claimed.rollback,
        began_at=began_at,
        damaged=damaged,
    )
    position = by_first_rank(
        partial(
            _begin, output, checkpoints, data, config, newest=newest, attempt=attempt, train=recipe.train
        ),
        control,
    )
    return Joined(attempt=attempt, name=newest.name if newest else None, position=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claimed:
    """The number of an attempt, the checkpoints that it may go on from, by step (none: the first weights), and
    the number of the rollback that it carries out."""

    number: int
    candidates: tuple[Checkpoint, ...]
    rollback: int | None


def _claim(
    output: Folder,
    checkpoints: Folder,
    data: Feed,
    config: ModelConfig,
    *,
    recipe: TrainRecipe,
    claimant: Claimant | None,
) -> _Claimed:
    check_output(recipe.run.name, output)
    claim_folder(checkpoints, output)
    candidates, _ = _candidates(output, checkpoints)
    if (newest := newest_with_files(checkpoints, candidates)) is not None:
        _checked_position(checkpoints, newest, output, data, config)
    claim_output(recipe.run.name, output)
    number = claim(output, claimant)
    candidates, rollback = _candidates(output, checkpoints)
    return _Claimed(number=number, candidates=candidates, rollback=rollback)


def _begin(
    output: Folder,
    checkpoints: Folder,
    data: Feed,
    config: ModelConfig,
    *,
    newest: Checkpoint | None,
    attempt: Attempt,
    train: TrainTable,
) -> Position | None:
    """Write down where an attempt begins, and set aside what is no part of the run any more; the position of
    the checkpoint that it begins from."""
    position = None if newest is None else _checked_position(checkpoints, newest, output, data, config)
    begin(output, attempt)
    begun = attempts(output)
    undone = set_aside(checkpoints, begun)
    for each in attempt.damaged:
        sys.stderr.write(
            f"{each.why}: the run goes back to step {attempt.first_step}; the damaged checkpoint lies in"
            f" {checkpoints.at(DAMAGED)} (train.checkpoint.on_damage)\n"
        )
    for entry in undone:
        if entry.step > attempt.first_step:
            sys.stderr.write(
                f"checkpoint {entry.name} is undone: it lies in {checkpoints.at(SET_ASIDE)} until the"
                f" run has done step {entry.step} again\n"
            )
    # An attempt that was superseded can write one of a step that the run has passed by then.
    delete_passed(checkpoints, attempt.first_step)
    # Of files that have the number of an attempt in their name no later writer removes what is left.
    for folder in (output, checkpoints):
        folder.drop_all_dead()
    # They may fill the disk on which this attempt is to save its own.
    delete_left_over(checkpoints, begun, train.checkpoint, train.steps)
    return position


def _candidates(output: Folder, checkpoints: Folder) -> tuple[tuple[Checkpoint, ...], int | None]:
    """The checkpoints that the next attempt may go on from, by step, and the number of the rollback that it
    carries out."""
    begun = attempts(output)
    complete = complete_checkpoints(checkpoints, begun)
    rollback = pending_rollback(output, begun)
    if rollback is None:
        return complete, None
    earlier = going_back(complete, rollback)
    if rollback.checkpoint is not None and not earlier:
        raise CheckpointError(
            f"checkpoint {checkpoints.at(rollback.checkpoint)}, to which the run is to go back, is there"
            " no more: sluice train RECIPE --from-step T with an earlier step goes back further"
        )
    return earlier, rollback.number


def _checked_position(
    checkpoints: Folder, entry: Checkpoint, output: Folder, data: Feed, config: ModelConfig
) -> Position:
    """RecipeError where a checkpoint's model is not that of this recipe, or its order not the one that this
    recipe and data give."""
    position = read_position(checkpoints.folder(entry.name))
    check_resumed(position, output, config)
    check_same_plan(
        output,
        data.dataset.order.plan,
        step=position.step,
        order_version=position.order_version,
        fingerprint=position.plan_fingerprint,
    )
    return position
