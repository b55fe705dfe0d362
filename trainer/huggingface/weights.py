"""A model's weights as a Hugging Face folder: safetensors, config.json, generation_config.json, tokenizer.

Most parameters carry the names of transformers, and its rotary layout; of experts `trainer.huggingface.names` says
what is stored how. Export streams file by file from a checkpoint, in one process; import reads only this rank's
pieces."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lineage.recipe import RecipeError
from lineage.storage.durable import sync_file
from lineage.storage.folder import Folder, StorageError
from trainer.checkpoint.state import BUFFERS, WEIGHTS, held_tensors, load, refuse_not_finite
from trainer.checkpoint.store import CheckpointError, check_files
from trainer.huggingface.exported import GENERATION, MADE_FROM, MadeFrom
from trainer.huggingface.folder import (
    FREQUENCIES,
    INDEX,
    SINGLE,
    WEIGHTS_FILE,
    WeightsFolder,
)
from trainer.huggingface.names import EMBEDDING, HEAD, NAMES, OURS, StoredPart, stored_parts
from trainer.huggingface.weights_hash import stretch_hashes, weights_hash
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import to_hugging_face
from trainer.model.config.family_table import FAMILIES
from trainer.model.peers import local_part
from trainer.model.rotary import rotary_angles
from trainer.model.transformer import initial_weight
from trainer.parallel.weights import assign

_FILE_BYTES: Final = 4 << 30


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
    made_from: MadeFrom | None = None
    kind: str = WEIGHTS
    averaged_with: Sequence[Folder] = ()


def export_weights(checkpoint: Folder, target: Path, export: Export, file_bytes: int = _FILE_BYTES) -> None:
    """Write a complete checkpoint's weights to `target` as Hugging Face's tools read them: each file whole or
    not at all, config.json last, so that a folder which has it is complete.

    One process; memory for one file of `file_bytes` at a time. CheckpointError where the checkpoint is
    damaged."""
    config = export.config
    experts, architecture = config.experts, FAMILIES[config.family].architecture
    if experts is not None and experts.num_shared and not NAMES[config.family].has_shared:
        raise RecipeError(
            f"the model has {experts.num_shared} shared experts, and transformers' {architecture} has none: it"
            " cannot be exported; its checkpoint can be trained on with train.init_from"
        )
    for each in (checkpoint, *export.averaged_with):
        check_files(each)
        _refuse_biases(each, stored_parts(config), architecture)
    held = held_by(checkpoint, export)
    files = list(files_of(held, export, file_bytes))
    folder = Folder(str(target))
    folder.remove("config.json")  # of an earlier export: the folder is not complete from here on
    for name in folder.names():
        if name == INDEX or WEIGHTS_FILE.fullmatch(name):
            folder.remove(name)  # an index of other files would be read before these
    where: dict[str, str] = {}
    for number, names in enumerate(files):
        file = SINGLE if len(files) == 1 else f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        tensors = exported_tensors(checkpoint, export, {name: held[name] for name in names})
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
        total = sum(entry.size.numel() * export.dtype.itemsize for _, entry in held.values())
        _publish_json(
            folder, INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        )
    for name, content in export.more_files.items():
        folder.publish(name, content)
    made = {} if export.made_from is None else export.made_from.to_json()
    _publish_json(folder, MADE_FROM, made | {"weights": weights_hash(stretch_hashes(folder))})
    _publish_json(folder, GENERATION, generation_config(export))
    _publish_json(folder, "config.json", described(export))


def described(export: Export) -> dict[str, object]:
    """The config.json of an export."""
    dtype = str(export.dtype).removeprefix("torch.")
    return to_hugging_face(export.config, seq_len=export.seq_len, end_of_text=export.end_of_text, dtype=dtype)


def generation_config(export: Export) -> dict[str, object]:
    """The generation_config.json of an export."""
    ends = {"bos_token_id": export.end_of_text, "eos_token_id": export.end_of_text}
    return {"_from_model_config": True, **ends}


Held = Mapping[str, tuple[str, TensorStorageMetadata]]
"""Of each tensor of a model its key and its entry in a checkpoint."""


def held_by(checkpoint: Folder, export: Export) -> Held:
    """The tensors of the model that are exported."""
    every = held_tensors(checkpoint)
    return {name: _entry(every, name, export.kind) for name in stored_parts(export.config)}


def files_of(held: Held, export: Export, file_bytes: int = _FILE_BYTES) -> Iterator[Sequence[str]]:
    """The names of the tensors of each file."""
    sizes = {name: entry.size for name, (_, entry) in held.items()}
    return _files(stored_parts(export.config), sizes, export.dtype.itemsize, file_bytes)


def exported_tensors(checkpoint: Folder, export: Export, held: Held) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, or their mean over several, as they are stored in the folder."""
    state = _mean((checkpoint, *export.averaged_with), held)
    return _as_stored(state, stored_parts(export.config), export.dtype)


def _entry(
    every: Mapping[str, TensorStorageMetadata], name: str, kind: str
) -> tuple[str, TensorStorageMetadata]:
    """Key and entry of a tensor of the model in a checkpoint; its routers' biases are buffers."""
    key = kind + name if kind + name in every else BUFFERS + name
    return key, every[key]


def _mean(checkpoints: Sequence[Folder], held: Held) -> dict[str, Tensor]:
    """The mean of tensors over checkpoints, by name, in their dtype."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        state = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in held.values()}
        load(checkpoint, state, None)
        for name, (key, _) in held.items():
            total[name] = total[name].add_(state[key]) if name in total else state[key]
    return {name: tensor.div_(len(checkpoints)) for name, tensor in total.items()}


def _refuse_biases(checkpoint: Folder, placed: Collection[str], architecture: str) -> None:
    """RecipeError where routers have a bias that is none of those `placed` in the folder: tokens would go to other
    experts."""
    held = {
        name: entry
        for name, entry in held_tensors(checkpoint).items()
        if name.startswith(BUFFERS) and name.removeprefix(BUFFERS) not in placed
    }
    biases = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in held.items()}
    load(checkpoint, biases, None)
    if any(bias.any() for bias in biases.values()):
        raise RecipeError(
            f"checkpoint {checkpoint.url} has a bias for each expert (train.experts.bias_rate), and"
            f" transformers' {architecture} has none: it cannot be exported, for its tokens would go to other"
            " experts; it can be trained on with train.init_from"
        )


def _files(
    parts: Mapping[str, Sequence[StoredPart]], sizes: Mapping[str, torch.Size], itemsize: int, file_bytes: int
) -> Iterator[Sequence[str]]:
    """The names of each file: in sorted order, those together that one stored tensor holds; a new file where one
    would outgrow `file_bytes`."""
    together: dict[str, list[str]] = {}
    for name in sorted(parts):
        together.setdefault(parts[name][0].name, []).append(name)
    names: list[str] = []
    held = 0
    for group in together.values():
        size = sum(sizes[name].numel() for name in group) * itemsize
        if names and held + size > file_bytes:
            yield names
            names, held = [], 0
        names += group
        held += size
    yield names


def _as_stored(
    tensors: Mapping[str, Tensor], parts: Mapping[str, Sequence[StoredPart]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The stored tensors that hold these of the model, in `dtype`; biases that correct a router stay in
    float32."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kept = tensor if name.endswith(f"{OURS}.bias") else tensor.to(dtype)
        for part in parts[name]:
            of_part = kept if part.expert is None else kept[part.expert]
            of_part = of_part.mT if part.turned else of_part
            if part.lane is None:
                stored[part.name] = of_part.contiguous()
            else:
                whole = stored.setdefault(part.name, of_part.new_empty(part.shape))
                whole[..., part.lane :: 2] = of_part
    return stored


def _publish_json(folder: Folder, name: str, value: Mapping[str, Any]) -> None:
    folder.publish(name, (json.dumps(value, indent=2) + "\n").encode())


def import_weights(
    found: WeightsFolder, model: ModelConfig, tensors: Mapping[str, Tensor], *, seed: int
) -> None:
    """Fill parameters and buffers of `model` from a folder of safetensors; each rank reads its own pieces. Rows of
    the vocabulary that the folder lacks begin as they do without it; buffers that it lacks stay as they are.

    CheckpointError where a tensor is not finite, where a tied model's head is another one, and where what
    early Llamas hold of rotary positions is not what the run computes."""
    where, parts, broken = found.files, stored_parts(model), []
    with torch.no_grad():
        for name, parameter in tensors.items():
            if name in (EMBEDDING, HEAD) and found.config.vocab_size < model.vocab_size:
                assign(parameter, initial_weight(name, parameter.shape, model, seed, local_part(parameter)))
            for piece in _pieces(parameter, parts.get(name, ())):
                with _open(found, piece.stored.name) as file:
                    _fill(piece, file.get_slice(piece.stored.name))
                if found.config.tied and name == EMBEDDING and HEAD in where:
                    with _open(found, HEAD) as file:
                        _check_tied(piece, file.get_slice(HEAD), found.folder.url)
                if not piece.into.isfinite().all():
                    broken.append(piece.stored.name)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What of a stored tensor this rank takes: `into` begins at `offset` of what the part is to the model."""

    stored: StoredPart
    into: Tensor
    offset: tuple[int, ...]


def _pieces(tensor: Tensor, parts: Sequence[StoredPart]) -> Iterator[_Piece]:
    local = local_part(tensor)
    offset = (0,) * tensor.dim()
    if isinstance(tensor, DTensor):
        _, found = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        offset = tuple(found)
    for part in parts:
        if part.expert is None:
            yield _Piece(stored=part, into=local, offset=offset)
        elif 0 <= part.expert - offset[0] < len(local):
            yield _Piece(stored=part, into=local[part.expert - offset[0]], offset=offset[1:])


def _fill(piece: _Piece, stored: Any) -> None:
    values = _values(piece, stored)
    if values.numel():
        piece.into[: len(values)].copy_(values)


def _values(piece: _Piece, stored: Any) -> Tensor:
    """What a stored tensor has of a piece: fewer rows where its vocabulary ends before."""
    bounds = [(start, start + size) for start, size in zip(piece.offset, piece.into.shape, strict=True)]
    if piece.stored.turned:
        bounds[-2:] = bounds[:-3:-1]
    if piece.stored.lane is not None:
        bounds[-1] = (2 * bounds[-1][0], 2 * bounds[-1][1])
    limits = zip(bounds, stored.get_shape(), strict=True)
    found = stored[tuple(slice(start, max(start, min(end, size))) for (start, end), size in limits)]
    if piece.stored.lane is not None:
        found = found[..., piece.stored.lane :: 2]
    return cast(Tensor, found.mT if piece.stored.turned else found)
