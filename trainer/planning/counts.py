"""Parameters of a model, summed up from their shapes, and the operations of a token. No torch here."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from trainer.huggingface.names import OURS, layer_shapes
from trainer.model.config.description import ModelConfig


class ParameterCounts(NamedTuple):
    """Parameters of a part of the model, or those with which one GPU computes it: those that tensor parallel
    splits, those that each tensor peer has whole (routers and shared experts), and those of routed experts.

    Norms are counted as split: each tensor peer has them whole, but they are less than one parameter in a
    thousand."""

    split: float
    whole: float
    experts: float


@functools.lru_cache(maxsize=64)
def layer_counts(config: ModelConfig, *, sparse: bool) -> ParameterCounts:
    """Those of one layer with experts (`sparse`) or without."""
    found = dict.fromkeys(ParameterCounts._fields, 0)
    for name, shape in layer_shapes(config, sparse=sparse):
        if name.startswith(f"{OURS}.experts."):
            found["experts"] += math.prod(shape)
        elif name != f"{OURS}.bias":  # which corrects a router, and no gradient moves
            found["whole" if name.startswith(OURS) else "split"] += math.prod(shape)
    return ParameterCounts(**found)


@functools.lru_cache(maxsize=64)
def num_sparse_layers(config: ModelConfig) -> int:
    """Layers with experts."""
    return sum(map(config.has_experts, range(config.num_layers)))


def num_embedding_parameters(config: ModelConfig) -> int:
    """Parameters of one vocabulary matrix."""
    return config.vocab_size * config.width


def num_parameters(config: ModelConfig) -> int:
    """All parameters; a tied vocabulary matrix counts once."""
    return _in_all(config, sum(layer_counts(config, sparse=True)))


def num_active_parameters(config: ModelConfig) -> int:
    """Parameters of the layers and experts that one token passes, and both vocabulary matrices."""
    return _in_all(config, _num_active(config, sparse=True))


def num_multiplied_parameters(config: ModelConfig) -> int:
    """Parameters that a token is multiplied with: looking a row of the input embedding up is no product."""
    return num_active_parameters(config) - (0 if config.tied else num_embedding_parameters(config))


def _in_all(config: ModelConfig, sparse_layer: float) -> int:
    num_sparse, matrices = num_sparse_layers(config), 1 if config.tied else 2
    layers = num_sparse * sparse_layer
    layers += (config.num_layers - num_sparse) * sum(layer_counts(config, sparse=False))
    return int(layers) + matrices * num_embedding_parameters(config) + config.width


def _num_active(config: ModelConfig, *, sparse: bool) -> float:
    split, whole, experts = layer_counts(config, sparse=sparse)
    chosen = experts * config.experts.top_k // config.experts.num_experts if config.experts else 0
    return split + whole + chosen


def num_latent(config: ModelConfig) -> int:
    """Numbers of a token's latents, which every tensor peer has whole; 0 without latent attention."""
    latent = config.latent
    return latent.kv_rank + latent.rope_dim + (latent.query_rank or 0) if latent else 0


def layer_flops(config: ModelConfig, *, sparse: bool) -> float:
    """Operations of one layer's products with weights for a token, forward and backward: 6 a parameter. (Norms,
    counted as PaLM does, are less than one in ten thousand.)"""
    return 6.0 * _num_active(config, sparse=sparse)


def attention_flops(config: ModelConfig, seq_len: int, window: int | None = None) -> float:
    """Operations of one layer's attention for a token, forward and backward: 12·H·Q·T for H heads of Q numbers
    (PaLM, 2204.02311, appendix B); of queries and values half each. T, the whole row, is twice what a causal
    mask leaves in the mean; of a `window` it is twice what that leaves: W·(2 − W/T)."""
    seen = min(window or seq_len, seq_len)
    return 6.0 * config.num_heads * (config.head_dim + config.value_dim) * seen * (2 - seen / seq_len)


def all_attention_flops(config: ModelConfig, seq_len: int) -> float:
    """`attention_flops` of all layers."""
    size = len(config.windows)
    return sum(
        (config.num_layers - at + size - 1) // size * attention_flops(config, seq_len, window)
        for at, window in enumerate(config.windows)
    )


def flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """Floating point operations of forward and backward for a token at full attention over `seq_len`, or over
    the layers' windows: 6·(N − embeddings) + 12·L·H·Q·T (PaLM, 2204.02311, appendix B; experts that a token
    does not see left out), recomputation not counted."""
    return 6.0 * num_multiplied_parameters(config) + all_attention_flops(config, seq_len)
