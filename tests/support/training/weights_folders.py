"""Hugging Face folders of the debug model for tests: a sound one, and what is changed in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainer.huggingface.folder import INDEX
from trainer.huggingface.names import stored_shapes
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import to_hugging_face
from trainer.model.config.sizes import model_config

MODEL = model_config("debug", 250)


def random_tensors(config: ModelConfig = MODEL) -> dict[str, Tensor]:
    """Weights of the names and shapes that such a folder has."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator) * 0.02 for name, shape in stored_shapes(config).items()
    }


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: ModelConfig = MODEL,
    *,
    files: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """A folder of these tensors and the model's config.json with `changes`. `files`: the file of each tensor,
    with an index that says so; None: one file."""
    folder.mkdir(parents=True, exist_ok=True)
    described = to_hugging_face(config, seq_len=32, end_of_text=249, dtype="float32") | changes
    (folder / "config.json").write_text(json.dumps(described))
    if files is not None:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(files)}))
    for file in sorted(set(files.values())) if files else ["model.safetensors"]:
        of_file = {name: tensor for name, tensor in tensors.items() if files is None or files[name] == file}
        save_file(of_file, folder / file, metadata={"format": "pt"})
    return folder


def in_two_files(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The file of each tensor of a folder in two."""
    return {name: f"model-{1 + number % 2:05d}-of-00002.safetensors" for number, name in enumerate(tensors)}
