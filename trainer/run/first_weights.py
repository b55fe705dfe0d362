"""The weights that a run begins with: a checkpoint's, a Hugging Face folder's, or those of its seed."""

from __future__ import annotations

import sys

import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.checkpoint.same_model import check_begun_from
from trainer.checkpoint.state import check_together, load_weights
from trainer.checkpoint.store import is_checkpoint
from trainer.huggingface.llama import import_weights
from trainer.options import TrainRecipe
from trainer.parallel.mesh import ParallelModel, initialise


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
        if dist.get_rank() == 0:
            sys.stderr.writelines(f"{line}\n" for line in warnings)
    else:
        import_weights(folder, model.config, model.parameters())
