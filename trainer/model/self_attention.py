"""A layer's attention: from the stream to queries, keys and values, and back.

Axes as in `trainer.model.transformer`; L numbers of a latent, R numbers that are rotated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from trainer.model.config.description import LatentAttention, ModelConfig
from trainer.model.context import Mask, attend
from trainer.model.made_again import made_again
from trainer.model.norms import WholeNorm, norm
from trainer.model.peers import local_part
from trainer.model.pieces import Scoring
from trainer.model.rotary import Turns, rotate


def self_attention(config: ModelConfig) -> Attention | Latents:
    """The attention that a description has."""
    return Attention(config) if config.latent is None else Latents(config, config.latent)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. Under tensor parallel each rank sees its own heads."""

    keeps = (True, False, True, False)
    """Of its products those that selective recomputation keeps: queries and values, not keys and the output."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, head_dim, biases = config.width, config.head_dim, config.input_biases
        queries, pairs = config.num_heads * head_dim, config.num_kv_heads * head_dim
        self.head_dim, self.interleaved = head_dim, config.interleaved
        self.scale, self.cap = config.score_scale, config.score_cap
        self.q_proj = nn.Linear(width, queries, bias=biases)
        self.k_proj = nn.Linear(width, pairs, bias=biases)
        self.v_proj = nn.Linear(width, pairs, bias=biases)
        self.o_proj = nn.Linear(queries, width, bias=config.output_bias)
        self.norms_heads = config.query_key_norm
        if self.norms_heads == "head":
            self.q_norm = norm(config.norm_kind, head_dim, config.norm_eps)
            self.k_norm = norm(config.norm_kind, head_dim, config.norm_eps)
        elif self.norms_heads == "all heads":
            self.q_norm = WholeNorm(config.norm_kind, queries, config.norm_eps)
            self.k_norm = WholeNorm(config.norm_kind, pairs, config.norm_eps)
        self.sinks = nn.Parameter(torch.empty(config.num_heads)) if config.sinks else None

    def forward(
        self, x_BTD: Tensor, turns: Turns | None, mask: Mask, again: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """`again`: makes the input once more, so that backward need not keep it."""
        with nullcontext() if again is None else made_again(x_BTD, again):
            query_BTN, key_BTN, value_BTN = self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)
        if self.norms_heads == "all heads":
            query_BTN, key_BTN = self.q_norm(query_BTN), self.k_norm(key_BTN)
        query_BTHK, key_BTGK, value_BTGK = (
            whole.unflatten(-1, (-1, self.head_dim)) for whole in (query_BTN, key_BTN, value_BTN)
        )
        if self.norms_heads == "head":
            query_BTHK, key_BTGK = self.q_norm(query_BTHK), self.k_norm(key_BTGK)
        query_BTHK = rotate(query_BTHK, turns, interleaved=self.interleaved)
        key_BTGK = rotate(key_BTGK, turns, interleaved=self.interleaved)
        sinks_H = None if self.sinks is None else local_part(self.sinks)
        scoring = Scoring(scale=self.scale, cap=self.cap, sinks_H=sinks_H)
        output_BTHK = attend(query_BTHK, key_BTGK, value_BTGK, mask, scoring)
        return cast(Tensor, self.o_proj(output_BTHK.flatten(-2)))


class Latents(nn.Module):
    """Multi-head latent attention. Under tensor parallel each rank has the latents whole, and its own heads made
    from them."""

    def __init__(self, config: ModelConfig, sizes: LatentAttention) -> None:
        super().__init__()
        width, heads, eps = config.width, config.num_heads, sizes.norm_eps
        self.sizes, self.scale, self.cap = sizes, config.score_scale, config.score_cap
        self.interleaved = config.interleaved
        self.has_query_latent = sizes.query_rank is not None
        if sizes.query_rank is None:
            self.q_proj = nn.Linear(width, heads * config.head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, sizes.query_rank, bias=False)
            self.q_a_layernorm = norm(config.norm_kind, sizes.query_rank, eps)
            self.q_b_proj = nn.Linear(sizes.query_rank, heads * config.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, sizes.kv_rank + sizes.rope_dim, bias=False)
        self.kv_a_layernorm = norm(config.norm_kind, sizes.kv_rank, eps)
        self.kv_b_proj = nn.Linear(sizes.kv_rank, heads * (sizes.nope_dim + sizes.value_dim), bias=False)
        self.o_proj = nn.Linear(heads * sizes.value_dim, width, bias=False)

    @property
    def keeps(self) -> tuple[bool, ...]:
        """Of its products those that selective recomputation keeps: the latents."""
        return (True, False, True, False, False) if self.has_query_latent else (False, True, False, False)

    def forward(
        self, x_BTD: Tensor, turns: Turns | None, mask: Mask, again: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """`again`: makes the input once more, so that backward need not keep it."""
        sizes = self.sizes
        with nullcontext() if again is None else made_again(x_BTD, again):
            query = self.q_a_proj(x_BTD) if self.has_query_latent else self.q_proj(x_BTD)
            latent_BTL = self.kv_a_proj_with_mqa(x_BTD)
        if self.has_query_latent:
            query = self.q_b_proj(self.q_a_layernorm(query))
        latent_BTL, shared_BTR = latent_BTL.split((sizes.kv_rank, sizes.rope_dim), dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(latent_BTL))
        both = both.unflatten(-1, (-1, sizes.nope_dim + sizes.value_dim))
        key_BTHK, value_BTHK = both.split((sizes.nope_dim, sizes.value_dim), dim=-1)
        query_BTHK = query.unflatten(-1, (-1, sizes.nope_dim + sizes.rope_dim))
        still, turning = query_BTHK.split((sizes.nope_dim, sizes.rope_dim), dim=-1)
        turning = rotate(turning, turns, interleaved=self.interleaved)
        shared = rotate(_whole(shared_BTR).unsqueeze(2), turns, interleaved=self.interleaved)
        query_BTHK = torch.cat((still, turning), dim=-1)
        key_BTHK = torch.cat((key_BTHK, shared.expand(*key_BTHK.shape[:-1], -1)), dim=-1)
        output_BTHK = attend(query_BTHK, key_BTHK, value_BTHK, mask, Scoring(scale=self.scale, cap=self.cap))
        return cast(Tensor, self.o_proj(output_BTHK.flatten(-2)))


def _whole(shared: Tensor) -> Tensor:
    """What every tensor parallel rank has, and of whose gradient each has the part of its own heads."""
    return shared.to_local(grad_placements=[Partial()]) if isinstance(shared, DTensor) else shared
