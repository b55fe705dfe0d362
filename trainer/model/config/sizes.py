"""The models that `train.model` can name: those of recipes/models, and a config.json. No torch here.

A named model is a config.json of dimensions alone. One without `vocab_size` takes the vocabulary of the data."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from lineage.shipped import shipped_folder
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import TRAINED_KINDS, from_hugging_face

VOCAB_MULTIPLE: Final = 128
"""A vocabulary taken from the data is rounded up to this, so that it splits evenly over tensor parallel ranks."""


def model_names() -> list[str]:
    """The names that `train.model` can have, sorted."""
    return sorted(path.stem for path in shipped_folder("models").glob("*.json"))


def takes_vocabulary(name: str) -> bool:
    """Whether `name` is that of a named model which takes the vocabulary of the data."""
    return _is_named(name) and "vocab_size" not in _read(name)


def model_config(name: str, vocab_size: int, kinds: tuple[str, ...] = TRAINED_KINDS) -> ModelConfig:
    """The model that `train.model` names: one of `model_names`, or a config.json of one of the `kinds` (its
    model_type).

    `vocab_size` is the number of ids that the shards may hold, end-of-text included; RecipeError where a
    config.json is unreadable, describes another architecture, or has a smaller vocabulary."""
    if takes_vocabulary(name):
        rounded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        return from_hugging_face({**_read(name), "vocab_size": rounded}, where=name, kinds=kinds)
    config = from_hugging_face(_read(name), where=_path(name), kinds=kinds)
    if config.vocab_size < vocab_size:
        raise RecipeError(
            f"train.model = {name!r}: vocab_size {config.vocab_size} is smaller than the shards' {vocab_size}"
            " ids; tokenize with the model's own tokenizer, or raise vocab_size"
        )
    return config


def check_model_name(name: str) -> None:
    """RecipeError unless `train.model` names a model that can be built."""
    model_config(name, 1)


def _is_named(name: str) -> bool:
    return "/" not in name and (shipped_folder("models") / f"{name}.json").is_file()


def _path(name: str) -> str:
    if _is_named(name):
        return f"recipes/models/{name}.json"
    return str(Path(name) / "config.json" if Path(name).is_dir() else name)


def _read(name: str) -> Mapping[str, Any]:
    path = shipped_folder("models") / f"{name}.json" if _is_named(name) else Path(_path(name))
    try:
        raw: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        close = difflib.get_close_matches(name, model_names(), n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = (
            f"train.model = {name!r}: expected a config.json ({error}), or a name that"
            f" `sluice recipe keys train.model` lists{hint}"
        )
        raise RecipeError(message, "train.model") from error
    return raw
