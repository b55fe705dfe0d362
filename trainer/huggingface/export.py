"""A checkpoint of a training run as a Hugging Face folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.state import OPTIMIZER, WEIGHTS, held_tensors
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.exported import ExportRecord, MadeFrom, record_exported
from trainer.huggingface.model_card import ModelCard, averaged_checkpoints, read_card
from trainer.huggingface.weights import Export, export_weights
from trainer.provenance.facts import owner_of


def export_run(
    output: Folder,
    target: Path,
    *,
    step: int | None = None,
    average: int = 1,
    ema: bool = False,
    tokenizer_files: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint of the run at `output` to the folder `target`: safetensors, config.json, what it was
    made from and `tokenizer_files` (name: content). `step`: that checkpoint; None: the newest. `average`: the
    mean of so many checkpoints, of which that is the last; `ema`: the moving average of the weights that it
    holds. Gives the checkpoint. The run's output records it first: a replay does not reach a copy.

    RecipeError where there are no such checkpoints, CheckpointError where one is damaged."""
    card = read_card(output)
    entries = averaged_checkpoints(output, step, average)
    entry, folder = entries[-1], Folder(card.checkpoints)
    kind = f"{OPTIMIZER}ema." if ema else WEIGHTS
    if not any(name.startswith(kind) for name in held_tensors(folder.folder(entry.name))):
        raise RecipeError(
            f"--ema: the checkpoint of step {entry.step} holds no moving average: expected"
            " train.optimizer.ema above 0 in the run's recipe"
        )
    steps = tuple(each.step for each in entries) if average > 1 else ()
    made = MadeFrom(
        output=output.url,
        run=owner_of(output),
        step=entry.step,
        attempt=entry.attempt,
        averaged_steps=steps,
        ema=ema,
        tokenizer=card.tokenizer,
    )
    export = export_of(card, entries, ema=ema)
    export = dataclasses.replace(export, more_files=tokenizer_files or {}, made_from=made)
    record_exported(
        output,
        ExportRecord(
            place=Folder(str(target)).url,
            step=entry.step,
            attempt=entry.attempt,
            averaged_steps=steps,
            ema=ema,
        ),
    )
    export_weights(folder.folder(entry.name), target, export)
    return entry


def export_of(card: ModelCard, entries: Sequence[Checkpoint], *, ema: bool) -> Export:
    """What is exported of these checkpoints, the last of them the chosen one, without the files beside it."""
    folder = Folder(card.checkpoints)
    return Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=getattr(torch, card.dtype),
        more_files={},
        kind=f"{OPTIMIZER}ema." if ema else WEIGHTS,
        averaged_with=[folder.folder(each.name) for each in entries[:-1]],
    )
