"""What of a layer is computed again in backward: nothing, all but its dearest products, or all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, create_selective_checkpoint_contexts

Recompute = Literal["none", "selective", "full"]
_PROFILER_MARKS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)
RECOMPUTED_PREFIX = "_checkpoint_wrapped_module."
"""What the wrapper puts into the names of parameters."""


def recomputed(layer: nn.Module, recompute: Recompute) -> nn.Module:
    """The layer, wrapped where something of it is computed again."""
    return layer if recompute == "none" else checkpoint_wrapper(layer, **_recomputation(recompute))


def _recomputation(recompute: Recompute) -> dict[str, Any]:
    if recompute == "full":
        return {"preserve_rng_state": False}
    return {
        "preserve_rng_state": False,
        "context_fn": _selective_contexts,
    }


def _selective_contexts() -> Any:
    """A layer's contexts: the count of products begins anew with every forward pass."""
    # torch holds each call of an operation in the recomputation against one of the forward pass. FSDP marks its hooks
    # for the profiler, and those of experts that are sharded apart make other marks in the recomputation.
    SAC_IGNORED_OPS.update(_PROFILER_MARKS)
    return create_selective_checkpoint_contexts(_keep_products())  # type: ignore[no-untyped-call]


def _keep_products() -> Callable[..., CheckpointPolicy]:
    """Keep what is dear to make again (attention, every second matrix product); recompute the rest."""
    attention = {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.higher_order.flex_attention,
    }
    num_products = {"forward": 0, "recompute": 0}

    def policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        if operation in attention:
            return CheckpointPolicy.MUST_SAVE
        if operation == torch.ops.aten.mm.default:
            mode = "recompute" if context.is_recompute else "forward"
            num_products[mode] += 1
            if num_products[mode] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy
