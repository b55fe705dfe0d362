"""Which model a checkpoint was saved of, and whether a run may take its weights, or go on from it. No torch
here.

Shapes alone do not tell: other numbers of heads, another rotary base or fewer experts a token have the same
ones."""

from __future__ import annotations

import dataclasses
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.store import Position, read_position
from trainer.model.config.description import ModelConfig

MODEL_CARD: Final = "model.json"
"""What a run's output says about its model (`trainer/huggingface/model_card.py`)."""
_ROTARY: Final = ("rotary",)


def check_resumed(position: Position, config: ModelConfig) -> None:
    """RecipeError where the run's checkpoint at `position` was saved of another model than `config`."""
    differing = _differing(config, position.model)
    if differing:
        raise RecipeError(
            f"train.model: {'; '.join(differing.values())}. A run keeps its model: name that one, or give a"
            " changed one another train.output",
            "train.model",
        )


def check_begun_from(checkpoint: Folder, config: ModelConfig) -> list[str]:
    """RecipeError where another run's checkpoint holds another model than `config`; a line for each
    difference in the rotary positions alone, which a run over longer sequences may change."""
    differing = _differing(config, read_position(checkpoint).model)
    refused = [line for name, line in differing.items() if name not in _ROTARY]
    if refused:
        raise RecipeError(
            f"train.init_from = {checkpoint.url!r}: train.model: {'; '.join(refused)}. Name the model that"
            " the checkpoint was saved of",
            "train.model",
        )
    return [
        f"warning: train.init_from: {line}: its weights learn these positions anew"
        for line in differing.values()
    ]


def _differing(config: ModelConfig, recorded: ModelConfig) -> dict[str, str]:
    """By the name of each field that is another: a sentence."""
    found = {}
    for field in dataclasses.fields(ModelConfig):
        ours, theirs = getattr(config, field.name), getattr(recorded, field.name)
        # Deviations are those of first weights, which both have long had.
        if ours != theirs and field.name != "initial_deviation":
            found[field.name] = f"{field.name} is {ours}, the checkpoint's run has {theirs}"
    return found
