"""Tensor parallel: each rank has its heads and its part of every matrix, with norms and the residual stream
split by position between layers (sequence parallel; Korthikanti et al., 2205.05198)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer.model.config.description import NORM_PLACES
from trainer.model.self_attention import Attention
from trainer.model.transformer import CausalLM, Layer

_OF_HEADS: Final = ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj")
"""Products whose outputs are split by heads."""
OF_LATENTS: Final = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
"""What each rank computes whole."""


def split_tensors(model: CausalLM, mesh: DeviceMesh) -> None:
    """Make the model's parameters DTensors over `mesh`; the stream between layers is one too, split by
    position."""
    # It warns for each rank that norms and exports reduce over two dimensions in turn, which is meant.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # The residual stream stays a DTensor split by position: with local tensors a compiled block would lose
    # it.
    rowwise = partial(RowwiseParallel, output_layouts=Shard(1), use_local_output=False)
    every_plan: dict[str, ParallelStyle] = {
        place: SequenceParallel() for place in NORM_PLACES[model.config.norms] if place
    }
    every_plan |= {
        "self_attn": PrepareModuleInput(
            input_layouts=(Shard(1), None, None, None),
            desired_input_layouts=(Replicate(), None, None, None),
        ),
        "self_attn.o_proj": rowwise(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": rowwise(),
    }
    every_plan |= {f"self_attn.{name}": ColwiseParallel() for name in _OF_HEADS}
    every_plan |= {f"self_attn.{name}": _Whole() for name in OF_LATENTS}
    of_heads = (
        _SplitNorm()
        if model.config.query_key_norm == "all heads"
        else SequenceParallel(sequence_dim=2, use_local_output=True)
    )
    every_plan |= {"self_attn.q_norm": of_heads, "self_attn.k_norm": of_heads}
    for layer in model.model.layers.values():
        # Experts are not split: each rank routes its own positions, and experts lie on a mesh of their own.
        there = dict(layer.named_modules())
        parallelize_module(layer, mesh, {name: style for name, style in every_plan.items() if name in there})
        attention = cast(Layer, layer).self_attn
        if isinstance(attention, Attention) and attention.sinks is not None:
            sinks = distribute_tensor(attention.sinks, mesh, [Shard(0)], src_data_rank=None)
            attention.sinks = nn.Parameter(sinks)
    outer_plan: dict[str, ParallelStyle] = {}
    if model.span.has_embedding:
        outer_plan["model.embed_tokens"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        )
    if model.span.has_output:
        outer_plan["model.norm"] = SequenceParallel()
        outer_plan["lm_head"] = SplitRows()
    if outer_plan:
        parallelize_module(model, mesh, outer_plan)
    model.tie()


class _Whole(ParallelStyle):
    """Every rank has the module's parameters whole, and computes the same from the same input."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class SplitRows(ParallelStyle):
    """Each rank has its part of the parameters' first dimension; the module itself knows what to do with that."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _split_rows)


def _split_rows(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        whole = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(whole))


class _SplitNorm(ParallelStyle):
    """A norm over all heads, of which each rank has its own: tensors go in and come out as local ones, and within
    it the mean of squares is summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def take(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[Tensor, ...]:
            return tuple(DTensor.from_local(one, mesh, [Shard(-1)], run_check=False) for one in inputs)

        def give(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            return output.redistribute(placements=[Shard(-1)]).to_local()

        return distribute_module(module, device_mesh, _split_rows, cast(Any, take), cast(Any, give))
