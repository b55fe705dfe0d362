"""An exported folder read back, and compared with the checkpoint that it says it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from lineage.storage.folder import Folder
from trainer.checkpoint.store import Checkpoint
from trainer.huggingface.export import export_of
from trainer.huggingface.exported import GENERATION, MADE_FROM, made_from
from trainer.huggingface.folder import WeightsFolder, open_described
from trainer.huggingface.model_card import averaged_checkpoints, read_card
from trainer.huggingface.weights import (
    Export,
    described,
    exported_tensors,
    files_of,
    generation_config,
    held_by,
)
from trainer.huggingface.weights_hash import stretch_hashes, weights_hash

_AT_ONCE: Final = 1 << 30
"""Bytes of tensors that are compared together."""
_SHOWN: Final = 3


class CheckedPart(NamedTuple):
    """A part of an exported folder; `why` it does not hold, empty where it does."""

    what: str
    why: str


def read_back(folder: Folder, output: Folder) -> Iterator[CheckedPart]:
    """Every tensor, config.json, generation_config.json and the hash of the weights of a folder beside what the run
    at `output` exports of the same checkpoint today.

    RecipeError where the run no longer has that checkpoint, or config.json describes no model that is computed
    here; CheckpointError where files are not whole, or tensors are not those of config.json."""
    made, card = made_from(folder), read_card(output)
    entries = averaged_checkpoints(output, made.step, len(made.averaged_steps) or 1)
    export = export_of(card, entries, ema=made.ema)
    yield CheckedPart("config.json", _difference(folder, "config.json", described(export)))
    yield CheckedPart(GENERATION, _difference(folder, GENERATION, generation_config(export)))
    found = open_described(folder)
    checkpoint = Folder(card.checkpoints).folder(entries[-1].name)
    yield CheckedPart(_shown(entries), _weights_apart(found, checkpoint, export))
    hashed = weights_hash(stretch_hashes(folder))
    why = "" if hashed == made.weights else f"files hash to {hashed}, recorded is {made.weights}"
    yield CheckedPart(f"hash of the weights in {MADE_FROM}", why)


def _shown(entries: Sequence[Checkpoint]) -> str:
    steps = ", ".join(str(entry.step) for entry in entries)
    return f"every tensor of the checkpoint{'s' if len(entries) > 1 else ''} of {steps} steps, bit for bit"


def _difference(folder: Folder, name: str, expected: Mapping[str, Any]) -> str:
    """The keys of a JSON file that differ, in words."""
    if not folder.exists(name):
        return "is not there"
    try:
        held = json.loads(folder.read(name))
    except ValueError as error:
        return f"is no JSON ({error})"
    if not isinstance(held, dict):
        return "is no object of JSON"
    # As they look when they are read back: tuples are lists.
    wanted = json.loads(json.dumps(expected))
    keys = [key for key in {**wanted, **held} if wanted.get(key) != held.get(key)]
    told = [f"{key} is {held.get(key)!r}, the run's is {wanted.get(key)!r}" for key in keys[:_SHOWN]]
    return "; ".join(told) + (f"; and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else "")


def _weights_apart(found: WeightsFolder, checkpoint: Folder, export: Export) -> str:
    held = held_by(checkpoint, export)
    apart: list[str] = []
    for names in files_of(held, export, _AT_ONCE):
        for name, tensor in exported_tensors(
            checkpoint, export, {name: held[name] for name in names}
        ).items():
            if why := _apart(found, name, tensor):
                apart.append(f"{name} {why}")
    more = f"; and {len(apart) - _SHOWN:,} more" if len(apart) > _SHOWN else ""
    return "; ".join(apart[:_SHOWN]) + more


def _apart(found: WeightsFolder, name: str, tensor: Tensor) -> str:
    if name not in found.files:
        return "is not there"
    with safe_open(found.folder.at(found.files[name]), framework="pt") as file:
        stored = file.get_tensor(name)
    if stored.dtype != tensor.dtype or stored.shape != tensor.shape:
        return f"is {stored.dtype} {tuple(stored.shape)}, expected {tensor.dtype} {tuple(tensor.shape)}"
    if torch.equal(stored, tensor):
        return ""
    return f"differs by up to {float((stored.double() - tensor.double()).abs().max()):.3g}"
