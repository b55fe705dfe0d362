"""A checkpoint of a training run as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lineage.storage.folder import Folder
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.llama import Export, export_weights
from trainer.huggingface.model_card import chosen_checkpoint, read_card


def export_run(
    output: Folder, target: Path, *, step: int | None = None, tokenizer_files: Mapping[str, bytes] | None = None
) -> Checkpoint:
    """Write a checkpoint of the run at `output` to the folder `target`: safetensors, config.json and
    `tokenizer_files` (name: content). `step`: that checkpoint; None: the newest. Gives the checkpoint.

    RecipeError where there is no such checkpoint, CheckpointError where it is damaged."""
    card = read_card(output)
    chosen = chosen_checkpoint(output, step)
    export = Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=getattr(torch, card.dtype),
        tokenizer_files=tokenizer_files or {},
    )
    export_weights(Folder(card.checkpoints).folder(chosen.name), target, export)
    return chosen
