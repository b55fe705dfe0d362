"""A checkpoint of a training run as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.llama import Export, export_weights
from trainer.huggingface.model_card import checkpoints_of, read_card


def export_run(
    output: Folder, target: Path, *, step: int | None = None, tokenizer_files: Mapping[str, bytes] | None = None
) -> Checkpoint:
    """Write a checkpoint of the run at `output` to the folder `target`: safetensors, config.json and
    `tokenizer_files` (name: content). `step`: that checkpoint; None: the newest. Gives the checkpoint.

    RecipeError where there is no such checkpoint, CheckpointError where it is damaged."""
    card = read_card(output)
    found = checkpoints_of(output)
    chosen = [entry for entry in found if step is None or entry.step == step]
    if not chosen:
        known = ", ".join(str(entry.step) for entry in found) or "none"
        raise RecipeError(f"--step {step}: {output.url} has checkpoints of steps {known}")
    export = Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=getattr(torch, card.dtype),
        tokenizer_files=tokenizer_files or {},
    )
    export_weights(Folder(card.checkpoints).folder(chosen[-1].name), target, export)
    return chosen[-1]
