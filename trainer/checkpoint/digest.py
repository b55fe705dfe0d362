"""A digest of a checkpoint's weights and moments that does not hang on the layout that saved it.

Each whole tensor is hashed by itself, put together from whatever pieces it was saved in: so two checkpoints
have the same digest exactly when their tensors are equal to the last bit. Memory holds a few tensors at a
time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from blake3 import blake3
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from lineage.ids import length_prefixed
from lineage.storage.folder import Folder
from trainer.checkpoint.state import BUFFERS, OPTIMIZER, WEIGHTS, held_tensors, load
from trainer.checkpoint.store import WeightsDigest

_KINDS: Final = (WEIGHTS, BUFFERS, OPTIMIZER)
"""What a model goes on from. The window of losses by which spikes are known is no part of it."""
_BYTES_AT_ONCE: Final = 256 << 20
"""Tensors that are read together: each reading goes through the checkpoint's metadata once."""


def weights_digest(checkpoint: Folder) -> WeightsDigest:
    """The digest of a complete checkpoint; needs as much memory as its largest tensor, or 256 MiB.
    CheckpointError where its metadata is no checkpoint's."""
    held = {name: entry for name, entry in held_tensors(checkpoint).items() if name.startswith(_KINDS)}
    whole, tensors, num_elements = blake3(), {}, 0
    for names in _batches(held):
        state = {name: torch.empty(held[name].size, dtype=held[name].properties.dtype) for name in names}
        load(checkpoint, state, None)
        for name in names:
            tensor = state.pop(name)
            hashed = _hash(tensor)
            tensors[name] = hashed.hex()
            num_elements += tensor.numel()
            described = (name, str(tensor.dtype), str(tuple(tensor.shape)))
            whole.update(length_prefixed(*(part.encode() for part in described), hashed))
    return WeightsDigest(
        digest=whole.hexdigest(), num_tensors=len(tensors), num_elements=num_elements, tensors=tensors
    )


def _batches(held: Mapping[str, TensorStorageMetadata]) -> Iterator[list[str]]:
    """Names in order, in groups of about `_BYTES_AT_ONCE`."""
    names: list[str] = []
    size = 0
    for name in sorted(held):
        entry = held[name]
        bytes_ = math.prod(entry.size) * entry.properties.dtype.itemsize
        if names and size + bytes_ > _BYTES_AT_ONCE:
            yield names
            names, size = [], 0
        names.append(name)
        size += bytes_
    if names:
        yield names


def _hash(tensor: torch.Tensor) -> bytes:
    """Of its bytes in row-major order, little-endian."""
    data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return blake3(data).digest()
