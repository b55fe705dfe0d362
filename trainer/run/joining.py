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
from trainer.checkpoint.state import newest_whole
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
    newest_with_files,
    read_position,
    set_aside,
    up_to,
)
from trainer.feed.feed import Feed
from trainer.model.config.description import ModelConfig
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
    order, CheckpointError where the one to which the run is to go back is gone, or where none is
    whole."""

    def claimed() -> _Claimed:
        check_output(recipe.run.name, output)
        claim_folder(checkpoints, output)
        # Checked before the claim: a recipe that does not fit must not end the attempt that is still training.
        candidates, _ = _candidates(output, checkpoints)
        if (newest := newest_with_files(checkpoints, candidates)) is not None:
            _checked_position(checkpoints, newest, output, data, config)
        claim_output(recipe.run.name, output)
        number = claim(output, claimant)
        # Listed again: until the claim, the attempt before could publish checkpoints, and from now on it cannot.
        candidates, rollback = _candidates(output, checkpoints)
        return _Claimed(number=number, candidates=candidates, rollback=rollback)

    def begun() -> Joined:
        position = None if newest is None else _checked_position(checkpoints, newest, output, data, config)
        # Recorded before anything is moved: what is no part of the run is decided by the attempts that have begun.
        begin(output, attempt)
        _clear(output, checkpoints, attempt, recipe.train)
        return Joined(attempt=attempt, name=newest.name if newest else None, position=position)

    found = by_first_rank(claimed, control, CheckpointError)
    # Each rank reads its part: before the attempt says where it begins.
    goes_back = recipe.train.checkpoint.on_damage == "go_back"
    newest, damaged = newest_whole(checkpoints, found.candidates, control, goes_back=goes_back)
    attempt = Attempt(
        number=found.number,
        first_step=newest.step if newest else 0,
        parent=newest.attempt if newest else None,
        rollback=found.rollback,
        began_at=began_at,
        damaged=damaged,
    )
    return by_first_rank(begun, control, CheckpointError)


def _clear(output: Folder, checkpoints: Folder, attempt: Attempt, table: TrainTable) -> None:
    """Set aside or delete what is no part of a run that goes on as `attempt` does."""
    undone = set_aside(checkpoints, attempts(output))
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
    delete_left_over(checkpoints, attempts(output), table.checkpoint, table.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claimed:
    """The number of an attempt, the checkpoints that it may go on from, by step (none: the first weights), and
    the number of the rollback that it carries out."""

    number: int
    candidates: tuple[Checkpoint, ...]
    rollback: int | None


def _candidates(output: Folder, checkpoints: Folder) -> tuple[tuple[Checkpoint, ...], int | None]:
    """The checkpoints that the next attempt may go on from, by step, and the number of the rollback that it
    carries out."""
    begun = attempts(output)
    complete = complete_checkpoints(checkpoints, begun)
    rollback = pending_rollback(output, begun)
    if rollback is None:
        return complete, None
    earlier = up_to(complete, rollback.checkpoint)
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
    check_resumed(position, config)
    check_same_plan(
        output,
        data.dataset.order.plan,
        step=position.step,
        order_version=position.order_version,
        fingerprint=position.plan_fingerprint,
    )
    return position
