"""A folder of safetensors as it lies on disk, checked by its headers before a byte of it is trained on.

Its tensors must be those of the model that its config.json describes, name for name and shape for shape:
what is left over is a model that nobody trains here, what is missing would be made up. No torch here."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from safetensors import SafetensorError, safe_open

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.store import CheckpointError
from trainer.huggingface.names import EMBEDDING, HEAD, NAMES, stored_shapes
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import from_hugging_face

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
WEIGHTS_FILE: Final = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")
FREQUENCIES: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Folders of early Llamas hold what `rope_theta` says once more."""
_ADAPTER: Final = "adapter_config.json"
_DTYPES: Final = ("F16", "BF16", "F32", "F64")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFolder:
    """A folder whose tensors are those of `config`. `files`: the file of each, `HEAD` of a tied model and
    `FREQUENCIES` where they are there too."""

    folder: Folder
    config: ModelConfig
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTensor:
    file: str
    shape: tuple[int, ...]
    dtype: str


def open_weights(folder: Folder, model: ModelConfig, *, extends: bool) -> WeightsFolder:
    """The folder that `train.init_from` names, for a run of `model`; `extends`: its vocabulary may be smaller.

    RecipeError where it describes another model, CheckpointError where its tensors are not those of its own
    description, or its files are not whole."""
    _check_on_disk(folder, "train.init_from")
    config = _described(folder)
    _check_same(folder, config, model, extends=extends)
    return _checked(folder, config, "train.init_from")


def open_described(folder: Folder) -> WeightsFolder:
    """A folder as its own config.json describes it. Errors as of `open_weights`."""
    _check_on_disk(folder, None)
    return _checked(folder, _described(folder), None)


def _check_on_disk(folder: Folder, key: str | None) -> None:
    """`key`: of the recipe, where that names the folder."""
    if folder.is_remote:
        raise RecipeError(
            f"{_named(folder, key)}: expected a folder on disk; copy the safetensors there", key
        )


def _checked(folder: Folder, config: ModelConfig, key: str | None) -> WeightsFolder:
    if folder.exists(_ADAPTER):
        raise RecipeError(
            f"{_named(folder, key)} holds an adapter ({_ADAPTER}), which is not computed here: merge it"
            " into the weights (peft's merge_and_unload), or remove it",
            key,
        )
    stored = _without_left_out(_stored(folder), config)
    _check_tensors(folder, stored, config)
    return WeightsFolder(
        folder=folder, config=config, files={name: tensor.file for name, tensor in stored.items()}
    )


def _named(folder: Folder, key: str | None) -> str:
    return folder.url if key is None else f"{key} = {folder.url!r}"


def _without_left_out(stored: Mapping[str, _StoredTensor], config: ModelConfig) -> dict[str, _StoredTensor]:
    """The tensors but those of the module that predicts one token more."""
    names = NAMES.get(config.family)
    more = f"model.layers.{config.num_layers}."
    return {
        name: tensor
        for name, tensor in stored.items()
        if names is None or not names.predicts_more or not name.startswith(more)
    }


def new_rows(found: WeightsFolder, model: ModelConfig) -> Iterator[str]:
    """What the user should read of rows of the vocabulary that a folder lacks."""
    num = model.vocab_size - found.config.vocab_size
    if num:
        yield (
            f"train.init_from: {num:,} of {model.vocab_size:,} rows of the vocabulary are new, made from the seed"
            f" (train.extend_vocabulary); {found.folder.url} has the first {found.config.vocab_size:,}"
        )


def _described(folder: Folder) -> ModelConfig:
    where = folder.at("config.json")
    if not folder.exists("config.json"):
        raise CheckpointError(
            f"{folder.url} has no config.json, which an export writes last: was it, or a download or copy, cut off?"
        )
    try:
        raw = json.loads(folder.read("config.json"))
    except ValueError as error:
        raise RecipeError(f"{where} is no JSON ({error}): expected a model's config.json") from error
    return from_hugging_face(raw, where=where)


def _check_same(folder: Folder, config: ModelConfig, model: ModelConfig, *, extends: bool) -> None:
    """RecipeError where the folder describes another model than the run has. More rows of the vocabulary are
    another model too: ids of the data would not reach them, but the loss does."""
    computed = {field.name for field in dataclasses.fields(ModelConfig)} - {"vocab_size", "initial_deviation"}
    for name in (field.name for field in dataclasses.fields(ModelConfig) if field.name in computed):
        theirs, ours = getattr(config, name), getattr(model, name)
        if theirs != ours:
            raise RecipeError(
                f"train.init_from = {folder.url!r}: its {name} is {theirs}, train.model has"
                f" {ours}; name its config.json in train.model"
            )
    if config.vocab_size > model.vocab_size or (config.vocab_size < model.vocab_size and not extends):
        way = (
            "name its config.json in train.model"
            if config.vocab_size > model.vocab_size
            else f"{model.vocab_size - config.vocab_size:,} rows would be new: train.extend_vocabulary = true makes"
            " them from the seed"
        )
        raise RecipeError(
            f"train.init_from = {folder.url!r}: its vocabulary has {config.vocab_size:,} rows, train.model has"
            f" {model.vocab_size:,}; {way}",
            "train.init_from",
        )


def _stored(folder: Folder) -> dict[str, _StoredTensor]:
    """What the files of a folder hold, by name. CheckpointError where a file is not whole, is missing or is
    one too many, or where a tensor is in two."""
    index, files = _files(folder)
    found: dict[str, _StoredTensor] = {}
    for file in files:
        for name, tensor in _header(folder, file):
            if name in found:
                raise CheckpointError(
                    f"{folder.url}: {name} is in {found[name].file} and in {file}: which one is meant? Remove one"
                )
            found[name] = tensor
    for name, file in index.items():
        if name not in found or found[name].file != file:
            there = f"is in {found[name].file}" if name in found else "is nowhere"
            raise CheckpointError(f"{folder.url}: {INDEX} says that {name} is in {file}, and it {there}")
    if index and (left := sorted(found.keys() - index.keys())):
        raise CheckpointError(f"{folder.url}: {INDEX} does not name {_some(left)}, which its files hold")
    return found


def _files(folder: Folder) -> tuple[dict[str, str], list[str]]:
    """The index (empty where one file holds all) and the files to read."""
    there = [name for name in folder.names() if WEIGHTS_FILE.fullmatch(name)]
    if not folder.exists(INDEX):
        if there == [SINGLE]:
            return {}, there
        others = [name for name in folder.names() if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        raise CheckpointError(
            f"{folder.url} has neither {SINGLE} alone nor {INDEX}"
            + (f", but {_some(there)}" if there else "")
            + (
                f"; {others[0]} is not read: transformers' save_pretrained writes safetensors"
                if others and not there
                else ""
            )
        )
    where = folder.at(INDEX)
    try:
        index = json.loads(folder.read(INDEX))["weight_map"]
        files = sorted(set(index.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{where} is no index of safetensors: expected a weight_map ({error!r})"
        ) from error
    for file in files:
        if not isinstance(file, str) or "/" in file:
            raise CheckpointError(f"{where} names the file {file!r}: expected one of the same folder")
        if not folder.exists(file):
            raise CheckpointError(f"{folder.url} lacks {file}, which {INDEX} names: copy it there")
    if left := [name for name in there if name not in files]:
        raise CheckpointError(f"{folder.url}: {INDEX} does not name {_some(left)}: remove it, or the index")
    return index, files


def _header(folder: Folder, file: str) -> Iterator[tuple[str, _StoredTensor]]:
    try:
        with safe_open(folder.at(file), framework="numpy") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                part = opened.get_slice(name)
                yield name, _StoredTensor(file=file, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except SafetensorError as error:
        raise CheckpointError(
            f"{folder.at(file)} is no whole safetensors file ({error}): was its download or copy cut off?"
        ) from error


def _check_tensors(folder: Folder, stored: Mapping[str, _StoredTensor], config: ModelConfig) -> None:
    expected = stored_shapes(config)
    if missing := [name for name in expected if name not in stored]:
        raise CheckpointError(
            f"{folder.url} lacks {_count(missing)} that its config.json describes: {_some(missing)}"
        )
    allowed = {HEAD} if config.tied else set()
    left = [
        name
        for name in stored
        if name not in expected and name not in allowed and not FREQUENCIES.fullmatch(name)
    ]
    if left:
        raise CheckpointError(
            f"{folder.url} holds {_count(left)} that the model of its config.json has no place for:"
            f" {_some(sorted(left))}: the trainer would train another model"
        )
    other = [f"{name} ({tensor.dtype})" for name, tensor in stored.items() if tensor.dtype not in _DTYPES]
    if other:
        raise CheckpointError(
            f"{folder.url} holds {_count(other)} of a type that weights do not have here: {_some(other)}: expected"
            " float16, bfloat16, float32 or float64 (quantized weights: dequantize them first)"
        )
    for name, tensor in stored.items():
        whole = (config.rotary_dim // 2,) if FREQUENCIES.fullmatch(name) else expected.get(name)
        if whole is None:
            whole = expected[EMBEDDING]
        if tensor.shape != whole:
            raise CheckpointError(
                f"{folder.url}: {name} has shape {list(tensor.shape)}, its config.json describes {list(whole)}"
            )


def _count(names: list[str]) -> str:
    return f"{len(names):,} tensor{'s' if len(names) > 1 else ''}"


def _some(names: list[str]) -> str:
    """The first of them."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
