"""A decoder as its description has it, whose parameters have the names that Hugging Face's models have.

Axes: B rows, T positions, D width, H query heads, G key-value heads, K head width, F hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor, nn

from lineage.ids import content_hash
from trainer.model.config.description import NORM_PLACES, ModelConfig
from trainer.model.context import Mask, Masks
from trainer.model.experts import ExpertLayer, Routing
from trainer.model.feed_forward import FeedForward
from trainer.model.loss import Head, Losses, Targets
from trainer.model.made_again import made_again
from trainer.model.norms import norm
from trainer.model.rotary import Turns, rotary_turns
from trainer.model.self_attention import self_attention
from trainer.recipe_tables.parallelism import ExpertsTable

BIASES: Final = (".bias", "experts.b1", "experts.b2", "experts.b3")
"""How names of biases end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpan:
    """The layers [first, end) of a model, and whether the tokens' embedding or the last norm and the output
    matrix are with them. A span may be without layers."""

    first: int
    end: int
    has_embedding: bool = True
    has_output: bool = True


class CausalLM(nn.Module):
    """Tokens to losses or logits, or the part of it that `span` names: from the residual stream, to it. Names of
    parameters are those of the whole. Build it under `torch.device("meta")`; `trainer.parallel.mesh` gives it
    memory and weights.

    `when_loss_begins`: called where the last norm has been computed and losses are."""

    def __init__(
        self,
        config: ModelConfig,
        span: LayerSpan | None = None,
        experts: ExpertsTable | None = None,
        *,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config
        self.span = span or LayerSpan(first=0, end=config.num_layers)
        self.model = Decoder(config, self.span, experts or ExpertsTable())
        self.lm_head: Head | None = None
        if self.span.has_output:
            self.lm_head = Head(config.width, config.vocab_size, cap=config.logit_cap, z_loss=z_loss)
        self.when_loss_begins: Callable[[], None] | None = None
        self.tie()

    def tie(self) -> None:
        """Make the output matrix the input embedding where the config says so (again after each
        replacement)."""
        if self.config.tied and self.lm_head is not None and self.model.embed_tokens is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        tokens: Tensor,
        positions_BT: Tensor,
        masks: Masks,
        routing: Routing | None = None,
        targets: Targets | None = None,
    ) -> Tensor | Losses:
        """The losses of tokens (B, T), or without `targets` their logits (B, T, V). Without the embedding `tokens`
        is the residual stream (B, T, D), and without the output so is what comes out. Positions count from 0 in
        each document. Experts need `routing`."""
        x_BTD = cast(Tensor, self.model(tokens, positions_BT, masks, routing))
        if self.lm_head is None:
            return x_BTD
        if self.when_loss_begins is not None:
            self.when_loss_begins()
        return cast(Tensor | Losses, self.lm_head(x_BTD, targets))


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
        self.norm = norm(config.norm_kind, config.width, config.norm_eps) if span.has_output else None
        # The rules that layers of the span follow; those without one have no positions.
        rules = (config.rotary_of(number) for number in range(span.first, span.end))
        self.rules = tuple(dict.fromkeys(rule for rule in rules if rule is not None))
        self.when_backward_ends: Callable[[], None] | None = None
        self.makes_again = False

    def forward(self, tokens: Tensor, positions_BT: Tensor, masks: Masks, routing: Routing | None) -> Tensor:
        x_BTD = tokens if self.embed_tokens is None else self._embedded(tokens)
        if self.when_backward_ends is not None and x_BTD.requires_grad:
            # Every layer has then been differentiated: what follows is waiting for gradients of other ranks.
            notify = self.when_backward_ends
            x_BTD.register_hook(lambda _: notify())  # type: ignore[no-untyped-call]
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        size = self.config.rotary_dim
        make = {rule: partial(rotary_turns, positions_BT, rule, size, wide) for rule in self.rules}
        turns = {rule: one() for rule, one in make.items()}
        with ExitStack() as stack:
            if self.makes_again:
                # A pipeline's rank would keep them of each of its stages, for every micro-batch under way.
                for rule, one in turns.items():
                    stack.enter_context(made_again(one, make[rule]))
            for number, layer in self.layers.items():
                own, window = self.config.rotary_of(int(number)), self.config.window_of(int(number))
                x_BTD = layer(x_BTD, None if own is None else turns[own], masks[window], routing)
        return x_BTD if self.norm is None else cast(Tensor, self.norm(x_BTD))

    def _embedded(self, tokens: Tensor) -> Tensor:
        assert self.embed_tokens is not None
        x_BTD = cast(Tensor, self.embed_tokens(tokens))
        scale = self.config.embedding_scale
        return x_BTD if scale == 1 else x_BTD * torch.tensor(scale, dtype=x_BTD.dtype).item()


class Layer(nn.Module):
    """Attention and a feed-forward part or experts, each with norms, each added to the stream.

    `makes_again`: backward makes the inputs of products again, from what the norms took and from gate and
    up. Under tensor parallel that is what keeps them split, as the stream is: what peers gathered in forward
    they gather again (Korthikanti et al., 2205.05198, section 4.2.2)."""

    def __init__(self, config: ModelConfig, number: int, experts: ExpertsTable) -> None:
        super().__init__()
        self.places = before, behind, before_second, behind_second = NORM_PLACES[config.norms]

        def add_norm(place: str | None) -> None:
            if place is not None:
                setattr(self, place, norm(config.norm_kind, config.width, config.norm_eps))

        add_norm(before)
        self.self_attn = self_attention(config)
        add_norm(behind)
        add_norm(before_second)
        sparse = config.has_experts(number)
        self.block_sparse_moe = ExpertLayer(number, config, experts) if sparse else None
        if not sparse:
            self.mlp = FeedForward(config.width, config.hidden, config.gate)
        add_norm(behind_second)
        self.makes_again = False

    def forward(self, x_BTD: Tensor, turns: Turns | None, mask: Mask, routing: Routing | None) -> Tensor:
        before, behind, before_second, behind_second = (
            getattr(self, place) if place else _same for place in self.places
        )
        again = self._again(before, x_BTD)
        x_BTD = x_BTD + behind(self.self_attn(before(x_BTD), turns, mask, again))
        normed_BTD = before_second(x_BTD)
        if self.block_sparse_moe is not None:
            return x_BTD + behind_second(self.block_sparse_moe(normed_BTD, routing))
        again = self._again(before_second, x_BTD)
        return x_BTD + behind_second(self.mlp(normed_BTD, again))

    def _again(self, before: Callable[[Tensor], Tensor], x_BTD: Tensor) -> Callable[[], Tensor] | None:
        return partial(before, x_BTD.detach()) if self.makes_again else None


def _same(x_BTD: Tensor) -> Tensor:
    return x_BTD


def initial_weight(name: str, shape: torch.Size, config: ModelConfig, seed: int, like: Tensor) -> Tensor:
    """The first value of parameter `name`: a function of (seed, name) alone, so equal in every parallel
    layout.

    Norms multiply by 1, biases are 0; the rest is normal with the description's deviation, in matrices that write
    to the residual stream divided by sqrt(2·layers) (GPT-2). Made on the device of `like` and in its dtype."""
    values = torch.empty(shape, dtype=like.dtype, device=like.device)
    if name.endswith("norm.weight"):
        return values.fill_(config.norm_kind != "one plus")
    if name.endswith(BIASES):
        return values.zero_()
    deviation = config.initial_deviation
    if name.endswith(("o_proj.weight", "down_proj.weight", "experts.w2")):
        deviation /= math.sqrt(2 * config.num_layers)
    key = content_hash(f"{seed}/{name}".encode())
    generator = torch.Generator(like.device).manual_seed(int.from_bytes(key[:8], "little") >> 1)
    return values.normal_(0.0, deviation, generator=generator)
