"""How a start of the processes becomes an attempt of the run: find the newest checkpoint, claim the next number."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.same_model import check_resumed
from trainer.checkpoint.store import (
    Checkpoint,
    Position,
    abandoned,
    claim_folder,
    complete_checkpoints,
    delete,
    read_position,
)
from trainer.feed.feed import Feed
from trainer.model.sizes import ModelConfig
from trainer.provenance.facts import check_output, claim_output
from trainer.provenance.same_plan import check_same_plan
from trainer.recovery.attempts import Attempt, attempts, begin, claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Where this attempt begins: `name` is the checkpoint's folder, None for a run's first step."""

    attempt: Attempt
    name: str | None = None
    position: Position | None = None


def join(
    output: Folder, checkpoints: Folder, data: Feed, config: ModelConfig, control: dist.ProcessGroup, *, run: str
) -> Joined:
    """Claim the next attempt of the run of this name on rank 0, unless output or checkpoints are another run's, and
    broadcast it.

    RecipeError where they are, or where the newest checkpoint was saved of another model or in another order."""
    shared: list[Joined | RecipeError | None] = [None]
    if dist.get_rank() == 0:
        try:
            check_output(run, output)
            claim_folder(checkpoints, output)
            _check_position(_newest(output, checkpoints)[1], output, data, config)
            claim_output(run, output)
            number = claim(output)
            newest, position = _newest(output, checkpoints)
            _check_position(position, output, data, config)
        except RecipeError as error:
            shared = [error]
        else:
            first_step, parent = (newest.step, newest.attempt) if newest else (0, None)
            attempt = Attempt(number=number, first_step=first_step, parent=parent)
            begin(output, attempt)
            # They may fill the disk on which this attempt is to save its own.
            for name in abandoned(checkpoints, attempts(output)):
                delete(checkpoints, name)
            shared = [Joined(attempt=attempt, name=newest.name if newest else None, position=position)]
    dist.broadcast_object_list(shared, src=0, group=control)
    if isinstance(shared[0], RecipeError):
        raise shared[0]
    assert shared[0] is not None
    return shared[0]


def _newest(output: Folder, checkpoints: Folder) -> tuple[Checkpoint | None, Position | None]:
    complete = complete_checkpoints(checkpoints, attempts(output))
    return (complete[-1], read_position(checkpoints.folder(complete[-1].name))) if complete else (None, None)


def _check_position(position: Position | None, output: Folder, data: Feed, config: ModelConfig) -> None:
    """RecipeError where a checkpoint's model is not that of this recipe, or its order not the one that this recipe and
    data give."""
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
