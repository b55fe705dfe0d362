"""Llama and Mixtral weights as Hugging Face folders: safetensors, config.json, tokenizer.

Our parameters carry the names of LlamaForCausalLM and its rotary layout, so nothing is renamed or permuted;
of experts, whose matrices we stack, each gets the tensor that published Mixtral folders have. Export streams
file by file from a checkpoint, in one process; import reads only this rank's pieces."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lineage.recipe import RecipeError
from lineage.storage.durable import sync_file
from lineage.storage.folder import Folder, StorageError
from trainer.checkpoint.state import BUFFERS, WEIGHTS, held_tensors, load
from trainer.checkpoint.store import CheckpointError, check_files
from trainer.model.sizes import ModelConfig, from_hugging_face, to_hugging_face
from trainer.parallel.mesh import local_part

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_WEIGHTS_FILE: Final = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")
_FILE_BYTES: Final = 4 << 30
_STACKED: Final = ".experts.w"
"""In the names of parameters that hold a matrix of every expert, one upon the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What goes beside the weights. `more_files`: name in the folder, content."""

    config: ModelConfig
    seq_len: int
    end_of_text: int
    dtype: torch.dtype
    more_files: Mapping[str, bytes]


def export_weights(checkpoint: Folder, target: Path, export: Export, file_bytes: int = _FILE_BYTES) -> None:
    """Write a complete checkpoint's weights to `target` as Hugging Face's tools read them: each file whole or
    not at all, config.json last, so that a folder which has it is complete.

    One process; memory for one file of `file_bytes` at a time. CheckpointError where the checkpoint is
    damaged."""
    if export.config.experts is not None and export.config.experts.num_shared:
        raise RecipeError(
            f"the model has {export.config.experts.num_shared} shared experts, and transformers' Mixtral has"
            " none: it cannot be exported; its checkpoint can be trained on with train.init_from"
        )
    check_files(checkpoint)
    _refuse_biases(checkpoint)
    held = {name: entry for name, entry in held_tensors(checkpoint).items() if name.startswith(WEIGHTS)}
    sizes = {name.removeprefix(WEIGHTS): entry.size for name, entry in held.items()}
    files = list(_files(sizes, export.dtype.itemsize, file_bytes))
    folder = Folder(str(target))
    folder.remove("config.json")  # of an earlier export: the folder is not complete from here on
    for name in folder.names():
        if name == INDEX or _WEIGHTS_FILE.fullmatch(name):
            folder.remove(name)  # an index of other files would be read before these
    where: dict[str, str] = {}
    for number, names in enumerate(files):
        file = _SINGLE if len(files) == 1 else f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        state = {
            WEIGHTS + name: torch.empty(sizes[name], dtype=held[WEIGHTS + name].properties.dtype)
            for name in names
        }
        load(checkpoint, state, None)
        tensors = {
            stored: tensor.to(export.dtype).contiguous()
            for name in names
            for stored, tensor in _as_stored(name, state[WEIGHTS + name])
        }
        with folder.writing(file) as unpublished:
            mode = os.stat(unpublished.name).st_mode
            try:
                save_file(tensors, unpublished.name, metadata={"format": "pt"})
            except SafetensorError as error:
                raise StorageError(f"{folder.at(file)} cannot be written: {error}") from error
            # It has put a file of its own there, for its owner alone, which no sync of ours reaches.
            os.chmod(unpublished.name, stat.S_IMODE(mode))
            sync_file(unpublished.name)
        where |= dict.fromkeys(tensors, file)
    if len(files) > 1:
        total = sum(size.numel() * export.dtype.itemsize for size in sizes.values())
        _publish_json(
            folder, INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        )
    for name, content in export.more_files.items():
        folder.publish(name, content)
    dtype = str(export.dtype).removeprefix("torch.")
    described = to_hugging_face(
        export.config, seq_len=export.seq_len, end_of_text=export.end_of_text, dtype=dtype
    )
    _publish_json(folder, "config.json", described)


def _refuse_biases(checkpoint: Folder) -> None:
    """RecipeError where routers have a bias: without it tokens would go to other experts."""
    held = {name: entry for name, entry in held_tensors(checkpoint).items() if name.startswith(BUFFERS)}
    biases = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in held.items()}
    load(checkpoint, biases, None)
    if any(bias.any() for bias in biases.values()):
        raise RecipeError(
            f"checkpoint {checkpoint.url} has a bias for each expert (train.experts.bias_rate), and"
            " transformers' Mixtral has none: it cannot be exported, for its tokens would go to other"
            " experts; it can be trained on with train.init_from"
        )


def _files(sizes: Mapping[str, torch.Size], itemsize: int, file_bytes: int) -> Iterator[Sequence[str]]:
    """The names of each file: in sorted order, a new file where one would outgrow `file_bytes`."""
    names: list[str] = []
    held = 0
    for name in sorted(sizes):
        size = sizes[name].numel() * itemsize
        if names and held + size > file_bytes:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names


def _publish_json(folder: Folder, name: str, value: Mapping[str, Any]) -> None:
    folder.publish(name, (json.dumps(value, indent=2) + "\n").encode())


def import_weights(folder: Folder, config: ModelConfig, parameters: Mapping[str, nn.Parameter]) -> None:
    """Fill `parameters` from a folder of safetensors on disk; each rank reads its own pieces.

    The vocabulary may be smaller than the model's (which is rounded up): the rows beyond it keep nothing and
    are zero. RecipeError where the folder describes another model, CheckpointError where a tensor is missing
    or misshapen."""
    if folder.is_remote:
        raise RecipeError(
            f"train.init_from = {folder.url!r}: expected a folder on disk; copy the safetensors there"
        )
    described = from_hugging_face(json.loads(folder.read("config.json")), where=folder.at("config.json"))
    for name in (field.name for field in dataclasses.fields(ModelConfig) if field.name != "vocab_size"):
        if getattr(described, name) != getattr(config, name):
            raise RecipeError(
                f"train.init_from = {folder.url!r}: its {name} is {getattr(described, name)}, train.model has"
                f" {getattr(config, name)}; name its config.json in train.model"
            )
    where = _weight_map(folder)
    with torch.no_grad():
        for name, parameter in parameters.items():
            for piece in _pieces(name, parameter):
                if piece.stored not in where:
                    kind = "MixtralForCausalLM" if config.experts else "LlamaForCausalLM"
                    raise CheckpointError(
                        f"{folder.url} has no tensor {piece.stored}: expected the names of {kind}"
                    )
                with safe_open(folder.at(where[piece.stored]), framework="pt") as file:
                    _fill(piece, file.get_slice(piece.stored), folder.url)


def _weight_map(folder: Folder) -> dict[str, str]:
    if folder.exists(INDEX):
        return dict(json.loads(folder.read(INDEX))["weight_map"])
    if not folder.exists(_SINGLE):
        raise CheckpointError(f"{folder.url} has neither {_SINGLE} nor {INDEX}")
    with safe_open(folder.at(_SINGLE), framework="pt") as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def _as_stored(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a folder that hold a parameter of ours."""
    if _STACKED not in name:
        yield name, tensor
        return
    for expert, matrix in enumerate(tensor):
        yield _of_expert(name, expert), matrix


def _of_expert(name: str, expert: int) -> str:
    """`….experts.w1` of ours is `….experts.<e>.w1.weight` of each expert."""
    before, matrix = name.split(_STACKED)
    return f"{before}.experts.{expert}.w{matrix}.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What of a stored tensor this rank takes: `whole` is the shape it must have; `into` begins at `offset`
    of it."""

    stored: str
    into: Tensor
    offset: tuple[int, ...]
    whole: tuple[int, ...]


def _pieces(name: str, parameter: Tensor) -> Iterator[_Piece]:
    local, whole = local_part(parameter), tuple(parameter.shape)
    offset = (0,) * len(whole)
    if isinstance(parameter, DTensor):
        _, found = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        offset = tuple(found)
    if _STACKED not in name:
        yield _Piece(stored=name, into=local, offset=offset, whole=whole)
        return
    for at, matrix in enumerate(local):
        yield _Piece(stored=_of_expert(name, offset[0] + at), into=matrix, offset=offset[1:], whole=whole[1:])


def _fill(piece: _Piece, stored: Any, url: str) -> None:
    shape, whole = tuple(stored.get_shape()), piece.whole
    vocabulary = piece.stored in ("model.embed_tokens.weight", "lm_head.weight") and shape[0] <= whole[0]
    if (shape[1:] if vocabulary else shape) != (whole[1:] if vocabulary else whole):
        raise CheckpointError(f"{url}: {piece.stored} has shape {list(shape)}, expected {list(whole)}")
    ends = [start + size for start, size in zip(piece.offset, piece.into.shape, strict=True)]
    bounds = zip(piece.offset, ends, shape, strict=True)
    values = stored[tuple(slice(start, min(end, size)) for start, end, size in bounds)]
    piece.into.zero_()
    if values.numel():
        piece.into[: len(values)].copy_(values)
