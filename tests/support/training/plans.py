"""Recipes of a large model for tests of plans: nothing of them is ever started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.options import TrainRecipe, load_train_recipe
from trainer.planning.plan import TrainingPlan, plan_training

_RECIPE = """
[run]
name = "r"
[train]
data = "nowhere"
output = "run"
model = "8B"
seq_len = 8192
global_batch = 64
micro_batch = 1
steps = 1000
"""
OVER_EIGHT = "[train.parallel]\ndp_shard = 8\n"

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {"type": "yarn", "factor": 40},
    "rope_theta": 10000,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""Its config.json (2412.19437, section 4.2), as far as a plan reads it."""


def write_recipe(folder: Path, spread: str = OVER_EIGHT) -> Path:
    """A recipe of the 8B whose last lines are `spread`."""
    path = folder / "train.toml"
    path.write_text(_RECIPE + spread)
    return path


def recipe_of(folder: Path, *overrides: str, spread: str = OVER_EIGHT) -> TrainRecipe:
    return load_train_recipe(write_recipe(folder, spread), overrides)


def plan_of(folder: Path, *overrides: str) -> TrainingPlan:
    return plan_training(recipe_of(folder, *overrides))


def mixtral(folder: Path, **changes: Any) -> str:
    """The config.json of Mixtral 8x7B (2401.04088, table 1), as an override of a recipe."""
    config = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    }
    path = folder / "mixtral.json"
    path.write_text(json.dumps(config | changes))
    return f"train.model={path}"
