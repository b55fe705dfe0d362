"""The models that `train.model` can name: the named sizes, and a config.json. No torch here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from trainer.model.description import Experts, ModelConfig
from trainer.model.families import TRAINED_KINDS, from_hugging_face

VOCAB_MULTIPLE: Final = 128
"""Named sizes round their vocabulary up to this, so that it splits evenly over tensor parallel ranks."""


def _size(layers: int, width: int, heads: tuple[int, int], hidden: int, tied: bool) -> dict[str, Any]:
    num_heads, num_kv_heads = heads
    return {
        "num_layers": layers,
        "width": width,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": width // num_heads,
        "hidden": hidden,
        "tied": tied,
    }


SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "debug": _size(2, 64, (8, 4), 192, True),
    "moe-debug": _size(2, 64, (8, 4), 64, True)
    | {"experts": Experts(num_experts=8, top_k=2, hidden=64), "family": "mixtral"},
    "125M": _size(12, 768, (12, 12), 2048, True),
    "1B": _size(16, 2048, (32, 8), 8192, True),  # Llama 3.2 1B
    "8B": _size(32, 4096, (32, 8), 14336, False),  # Llama 3, 2407.21783, table 3, and so on
    "70B": _size(80, 8192, (64, 8), 28672, False),
    "405B": _size(126, 16384, (128, 8), 53248, False),
}


def model_config(name: str, vocab_size: int, kinds: tuple[str, ...] = TRAINED_KINDS) -> ModelConfig:
    """The model that `train.model` names: one of SIZES with the vocabulary rounded up, or a config.json of
    one of the `kinds` (its model_type).

    `vocab_size` is the number of ids that the shards may hold, end-of-text included; RecipeError where a
    config.json is unreadable, describes another architecture, or has a smaller vocabulary."""
    if name in SIZES:
        rounded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        return ModelConfig(vocab_size=rounded, **SIZES[name])
    config = _read_config(name, kinds)
    if config.vocab_size < vocab_size:
        raise RecipeError(
            f"train.model = {name!r}: vocab_size {config.vocab_size} is smaller than the shards' {vocab_size}"
            " ids; tokenize with the model's own tokenizer, or raise vocab_size"
        )
    return config


def check_model_name(name: str) -> None:
    """RecipeError unless `train.model` names one of SIZES or a config.json of a model that can be built."""
    if name not in SIZES:
        _read_config(name, TRAINED_KINDS)


def _read_config(name: str, kinds: tuple[str, ...]) -> ModelConfig:
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        known, close = ", ".join(SIZES), difflib.get_close_matches(name, SIZES, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"train.model = {name!r}: expected {known} or a config.json ({error}){hint}"
        raise RecipeError(message, "train.model") from error
    return from_hugging_face(raw, where=str(path), kinds=kinds)
