"""The weights that a run begins with: a checkpoint's, a Hugging Face folder's, or those of its seed."""

from __future__ import annotations

import sys
from functools import partial

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.checkpoint.same_model import check_begun_from
from trainer.checkpoint.state import check_together, load_weights, raised_together, refuse_not_finite
from trainer.checkpoint.store import is_checkpoint
from trainer.evidence.origin import origin_of
from trainer.huggingface.folder import new_rows, open_weights
from trainer.huggingface.weights import import_weights
from trainer.huggingface.weights_hash import stretch_hashes
from trainer.model.peers import local_part
from trainer.options import TrainRecipe
from trainer.parallel.mesh import ParallelModel
from trainer.parallel.weights import initialise
from trainer.processes.heard import by_first_rank, of_every_rank
from trainer.provenance.setup import Origin


def load_first_weights(model: ParallelModel, recipe: TrainRecipe, group: dist.ProcessGroup) -> None:
    """What the run of a recipe begins with: the weights that `init_from` names, or those of its seed.
    Collective."""
    if recipe.train.init_from is None:
        initialise(model, recipe.seed)
        return
    folder = Folder(recipe.train.init_from)
    for buffer in model.buffers().values():
        buffer.zero_()  # routers' biases begin at zero where the weights come without
    if is_checkpoint(folder):
        check_together(folder, group)
        warnings = check_begun_from(folder, model.config)
        load_weights(folder, model.parameters(), model.buffers(), group)
        taken = (model.parameters() | model.buffers()).items()
        broken = [name for name, tensor in taken if not local_part(tensor).isfinite().all()]
        raised_together(partial(refuse_not_finite, folder, broken), group)
        if dist.get_rank() == 0:
            sys.stderr.writelines(f"{line}\n" for line in warnings)
    else:
        raised_together(partial(_import, folder, model, recipe), group)


def origin_together(url: str, group: dist.ProcessGroup) -> Origin:
    """The origin of the weights that a run begins with, each rank reading its share of the bytes: all ranks
    together read the folder once. Collective."""
    folder, mine = Folder(url), dict[tuple[str, int], bytes]()

    def hash_share() -> None:
        if not is_checkpoint(folder):
            rank, world_size = dist.get_rank(group), dist.get_world_size(group)
            mine.update(stretch_hashes(folder, part=rank, num_parts=world_size))

    raised_together(hash_share, group)
    hashes = {place: found for part in of_every_rank(mine, group) for place, found in part.items()}
    return by_first_rank(partial(origin_of, url, hashes), group)


def _import(folder: Folder, model: ParallelModel, recipe: TrainRecipe) -> None:
    found = open_weights(folder, model.config, extends=recipe.train.extend_vocabulary)
    import_weights(found, model.config, {**model.parameters(), **model.buffers()}, seed=recipe.seed)
    if dist.get_rank() == 0:
        sys.stderr.writelines(f"{line}\n" for line in new_rows(found, model.config))
