"""A Llama-style transformer whose parameter names are those of Hugging Face's LlamaForCausalLM.

Axes: B rows, T positions, D width, H query heads, G key-value heads, K head width, F hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lineage.ids import content_hash
from trainer.model.context import Mask, attend
from trainer.model.description import Llama3Scaling, ModelConfig
from trainer.model.experts import ExpertLayer, Routing
from trainer.model.made_again import made_again
from trainer.model.swiglu import SwiGLU
from trainer.recipe_tables.parallelism import ExpertsTable

Rotary = Tensor
"""Cosines and sines of the rotary embedding's angles, (2, B, T, K/2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpan:
    """The layers [first, end) of a model, and whether the tokens' embedding or the last norm and the output
    matrix are with them. A span may be without layers."""

    first: int
    end: int
    has_embedding: bool = True
    has_output: bool = True


class Llama(nn.Module):
    """Tokens to logits, or the part of it that `span` names: from the residual stream, to it. Names of
    parameters are those of the whole. Build it under `torch.device("meta")`; `trainer.parallel.mesh` gives it
    memory and weights."""

    def __init__(
        self, config: ModelConfig, span: LayerSpan | None = None, experts: ExpertsTable | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.span = span or LayerSpan(first=0, end=config.num_layers)
        self.model = Decoder(config, self.span, experts or ExpertsTable())
        self.lm_head = (
            nn.Linear(config.width, config.vocab_size, bias=False) if self.span.has_output else None
        )
        self.tie()

    def tie(self) -> None:
        """Make the output matrix the input embedding where the config says so (again after each
        replacement)."""
        if self.config.tied and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self, tokens: Tensor, positions_BT: Tensor, mask: Mask, routing: Routing | None = None
    ) -> Tensor:
        """Logits (B, T, V) of tokens (B, T). Without the embedding `tokens` is the residual stream (B, T, D),
        and without the output so is what comes out. Positions count from 0 in each document. Experts need
        `routing`."""
        x_BTD = self.model(tokens, positions_BT, mask, routing)
        return x_BTD if self.lm_head is None else cast(Tensor, self.lm_head(x_BTD))


class Decoder(nn.Module):
    """Embedding, layers, last norm; of a span what lies in it."""

    def __init__(self, config: ModelConfig, span: LayerSpan, experts: ExpertsTable) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width) if span.has_embedding else None
        # A list would number a span's layers from 0, and names must not depend on the layout.
        self.layers = nn.ModuleDict(
            {str(number): Layer(config, number, experts) for number in range(span.first, span.end)}
        )
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps) if span.has_output else None
        self.when_backward_ends: Callable[[], None] | None = None
        self.makes_again = False

    def forward(self, tokens: Tensor, positions_BT: Tensor, mask: Mask, routing: Routing | None) -> Tensor:
        x_BTD = tokens if self.embed_tokens is None else self.embed_tokens(tokens)
        if self.when_backward_ends is not None and x_BTD.requires_grad:
            # Every layer has then been differentiated: what follows is waiting for gradients of other ranks.
            notify = self.when_backward_ends
            x_BTD.register_hook(lambda _: notify())
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        turns = partial(rotary_turns, positions_BT, self.config, wide)
        rotary = turns()
        # A pipeline's rank would keep them of each of its stages, for every micro-batch under way.
        with made_again(rotary, turns) if self.makes_again else nullcontext():
            for layer in self.layers.values():
                x_BTD = layer(x_BTD, rotary, mask, routing)
        return x_BTD if self.norm is None else cast(Tensor, self.norm(x_BTD))


class Layer(nn.Module):
    """Attention and SwiGLU or experts, each behind its norm, each added to the stream.

    `makes_again`: backward makes the inputs of products again, from what the norms took and from gate and
    up. Under tensor parallel that is what keeps them split, as the stream is: what peers gathered in forward
    they gather again (Korthikanti et al., 2205.05198, section 4.2.2)."""

    def __init__(self, config: ModelConfig, number: int, experts: ExpertsTable) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=config.norm_eps)
        if config.experts is None:
            self.mlp = SwiGLU(config.width, config.hidden)
        else:
            self.block_sparse_moe = ExpertLayer(number, config.width, config.experts, experts)
        self.has_experts = config.experts is not None
        self.makes_again = False

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask: Mask, routing: Routing | None) -> Tensor:
        again = self._again(self.input_layernorm, x_BTD)
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), rotary, mask, again)
        normed_BTD = self.post_attention_layernorm(x_BTD)
        if self.has_experts:
            return cast(Tensor, x_BTD + self.block_sparse_moe(normed_BTD, routing))
        again = self._again(self.post_attention_layernorm, x_BTD)
        return cast(Tensor, x_BTD + self.mlp(normed_BTD, again))

    def _again(self, norm: nn.Module, x_BTD: Tensor) -> Callable[[], Tensor] | None:
        return partial(norm, x_BTD.detach()) if self.makes_again else None


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. Under tensor parallel each rank sees its own heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.width, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.width, bias=False)

    def forward(
        self, x_BTD: Tensor, rotary: Rotary, mask: Mask, again: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """`again`: makes the input once more, so that backward need not keep it."""
        with nullcontext() if again is None else made_again(x_BTD, again):
            query_BTHK, key_BTGK, value_BTGK = (
                product(x_BTD).unflatten(-1, (-1, self.head_dim))
                for product in (self.q_proj, self.k_proj, self.v_proj)
            )
        output_BTHK = attend(rotate(query_BTHK, rotary), rotate(key_BTGK, rotary), value_BTGK, mask)
        return cast(Tensor, self.o_proj(output_BTHK.flatten(-2)))


def rotary_angles(positions_BT: Tensor, config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """Angles (B, T, K/2) of the rotary embedding (Su et al., 2104.09864)."""
    exponents = torch.arange(0, config.head_dim, 2, device=positions_BT.device, dtype=dtype) / config.head_dim
    rule = config.rotary[0]
    assert rule is not None
    frequencies = rule.theta**-exponents
    if isinstance(rule.scaling, Llama3Scaling):
        frequencies = _stretch(frequencies, rule.scaling)
    return positions_BT[..., None].to(dtype) * frequencies


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's rule: long waves are slowed by `factor`, short ones left, those between blended."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies * (blend + (1 - blend) / scaling.factor)


def rotary_turns(positions_BT: Tensor, config: ModelConfig, dtype: torch.dtype) -> Rotary:
    """Their cosines and sines, which all layers share: backward needs them."""
    angles_BTK = rotary_angles(positions_BT, config, dtype)
    return torch.stack((angles_BTK.cos(), angles_BTK.sin()))


def rotate(x_BTHK: Tensor, rotary: Rotary) -> Tensor:
    """`x` turned by its position. Hugging Face's layout: coordinate i turns with i + K/2."""
    cosine, sine = (of_angles_BTK.unsqueeze(2) for of_angles_BTK in rotary)
    first, second = x_BTHK.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x_BTHK.dtype)


def initial_weight(name: str, shape: torch.Size, config: ModelConfig, seed: int, like: Tensor) -> Tensor:
    """The first value of parameter `name`: a function of (seed, name) alone, so equal in every parallel
    layout.

    Norms are 1; matrices normal with deviation 0.02, those that write to the residual stream divided by
    sqrt(2·layers) (GPT-2). Made on the device of `like` and in its dtype."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=like.dtype, device=like.device)
    deviation = 0.02
    if name.endswith(("o_proj.weight", "down_proj.weight", "experts.w2")):
        deviation /= math.sqrt(2 * config.num_layers)
    key = content_hash(f"{seed}/{name}".encode())
    generator = torch.Generator(like.device).manual_seed(int.from_bytes(key[:8], "little") >> 1)
    values = torch.empty(shape, dtype=like.dtype, device=like.device)
    return values.normal_(0.0, deviation, generator=generator)
