"""A checkpoint of a training run as a Hugging Face folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from lineage.storage.folder import Folder
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.exported import record_exported
from trainer.huggingface.llama import Export, export_weights
from trainer.huggingface.model_card import chosen_checkpoint, read_card
from trainer.provenance.facts import owner_of


def export_run(
    output: Folder,
    target: Path,
    *,
    step: int | None = None,
    tokenizer_files: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint of the run at `output` to the folder `target`: safetensors, config.json, what it was
    made from and `tokenizer_files` (name: content). `step`: that checkpoint; None: the newest. Gives the checkpoint.
    The run's output records it first: a replay does not reach a copy.

    RecipeError where there is no such checkpoint, CheckpointError where it is damaged."""
    card = read_card(output)
    entry = chosen_checkpoint(output, step)
    made = {
        "output": output.url,
        "run": owner_of(output),
        "step": entry.step,
        "attempt": entry.attempt,
        "tokenizer": dataclasses.asdict(card.tokenizer),
    }
    export = Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=getattr(torch, card.dtype),
        more_files=tokenizer_files or {},
        made_from=made,
    )
    record_exported(output, Folder(str(target)).url, entry.step, entry.attempt)
    export_weights(Folder(card.checkpoints).folder(entry.name), target, export)
    return entry
