"""What ranks find by themselves, and all must hear: an error on one of them would leave the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.store import Checkpoint, CheckpointError, check_files
from trainer.recovery.attempts import DamagedCheckpoint
from trainer.recovery.repeats import TrainingStoppedError

T = TypeVar("T")


def by_first_rank(find: Callable[[], T], control: dist.ProcessGroup) -> T:
    """What rank 0 finds, on every rank; its error is raised on each."""
    shared: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            shared = [find()]
        except (RecipeError, CheckpointError, TrainingStoppedError, OSError, ValueError) as error:
            shared = [error]
    dist.broadcast_object_list(shared, src=0, group=control)
    (found,) = shared
    if isinstance(found, Exception):
        raise found
    return cast(T, found)


def raised_together(act: Callable[[], None], group: dist.ProcessGroup) -> None:
    """Do what each rank does by itself; the error of the first rank that has one is raised on all.
    Collective."""
    found: list[Exception | None] = [None] * dist.get_world_size(group)
    mine = None
    try:
        act()
    except (CheckpointError, RecipeError, OSError) as error:
        mine = error
    dist.all_gather_object(found, mine, group=group)
    for error in found:
        if error is not None:
            raise error


def check_together(folder: Folder, group: dist.ProcessGroup) -> None:
    """`check_files`, each rank its part; what one rank finds, all raise. What is loaded goes through it
    first: torch's reader does not notice a flipped bit. Collective."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    raised_together(partial(check_files, folder, part=rank, num_parts=world_size), group)


def newest_whole(
    folder: Folder, entries: Sequence[Checkpoint], group: dist.ProcessGroup, *, goes_back: bool
) -> tuple[Checkpoint | None, tuple[DamagedCheckpoint, ...]]:
    """The newest of these checkpoints (by step) that is as it was published, and the newer ones, which are
    not; None where there is none at all. CheckpointError where one is damaged and the run does not go back,
    or where none is whole. Collective."""
    damaged: list[DamagedCheckpoint] = []
    for entry in reversed(entries):
        try:
            check_together(folder.folder(entry.name), group)
        except CheckpointError as error:
            if not goes_back:
                raise CheckpointError(
                    f'{error}; train.checkpoint.on_damage = "go_back" goes on from the newest whole one'
                ) from error
            damaged.append(DamagedCheckpoint(name=entry.name, why=str(error)))
        else:
            return entry, tuple(damaged)
    if not damaged:
        return None, ()
    more = f"; so are the {len(damaged) - 1:,} before it" if len(damaged) > 1 else ""
    raise CheckpointError(
        f"{damaged[0].why}{more}: no checkpoint of the run under {folder.url} is whole. Restore one from a copy, or"
        " begin again from the first weights with sluice train RECIPE --from-step 0"
    )
