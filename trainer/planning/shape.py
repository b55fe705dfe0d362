"""The shape of a planned model: a Llama, or one with experts in its layers; its parameters and operations.

Experts are those of Mixtral (2401.04088) or DeepSeekMoE (2401.06066): in each layer a router picks `top_k` of
`num_experts` SwiGLUs for a token; `num_shared` more see every token; the first `num_dense_layers` layers have one
SwiGLU as a Llama has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lineage.recipe import RecipeError
from trainer.model.sizes import SIZES, ModelConfig, from_hugging_face, model_config


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExperts:
    """`hidden`: the inner width of one expert, shared or routed."""

    num_experts: int
    top_k: int
    hidden: int
    num_shared: int = 0
    num_dense_layers: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise RecipeError(f"model: {self.top_k} experts a token: expected 1 to the {self.num_experts} there are")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`config.hidden` is the inner width of the layers without experts. Numbers are of the whole model."""

    config: ModelConfig
    experts: PlannedExperts | None = None

    @property
    def num_sparse_layers(self) -> int:
        """Layers with experts."""
        return self.config.num_layers - self.experts.num_dense_layers if self.experts else 0

    @property
    def num_attention_parameters(self) -> int:
        """Of one layer: attention and both norms."""
        config = self.config
        return config.width * config.head_dim * 2 * (config.num_heads + config.num_kv_heads) + 2 * config.width

    @property
    def num_whole_parameters(self) -> int:
        """Of one layer with experts, what every token passes: attention, norms, router, shared experts."""
        if self.experts is None:
            return self.config.num_layer_parameters
        width, experts = self.config.width, self.experts
        return self.num_attention_parameters + width * (experts.num_experts + 3 * experts.hidden * experts.num_shared)

    @property
    def num_expert_parameters(self) -> int:
        """Of one routed expert of one layer."""
        return 3 * self.config.width * self.experts.hidden if self.experts else 0

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        if self.experts is None:
            return self.config.num_parameters
        dense = self.config.num_parameters - self.num_sparse_layers * self.config.num_layer_parameters
        routed = self.experts.num_experts * self.num_expert_parameters
        return dense + self.num_sparse_layers * (self.num_whole_parameters + routed)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes."""
        if self.experts is None:
            return self.config.num_parameters
        idle = (self.experts.num_experts - self.experts.top_k) * self.num_expert_parameters
        return self.num_parameters - self.num_sparse_layers * idle

    def layer_flops(self, *, sparse: bool) -> float:
        """Operations of one layer's products with weights for a token, forward and backward: 6 a parameter. (Norms,
        counted as PaLM does, are less than one in ten thousand.)"""
        if not sparse or self.experts is None:
            return 6.0 * self.config.num_layer_parameters
        return 6.0 * (self.num_whole_parameters + self.experts.top_k * self.num_expert_parameters)

    def attention_flops(self, seq_len: int) -> float:
        """Operations of one layer's attention for a token, forward and backward, at full attention: 12·d·s."""
        return 12.0 * self.config.width * seq_len

    @property
    def head_flops(self) -> float:
        """Operations of the output matrix and the last norm for a token, forward and backward."""
        return 6.0 * (self.config.num_embedding_parameters + self.config.width)

    def flops_per_token(self, seq_len: int) -> float:
        """Forward and backward for a token: 6·(active N − embeddings) + 12·L·d·s (PaLM, 2204.02311, appendix B, with
        the experts that a token does not see left out)."""
        num_dense = self.config.num_layers - self.num_sparse_layers
        return (
            num_dense * self.layer_flops(sparse=False)
            + self.num_sparse_layers * self.layer_flops(sparse=True)
            + self.config.num_layers * self.attention_flops(seq_len)
            + self.head_flops
        )


_MOE_DEBUG: Final = PlannedExperts(num_experts=8, top_k=2, hidden=64)
"""Of `moe-debug`: the layers of `debug` with eight small experts."""


def planned_shape(name: str, vocab_size: int) -> Shape:
    """The model that `train.model` names: as `model_config`, and config.json files of Mixtral's and DeepSeekMoE's kind;
    RecipeError as there."""
    if name == "moe-debug":
        return Shape(config=model_config("debug", vocab_size), experts=_MOE_DEBUG)
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if name in SIZES or not path.is_file():
        return Shape(config=model_config(name, vocab_size))
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"train.model = {name!r}: expected a config.json ({error})") from error
    experts = _experts(raw)
    if experts is None:
        return Shape(config=model_config(name, vocab_size))
    config = from_hugging_face({**raw, "model_type": "llama"}, where=str(path))
    if config.vocab_size < vocab_size:
        raise RecipeError(
            f"train.model = {name!r}: vocab_size {config.vocab_size} is smaller than the shards' {vocab_size}"
        )
    return Shape(config=config, experts=experts)


def _experts(raw: Mapping[str, Any]) -> PlannedExperts | None:
    """The experts of a config.json; None where it describes another kind of model."""
    try:
        if raw.get("model_type") == "mixtral":
            return PlannedExperts(
                num_experts=raw["num_local_experts"], top_k=raw["num_experts_per_tok"], hidden=raw["intermediate_size"]
            )
        if raw.get("model_type") == "deepseek":
            return PlannedExperts(
                num_experts=raw["n_routed_experts"],
                top_k=raw["num_experts_per_tok"],
                hidden=raw["moe_intermediate_size"],
                num_shared=raw.get("n_shared_experts") or 0,
                num_dense_layers=raw.get("first_k_dense_replace", 0),
            )
    except KeyError as error:
        raise RecipeError(f"model: {error.args[0]} is missing in the config.json of a {raw['model_type']}") from error
    return None
