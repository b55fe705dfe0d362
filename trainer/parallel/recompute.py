"""What of a layer is computed again in backward: nothing, all but attention and its larger products, or all.

A layer's products come in this order: those of its attention; the router, where there are experts; then gate, up
and down of its feed-forward part, of all experts together, and of the shared ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, create_selective_checkpoint_contexts

from trainer.model.transformer import Layer

Recompute = Literal["none", "selective", "full"]
_PROFILER_MARKS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)
RECOMPUTED_PREFIX = "_checkpoint_wrapped_module."
"""What the wrapper puts into the names of parameters."""
_ATTENTION: Final = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.higher_order.flex_attention,
}
_PRODUCTS: Final = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
}


def recomputed(layer: Layer, recompute: Recompute) -> nn.Module:
    """The layer, wrapped where something of it is computed again."""
    if recompute == "none":
        return layer
    if recompute == "full":
        return checkpoint_wrapper(layer, preserve_rng_state=False)
    kept = layer.self_attn.keeps
    contexts = partial(_selective_contexts, kept=kept, has_router=layer.block_sparse_moe is not None)
    return checkpoint_wrapper(layer, preserve_rng_state=False, context_fn=contexts)


def _selective_contexts(*, kept: tuple[bool, ...], has_router: bool) -> Any:
    """A layer's contexts: the count of products begins anew with every forward pass."""
    # torch holds each call of an operation in the recomputation against one of the forward pass. FSDP marks
    # its hooks for the profiler, and those of experts that are sharded apart make other marks in the
    # recomputation.
    SAC_IGNORED_OPS.update(_PROFILER_MARKS)
    return create_selective_checkpoint_contexts(_keep_products(kept, has_router))  # type: ignore[no-untyped-call]


def _keep_products(kept: tuple[bool, ...], has_router: bool) -> Callable[..., CheckpointPolicy]:
    """Keep what is dear to make again: attention, and the products that `_is_kept` names; recompute the
    rest."""
    num_products: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        if operation in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if operation in _PRODUCTS:
            number = num_products[context.is_recompute]
            num_products[context.is_recompute] += 1
            if _is_kept(number, kept, has_router):
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _is_kept(number: int, kept: tuple[bool, ...], has_router: bool) -> bool:
    """Whether a layer keeps its product with this number: of attention those that `kept` says, of a feed-forward
    part gate, and of experts down, by which the router's weights are multiplied. Nothing in backward asks for
    what a feed-forward part alone gives to the stream: the recomputation ends before it. A router's product is
    small."""
    if number < len(kept):
        return kept[number]
    number -= len(kept)
    if not has_router:
        return number == 0
    return number > 0 and (number - 1) % 3 != 1
