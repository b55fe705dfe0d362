"""Llama and Mixtral weights as Hugging Face folders: safetensors, config.json, tokenizer.

Our parameters carry the names of LlamaForCausalLM and its rotary layout, so nothing is renamed or permuted;
of experts, whose matrices we stack, each gets the tensor that published Mixtral folders have. Export streams
file by file from a checkpoint, in one process; import reads only this rank's pieces."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lineage.recipe import RecipeError
from lineage.storage.durable import sync_file
from lineage.storage.folder import Folder, StorageError
from trainer.checkpoint.state import BUFFERS, WEIGHTS, held_tensors, load, refuse_not_finite
from trainer.checkpoint.store import CheckpointError, check_files
from trainer.huggingface.exported import MADE_FROM
from trainer.huggingface.folder import (
    EMBEDDING,
    FREQUENCIES,
    HEAD,
    INDEX,
    SINGLE,
    WEIGHTS_FILE,
    WeightsFolder,
)
from trainer.huggingface.weights_hash import stretch_hashes, weights_hash
from trainer.model.description import ModelConfig
from trainer.model.families import to_hugging_face
from trainer.model.owners import local_part
from trainer.model.rotary import rotary_angles
from trainer.model.transformer import initial_weight
from trainer.parallel.weights import assign

_FILE_BYTES: Final = 4 << 30
_STACKED: Final = ".experts.w"
"""In the names of parameters that hold a matrix of every expert, one upon the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What goes beside the weights. `more_files`: name in the folder, content; `made_from`: what `MADE_FROM` says
    of the checkpoint, to which the hash of the weights is added. `kind`: begins the names of the checkpoint's
    tensors that are exported; `averaged_with`: further checkpoints, of all of which the mean is."""

    config: ModelConfig
    seq_len: int
    end_of_text: int
    dtype: torch.dtype
    more_files: Mapping[str, bytes]
    made_from: Mapping[str, Any] = field(default_factory=dict)
    kind: str = WEIGHTS
    averaged_with: Sequence[Folder] = ()


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
    for each in (checkpoint, *export.averaged_with):
        check_files(each)
        _refuse_biases(each)
    held = {name: entry for name, entry in held_tensors(checkpoint).items() if name.startswith(export.kind)}
    sizes = {name.removeprefix(export.kind): entry.size for name, entry in held.items()}
    files = list(_files(sizes, export.dtype.itemsize, file_bytes))
    folder = Folder(str(target))
    folder.remove("config.json")  # of an earlier export: the folder is not complete from here on
    for name in folder.names():
        if name == INDEX or WEIGHTS_FILE.fullmatch(name):
            folder.remove(name)  # an index of other files would be read before these
    where: dict[str, str] = {}
    for number, names in enumerate(files):
        file = SINGLE if len(files) == 1 else f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        state = _mean(
            (checkpoint, *export.averaged_with),
            {name: held[export.kind + name] for name in names},
            export.kind,
        )
        tensors = {
            stored: tensor.to(export.dtype).contiguous()
            for name, whole in state.items()
            for stored, tensor in _as_stored(name, whole)
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
    _publish_json(folder, MADE_FROM, {**export.made_from, "weights": weights_hash(stretch_hashes(folder))})
    dtype = str(export.dtype).removeprefix("torch.")
    described = to_hugging_face(
        export.config, seq_len=export.seq_len, end_of_text=export.end_of_text, dtype=dtype
    )
    _publish_json(folder, "config.json", described)


def _mean(
    checkpoints: Sequence[Folder], held: Mapping[str, TensorStorageMetadata], kind: str
) -> dict[str, Tensor]:
    """The mean of tensors of a kind over checkpoints, by name, in their dtype."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        state = {
            kind + name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in held.items()
        }
        load(checkpoint, state, None)
        for name in held:
            total[name] = total[name].add_(state[kind + name]) if name in total else state[kind + name]
    return {name: tensor.div_(len(checkpoints)) for name, tensor in total.items()}


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


def import_weights(
    found: WeightsFolder, model: ModelConfig, parameters: Mapping[str, nn.Parameter], *, seed: int
) -> None:
    """Fill `parameters` of `model` from a folder of safetensors; each rank reads its own pieces. Rows of the
    vocabulary that the folder lacks begin as they do without it.

    CheckpointError where a tensor is not finite, where a tied model's head is another one, and where what
    early Llamas hold of rotary positions is not what the run computes."""
    where, broken = found.files, []
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in (EMBEDDING, HEAD) and found.config.vocab_size < model.vocab_size:
                assign(parameter, initial_weight(name, parameter.shape, model, seed, local_part(parameter)))
            for piece in _pieces(name, parameter):
                with _open(found, piece.stored) as file:
                    _fill(piece, file.get_slice(piece.stored))
                if found.config.tied and name == EMBEDDING and HEAD in where:
                    with _open(found, HEAD) as file:
                        _check_tied(piece, file.get_slice(HEAD), found.folder.url)
                if not piece.into.isfinite().all():
                    broken.append(piece.stored)
        _check_frequencies(found)
    refuse_not_finite(found.folder, broken)


def _open(found: WeightsFolder, name: str) -> Any:
    return safe_open(found.folder.at(found.files[name]), framework="pt")


def _check_tied(piece: _Piece, head: Any, url: str) -> None:
    """CheckpointError where a model whose head is its embedding comes with another head."""
    values = _values(piece, head)
    if not torch.equal(piece.into[: len(values)].cpu(), values.to(piece.into.dtype)):
        raise CheckpointError(
            f"{url}: its config.json has tie_word_embeddings = true, and {HEAD} is another tensor than"
            f" {EMBEDDING}: which one is meant? Set it to false, or remove {HEAD}"
        )


def _check_frequencies(found: WeightsFolder) -> None:
    """CheckpointError where a folder was trained with other rotary positions than its config.json says. Its
    numbers may be of 16 bits."""
    config = found.config
    for name in filter(FREQUENCIES.fullmatch, found.files):
        rule = config.rotary_of(int(name.split(".")[2]))
        if rule is None:
            continue
        expected = rotary_angles(torch.ones(1, 1), rule, config.rotary_dim, torch.float64).flatten()
        with _open(found, name) as file:
            held = file.get_tensor(name).double()
        if not torch.allclose(held, expected, rtol=0.01, atol=1e-6):
            raise CheckpointError(
                f"{found.folder.url}: {name} are other rotary positions than its config.json describes"
                " (rope_theta, rope_scaling)"
            )


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
    """What of a stored tensor this rank takes: `into` begins at `offset` of it."""

    stored: str
    into: Tensor
    offset: tuple[int, ...]


def _pieces(name: str, parameter: Tensor) -> Iterator[_Piece]:
    local = local_part(parameter)
    offset = (0,) * parameter.dim()
    if isinstance(parameter, DTensor):
        _, found = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
        offset = tuple(found)
    if _STACKED not in name:
        yield _Piece(stored=name, into=local, offset=offset)
        return
    for at, matrix in enumerate(local):
        yield _Piece(stored=_of_expert(name, offset[0] + at), into=matrix, offset=offset[1:])


def _fill(piece: _Piece, stored: Any) -> None:
    values = _values(piece, stored)
    if values.numel():
        piece.into[: len(values)].copy_(values)


def _values(piece: _Piece, stored: Any) -> Tensor:
    """What a stored tensor has of a piece: fewer rows where its vocabulary ends before."""
    ends = [start + size for start, size in zip(piece.offset, piece.into.shape, strict=True)]
    bounds = zip(piece.offset, ends, stored.get_shape(), strict=True)
    return cast(
        Tensor, stored[tuple(slice(start, max(start, min(end, size))) for start, end, size in bounds)]
    )
