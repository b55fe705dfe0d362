"""Whether a run may begin with what `train.init_from` names: a checkpoint, or a folder of safetensors. No torch
here: it is asked before anything starts."""

from __future__ import annotations

from lineage.storage.folder import Folder
from trainer.checkpoint.same_model import check_begun_from
from trainer.checkpoint.store import is_checkpoint
from trainer.huggingface.folder import open_weights
from trainer.model.config.description import ModelConfig
from trainer.options import TrainTable


def check_first_weights(train: TrainTable, model: ModelConfig) -> None:
    """RecipeError where `train.init_from` holds another model than the run has, CheckpointError where its
    files are not whole, as far as that is told without reading weights."""
    if train.init_from is None:
        return
    folder = Folder(train.init_from)
    if is_checkpoint(folder):
        check_begun_from(folder, model)
    else:
        open_weights(folder, model, extends=train.extend_vocabulary)
