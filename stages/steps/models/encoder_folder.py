"""The folder of a transformers encoder: which files it has, and what its configuration says of the labels."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, filesystem, is_remote, local_path, with_environment

CONFIG: Final = "config.json"
_WEIGHTS: Final = ".safetensors"
_TOKENIZER: Final = "tokenizer.json"
_READ: Final = (".json", ".txt", ".model", _WEIGHTS)
"""What transformers may open of a folder: pickled weights and code are never loaded."""
_HEAD: Final = "ForSequenceClassification"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """What config.json says: the names of the labels in the order of the head's outputs, and what an output
    is.

    `is_regression`: one output, which is the score as it is (FineWeb-Edu's classifier, 2406.17557 section
    4.1: 0 to 5); `is_multi_label`: each output is a probability of its own."""

    labels: tuple[str, ...]
    is_regression: bool
    is_multi_label: bool


def is_folder(path: str) -> bool:
    """Whether a model that a recipe names is a folder: an encoder, where a file is a fastText model."""
    if not is_remote(path):
        return Path(local_path(path)).is_dir()
    url = with_environment(path)
    return bool(filesystem(url).isdir(url))


def encoder_files(path: str) -> tuple[str, ...]:
    """The files of an encoder's folder that shape its scores, each as `path` with its name behind it, sorted.
    RecipeError if one is missing that an encoder must have."""
    names = [name for name in _folder(path).names() if name.endswith(_READ) and "/" not in name]
    shown = without_secrets(path)
    for wanted, found in (
        (CONFIG, CONFIG in names),
        (
            f"weights as *{_WEIGHTS} (pickled weights can hold code and are not read)",
            any(map(_is_weights, names)),
        ),
        (_TOKENIZER, _TOKENIZER in names),
    ):
        if not found:
            has = ", ".join(sorted(names)[:10]) or "no such file"
            raise RecipeError(
                f"the model folder {shown!r} has no {wanted}: expected a transformers encoder as"
                f" save_pretrained writes it, and found {has}"
            )
    return tuple(f"{path.rstrip('/')}/{name}" for name in sorted(names))


def _is_weights(name: str) -> bool:
    return name.endswith(_WEIGHTS)


def read_encoder_config(path: str) -> EncoderConfig:
    """RecipeError if the folder lacks files, or its model has no classification head."""
    encoder_files(path)
    shown = without_secrets(path)
    try:
        plain: Mapping[str, Any] = json.loads(_folder(path).read(CONFIG))
        architectures = list(plain.get("architectures") or ())
        names = plain.get("id2label") or {str(number): f"LABEL_{number}" for number in range(2)}
        labels = tuple(str(names[str(number)]) for number in range(len(names)))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise RecipeError(f"{shown}/{CONFIG} cannot be read as a model's configuration: {error!r}") from error
    if not any(str(name).endswith(_HEAD) for name in architectures):
        raise RecipeError(
            f"the model in {shown!r} has no classification head: its config.json has architectures ="
            f" {architectures}, expected one that ends in {_HEAD}"
        )
    return EncoderConfig(
        labels=labels,
        is_regression=len(labels) == 1,
        is_multi_label=plain.get("problem_type") == "multi_label_classification",
    )


@contextmanager
def as_local_folder(path: str) -> Iterator[str]:
    """A local path of an encoder's folder, for libraries that open files themselves."""
    if not is_remote(path):
        yield local_path(path)
        return
    with tempfile.TemporaryDirectory(prefix="sluice-model-") as copy:
        folder = _folder(path)
        for file in encoder_files(path):
            name = file.rpartition("/")[2]
            Path(copy, name).write_bytes(folder.read(name))
        yield copy


def _folder(path: str) -> Folder:
    return Folder(with_environment(path))
