"""Tensor parallel: each rank has its heads and its part of every matrix, with norms and the residual stream
split by position between layers (sequence parallel; Korthikanti et al., 2205.05198)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.model.transformer import Llama


def split_tensors(model: Llama, mesh: DeviceMesh) -> None:
    """Make the model's parameters DTensors over `mesh`; the stream between layers is one too, split by
    position."""
    # It warns for each rank that norms and exports reduce over two dimensions in turn, which is meant.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # The residual stream stays a DTensor split by position: with local tensors a compiled block would lose
    # it.
    rowwise = partial(RowwiseParallel, output_layouts=Shard(1), use_local_output=False)
    layer_plan: dict[str, Any] = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_layouts=(Shard(1), None, None, None),
            desired_input_layouts=(Replicate(), None, None, None),
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": rowwise(),
        "post_attention_layernorm": SequenceParallel(),
    }
    dense_plan = {
        "mlp": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": rowwise(),
    }
    for layer in model.model.layers.values():
        # Experts are not split: each rank routes its own positions, and experts lie on a mesh of their own.
        parallelize_module(layer, mesh, layer_plan if model.config.experts else layer_plan | dense_plan)
    outer_plan: dict[str, Any] = {}
    if model.span.has_embedding:
        outer_plan["model.embed_tokens"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        )
    if model.span.has_output:
        outer_plan["model.norm"] = SequenceParallel()
        outer_plan["lm_head"] = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
    if outer_plan:
        parallelize_module(model, mesh, outer_plan)
    model.tie()
