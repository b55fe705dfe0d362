"""One model over a mesh of processes: (dp_replicate, dp_shard, tp).

    zero = 0          DistributedDataParallel; with tp, replicas on a (dp, 1) mesh of fully_shard
    zero = 2          fully_shard that keeps parameters gathered between forward and backward
    zero = 3          fully_shard; dp_replicate > 1 makes it HSDP
    tp > 1            tensor parallel with sequence parallel norms and a loss over a split vocabulary

Every layout averages gradients over the data parallel ranks, so the loss is scaled by their number: the sum over the
global batch is what the optimizer sees.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from lineage.recipe import RecipeError
from trainer.model.attention import Kernel, Mask, document_mask, kernel_for
from trainer.model.sizes import ModelConfig
from trainer.model.transformer import Llama, initial_weight
from trainer.options import Mesh, TrainTable

Recompute = Literal["none", "selective", "full"]
_RECOMPUTED: Final = "_checkpoint_wrapped_module."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How a model is spread and computed. `dtype` is that of forward and backward; weights are kept in float32, or
    in float64 where that is the dtype."""

    mesh: Mesh
    zero: Literal[3, 2, 1, 0] = 3
    dtype: torch.dtype = torch.float32
    recompute: Recompute = "none"
    compile: bool = False
    compile_backend: str = "inductor"

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of the optimizer's weights."""
        return torch.promote_types(self.dtype, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A model on its mesh, and what the step takes from it."""

    module: nn.Module
    layout: ParallelLayout
    device: torch.device
    kernel: Kernel
    dp_group: dist.ProcessGroup
    dp_rank: int

    @property
    def dp_size(self) -> int:
        """How many ways a global batch is sliced."""
        return self.layout.mesh.dp

    @property
    def llama(self) -> Llama:
        """The model without its data parallel wrapper."""
        return cast(Llama, getattr(self.module, "module", self.module))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by the names of Hugging Face's Llama, whatever wraps them; a tied one once."""
        return {plain_name(name): parameter for name, parameter in self.module.named_parameters()}

    def synchronise(self, last: bool) -> AbstractContextManager[None]:
        """Wraps forward and backward of a micro-batch; only the `last` one reduces over replicas.

        Sharded gradients are reduce-scattered each time: what ZeRO-2 and ZeRO-3 save would be lost otherwise."""
        if isinstance(self.module, DistributedDataParallel):
            return contextlib.nullcontext() if last else cast(Any, self.module.no_sync())
        cast(FSDPModule, self.module).set_requires_all_reduce(last)
        return contextlib.nullcontext()

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, mask: Mask) -> Tensor:
        """Logits (B, T, V); under tensor parallel a DTensor split over the vocabulary."""
        casts = isinstance(self.module, DistributedDataParallel) and self.layout.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=casts):
            return cast(Tensor, self.module(tokens_BT, positions_BT, mask))

    def computing_loss(self) -> AbstractContextManager[None]:
        """Wraps the loss and its backward: without it a split vocabulary would be gathered."""
        return cast(Any, loss_parallel()) if self.layout.mesh.tp > 1 else contextlib.nullcontext()


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of wrappers."""
    return name.replace(_RECOMPUTED, "").removeprefix("module.")


def parallel_layout(table: TrainTable, device: torch.device) -> ParallelLayout:
    """The layout that a recipe asks for on this kind of device."""
    names = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    automatic = "bfloat16" if device.type == "cuda" else "float32"
    dtype = names.get(table.dtype, automatic if table.dtype == "auto" else table.dtype)
    return ParallelLayout(
        mesh=table.mesh,
        zero=table.zero,
        dtype=getattr(torch, dtype),
        recompute=table.activation_checkpointing,
        compile=table.compile,
    )


def check_layout(layout: ParallelLayout, config: ModelConfig, seq_len: int) -> None:
    """RecipeError where this model cannot be spread so; the message names the key."""
    mesh = layout.mesh
    for name in ("pp", "cp", "ep"):
        if getattr(mesh, name) > 1:
            raise RecipeError(
                f"train.parallel.{name} = {getattr(mesh, name)}: expected 1; dp_replicate, dp_shard and tp can be more"
            )
    divided = {
        "seq_len": seq_len,
        "heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
    }
    for what, number in divided.items():
        if number % mesh.tp:
            raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide the model's {what}, {number}")


def parallelise_model(
    config: ModelConfig, layout: ParallelLayout, device: torch.device, timeout: datetime.timedelta
) -> ParallelModel:
    """The model on its mesh, with memory but without weights (see `initialise`). Collective: every rank calls it.

    The default process group must exist and have the size of the mesh."""
    sizes = layout.mesh
    # Without sharding every data parallel rank is a replica, however the recipe names it.
    replicas, shards = (sizes.dp, 1) if layout.zero == 0 else (sizes.dp_replicate, sizes.dp_shard)
    mesh = _device_mesh(device.type, (replicas, shards, sizes.tp), timeout)
    with torch.device("meta"):
        model = Llama(config).to(layout.weight_dtype)
    if sizes.tp > 1:
        # It warns for each rank that norms and exports reduce over two dimensions in turn, which is meant.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        _tensor_parallel(model, mesh["tp"])
    layers = model.model.layers
    for index, layer in enumerate(layers):
        if layout.recompute != "none":
            layers[index] = checkpoint_wrapper(layer, **_recomputation(layout.recompute))
        if layout.compile:
            layers[index].compile(backend=layout.compile_backend)
    wrapped = _data_parallel(model, mesh, layout, device)
    dp_mesh = mesh["dp_replicate", "dp_shard"]._flatten("dp")
    return ParallelModel(
        module=wrapped,
        layout=layout,
        device=device,
        kernel=kernel_for(device),
        dp_group=dp_mesh.get_group(),
        dp_rank=dp_mesh.get_local_rank(),
    )


def _device_mesh(device_type: str, shape: tuple[int, int, int], timeout: datetime.timedelta) -> DeviceMesh:
    names = ("dp_replicate", "dp_shard", "tp")
    if device_type == "cpu":
        # Groups of a mesh do not inherit the default group's timeout.
        options = cast(Any, dist.ProcessGroupGloo)._Options()
        options._timeout = timeout
        return init_device_mesh(
            device_type, shape, mesh_dim_names=names, backend_override=dict.fromkeys(names, ("gloo", options))
        )
    return init_device_mesh(device_type, shape, mesh_dim_names=names)


def _tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    # The residual stream stays a DTensor split by position: with local tensors a compiled block would lose it.
    rowwise = partial(RowwiseParallel, output_layouts=Shard(1), use_local_output=False)
    layer_plan = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": rowwise(),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": rowwise(),
    }
    for layer in model.model.layers:
        parallelize_module(layer, mesh, layer_plan)
    outer_plan = {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
        ),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, outer_plan)
    model.tie()


def _recomputation(recompute: Recompute) -> dict[str, Any]:
    if recompute == "full":
        return {"preserve_rng_state": False}
    return {
        "preserve_rng_state": False,
        "context_fn": _selective_contexts,
    }


def _selective_contexts() -> Any:
    """A layer's contexts: the count of products begins anew with every forward pass."""
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


def _data_parallel(model: Llama, mesh: DeviceMesh, layout: ParallelLayout, device: torch.device) -> nn.Module:
    if layout.zero == 0 and layout.mesh.tp == 1:
        model.to_empty(device=device)
        model.tie()  # moving from meta gave each module a parameter of its own
        group = mesh["dp_replicate"].get_group()
        return DistributedDataParallel(model, process_group=group, init_sync=False, gradient_as_bucket_view=True)
    replicated = mesh["dp_replicate"].size() > 1
    policy = MixedPrecisionPolicy(param_dtype=layout.dtype, reduce_dtype=layout.weight_dtype, cast_forward_inputs=False)
    shard = partial(
        fully_shard, mesh=mesh["dp_replicate", "dp_shard"] if replicated else mesh["dp_shard"], mp_policy=policy
    )
    again = layout.zero == 3
    for layer in model.model.layers:
        shard(layer, reshard_after_forward=again)
    if not model.config.tied:
        shard(model.model.embed_tokens, reshard_after_forward=again)
        # Backward begins with these two: gathered again at once, so resharding them saves nothing.
        shard([model.model.norm, model.lm_head], reshard_after_forward=False)
    shard(model, reshard_after_forward=again)
    model.to_empty(device=device)
    return model


def initialise(model: ParallelModel, seed: int) -> None:
    """Give every parameter its first value: equal in every layout, without a collective."""
    config = model.llama.config
    with torch.no_grad():
        for name, parameter in model.parameters().items():
            local = local_part(parameter)
            assign(parameter, initial_weight(name, parameter.shape, config, seed, local))


def settle_buckets(model: ParallelModel, num_rows: int, seq_len: int) -> None:
    """Make the buckets in which DDP sums gradients final, by a backward pass whose gradients are dropped. Collective;
    nothing to do in other layouts. The shape is that of a step's micro-batch, so that nothing is compiled twice.

    DDP packs its buckets anew after its first backward pass, by the order in which gradients came, and from three ranks
    on the place in a bucket decides in which order the ranks are added. The first step of each start would therefore
    round differently than the same step of a run that was never interrupted."""
    if not isinstance(model.module, DistributedDataParallel):
        return
    zeros_BT = torch.zeros(num_rows, seq_len, dtype=torch.int64, device=model.device)
    mask = document_mask(zeros_BT.to(torch.int32), model.kernel)
    positions_BT = torch.arange(seq_len, dtype=torch.int32, device=model.device).expand(num_rows, -1)
    model.forward(zeros_BT, positions_BT, mask).sum().backward()  # type: ignore[no-untyped-call]
    model.module.zero_grad(set_to_none=True)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's piece of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def assign(target: Tensor, whole: Tensor) -> None:
    """Write this rank's piece of `whole` into `target`."""
    if isinstance(target, DTensor):
        shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
        whole = whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
    local_part(target).copy_(whole)
