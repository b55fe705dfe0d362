"""How a model is spread and computed, as its recipe says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from trainer.options import TrainTable
from trainer.parallel.recompute import Recompute
from trainer.recipe_tables.parallelism import (
    ContextTable,
    ExpertsTable,
    Float8Table,
    Mesh,
    OverlapTable,
    PipelineTable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """How a model is spread and computed. `dtype` is that of forward and backward; weights are kept in
    float32, or in float64 where that is the dtype; with `float8` its products are rounded to that."""

    mesh: Mesh
    zero: Literal[3, 2, 1, 0] = 3
    dtype: torch.dtype = torch.float32
    recompute: Recompute = "none"
    gather_again: bool = True
    compile: bool = False
    compile_backend: str = "inductor"
    pipeline: PipelineTable = field(default_factory=PipelineTable)
    context: ContextTable = field(default_factory=ContextTable)
    experts: ExpertsTable = field(default_factory=ExpertsTable)
    float8: Float8Table | None = None
    overlap: OverlapTable = field(default_factory=OverlapTable)
    z_loss: float = 0.0

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
    dtype = names.get(table.dtype, automatic if table.dtype in ("auto", "float8") else table.dtype)
    return ParallelLayout(
        mesh=table.mesh,
        zero=table.zero,
        dtype=getattr(torch, dtype),
        recompute=table.activation_checkpointing,
        gather_again=table.gather_again,
        compile=table.compile,
        pipeline=table.pipeline,
        context=table.context,
        experts=table.experts,
        float8=table.float8 if table.dtype == "float8" else None,
        overlap=table.overlap,
        z_loss=table.z_loss,
    )
