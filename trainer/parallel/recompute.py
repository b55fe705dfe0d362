"""What of a layer is computed again in backward: nothing, all but attention and its larger products, or all.

A layer's products come in this order: queries, keys, values, attention's output; the router, where there are
experts; then gate, up and down of its SwiGLU, of all experts together or of one after the other, and of the
shared experts."""

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
_PRODUCTS: Final = {torch.ops.aten.mm.default, torch.ops.aten._grouped_mm.default}


def recomputed(layer: Layer, recompute: Recompute) -> nn.Module:
    """The layer, wrapped where something of it is computed again."""
    if recompute == "none":
        return layer
    if recompute == "full":
        return checkpoint_wrapper(layer, preserve_rng_state=False)
    contexts = partial(_selective_contexts, has_router=layer.has_experts)
    return checkpoint_wrapper(layer, preserve_rng_state=False, context_fn=contexts)


def _selective_contexts(*, has_router: bool) -> Any:
    """A layer's contexts: the count of products begins anew with every forward pass."""
    # torch holds each call of an operation in the recomputation against one of the forward pass. FSDP marks
    # its hooks for the profiler, and those of experts that are sharded apart make other marks in the
    # recomputation.
    SAC_IGNORED_OPS.update(_PROFILER_MARKS)
    return create_selective_checkpoint_contexts(_keep_products(has_router))  # type: ignore[no-untyped-call]


def _keep_products(has_router: bool) -> Callable[..., CheckpointPolicy]:
    """Keep what is dear to make again: attention, and the products that `_is_kept` names; recompute the
    rest."""
    num_products: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        if operation in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if operation in _PRODUCTS:
            number = num_products[context.is_recompute]
            num_products[context.is_recompute] += 1
            if _is_kept(number, has_router):
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _is_kept(number: int, has_router: bool) -> bool:
    """Whether a layer keeps its product with this number: of attention queries and values, of a SwiGLU gate,
    and of experts down, by which the router's weights are multiplied. Nothing in backward asks for what a
    SwiGLU alone gives to the stream: the recomputation ends before it. A router's product is small."""
    if number < 4:
        return number % 2 == 0
    if not has_router:
        return number == 4
    return number > 4 and (number - 5) % 3 != 1
