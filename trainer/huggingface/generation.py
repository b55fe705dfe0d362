"""Tokens from a model that is open in this process, one after the other, with its keys and values kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lineage.recipe import RecipeError
from trainer.huggingface.opened import OpenedModel, routing_of
from trainer.model.cache import KeyValueCache
from trainer.model.rows import DeviceRows


class Decoding(NamedTuple):
    """How the next token is chosen: the likeliest where `temperature` is 0; else one drawn from the softmax of
    logits / temperature, among the likeliest tokens that together have `top_p` of it (Holtzman et al.,
    1904.09751). Equal seeds draw equal tokens on one machine."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


def generate(
    opened: OpenedModel, prompt: Sequence[int], decoding: Decoding, allowed: Collection[int] | None = None
) -> Iterator[int]:
    """The tokens behind `prompt`, without end until the row is as long as the model's rows are. `allowed`: ids that
    may be chosen, None for all. RecipeError where the prompt is empty or leaves no room."""
    if not 0 < len(prompt) < opened.seq_len:
        raise RecipeError(
            f"the prompt has {len(prompt):,} tokens: expected 1 to {opened.seq_len - 1:,}, for rows of this model"
            f" have {opened.seq_len:,}"
        )
    config, device = opened.config, opened.device
    cache = KeyValueCache([config.window_of(number) for number in range(config.num_layers)])
    forbidden_V = _forbidden(config.vocab_size, allowed, device)
    generator = torch.Generator().manual_seed(decoding.seed)
    new = list(prompt)
    while cache.length + len(new) < opened.seq_len:
        logits_V = next_logits(opened, new, cache).masked_fill(forbidden_V, -torch.inf)
        new = [chosen(logits_V, decoding, generator)]
        yield new[0]


@torch.no_grad()
def next_logits(opened: OpenedModel, tokens: Sequence[int], cache: KeyValueCache) -> Tensor:
    """Logits (V) of what follows these tokens, which follow those in `cache`."""
    if len(tokens) > 1:  # logits of a whole prompt would take more memory than all the rest
        _pass(opened, tokens[:-1], cache, with_output=False)
    return _pass(opened, tokens[-1:], cache, with_output=True)[0, -1]


def _pass(opened: OpenedModel, tokens: Sequence[int], cache: KeyValueCache, *, with_output: bool) -> Tensor:
    tokens_BT = torch.tensor([tokens], device=opened.device)
    rows = DeviceRows.of_one_document(tokens_BT)
    positions_BT = rows.positions_BT + cache.length
    masks = cache.masks(len(tokens), opened.device)
    routing = None if opened.config.experts is None else routing_of(rows)
    module = opened.model if with_output else opened.model.model
    return cast(Tensor, module(tokens_BT, positions_BT, masks, routing))


def _forbidden(vocab_size: int, allowed: Collection[int] | None, device: torch.device) -> Tensor:
    forbidden_V = torch.full((vocab_size,), allowed is not None, device=device)
    if allowed is not None:
        forbidden_V[[id_ for id_ in allowed if id_ < vocab_size]] = False
    return forbidden_V


def chosen(logits_V: Tensor, decoding: Decoding, generator: torch.Generator) -> int:
    """The next token."""
    if decoding.temperature == 0:
        return int(logits_V.argmax())
    shares_V = (logits_V.double().cpu() / decoding.temperature).softmax(-1)
    falling_V, ids_V = shares_V.sort(descending=True, stable=True)
    # A token is kept while those before it have less than top_p.
    kept_V = falling_V * (falling_V.cumsum(-1) - falling_V < decoding.top_p)
    return int(ids_V[torch.multinomial(kept_V, 1, generator=generator)])
