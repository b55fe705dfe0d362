"""How a model is spread, and what cannot be: every refusal before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from lineage.recipe import RecipeError
from trainer.model.sizes import ModelConfig
from trainer.options import ContextTable, ExpertsTable, Mesh, PipelineTable, TrainTable
from trainer.parallel.recompute import Recompute


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
    pipeline: PipelineTable = field(default_factory=PipelineTable)
    context: ContextTable = field(default_factory=ContextTable)
    experts: ExpertsTable = field(default_factory=ExpertsTable)

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of the optimizer's weights."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def wraps_in_ddp(self) -> bool:
        """Whether DistributedDataParallel wraps a model without experts; fully_shard composes with more."""
        return self.zero == 0 and self.mesh.tp == 1 and self.mesh.pp == 1


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
        pipeline=table.pipeline,
        context=table.context,
        experts=table.experts,
    )


def check_layout(table: TrainTable, config: ModelConfig) -> None:
    """RecipeError where this model cannot be spread so; the message names the key, the value and what is expected."""
    _check_tensor(table, config)
    _check_context(table)
    _check_pipeline(table, config)
    _check_experts(table, config)


def _check_tensor(table: TrainTable, config: ModelConfig) -> None:
    mesh = table.mesh
    divided = {
        "heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
    }
    for what, number in divided.items():
        if number % mesh.tp:
            raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide the model's {what}, {number}")
    if table.seq_len % mesh.tp:
        raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide train.seq_len, {table.seq_len}")


def _check_context(table: TrainTable) -> None:
    mesh, context = table.mesh, table.context
    if mesh.cp == 1:
        return
    parts = mesh.cp * mesh.tp
    if table.seq_len % parts:
        raise RecipeError(
            f"train.parallel.cp = {mesh.cp}: with tp = {mesh.tp} it must divide train.seq_len, {table.seq_len}"
        )
    if context.balance == "zigzag" and table.seq_len % (2 * mesh.cp):
        raise RecipeError(
            f'train.context.balance = "zigzag": 2 x cp = {2 * mesh.cp} must divide train.seq_len, {table.seq_len}; '
            'set balance = "none"'
        )


def _check_pipeline(table: TrainTable, config: ModelConfig) -> None:
    mesh, pipeline = table.mesh, table.pipeline
    schedule = f'train.pipeline.schedule = "{pipeline.schedule}"'
    if mesh.pp == 1:
        return
    pipeline.stage_layers(config.num_layers, mesh.pp)
    # torch takes the graph of a layer apart to do the products for inputs before those for weights.
    if pipeline.splits_backward and table.activation_checkpointing == "selective":
        raise RecipeError(
            f'train.activation_checkpointing = "selective": {schedule} splits backward, and a layer whose products are '
            'partly kept cannot be gone through twice; expected "full" or "none", or the schedule "1f1b"'
        )
    if pipeline.splits_backward and table.compile:
        raise RecipeError(
            f"train.compile = true: {schedule} splits backward, and a compiled layer cannot be split; expected false, "
            'or the schedule "1f1b" or "interleaved"'
        )


def _check_experts(table: TrainTable, config: ModelConfig) -> None:
    ep, experts = table.mesh.ep, config.experts
    if experts is None:
        if ep > 1:
            raise RecipeError(f"train.parallel.ep = {ep}: expected 1, the model has no experts")
        return
    if experts.num_experts % ep:
        raise RecipeError(f"train.parallel.ep = {ep}: it must divide the model's experts, {experts.num_experts}")
    if ep > 1 and table.zero == 0:
        raise RecipeError(
            f"train.zero = 0: expected 1, 2 or 3 with train.parallel.ep = {ep}: experts are spread over the ranks that "
            "share a model, and without sharding each has a whole one"
        )
    if table.compile:
        raise RecipeError(
            "train.compile = true: expected false with experts: the number of tokens of each changes with every batch"
        )
