"""What a plan is made for: a model over a mesh, and how one rank's slice of a batch is cut into micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError
from trainer.model.sizes import ModelConfig
from trainer.options import Mesh, TrainTable

LARGEST_MICRO_BATCH: Final = 8
"""Sequences of a forward pass where the recipe gives none, as the feed cuts them."""

_BYTES: Final = {"bf16": 2, "bfloat16": 2, "fp32": 4, "float32": 4, "fp64": 8, "float64": 8, "auto": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """`compute_bytes` of a number in forward and backward, `weight_bytes` of a weight, a gradient or a moment."""

    config: ModelConfig
    mesh: Mesh
    zero: Literal[3, 2, 1, 0]
    recompute: Literal["none", "selective", "full"]
    compute_bytes: int
    weight_bytes: int
    seq_len: int
    global_batch: int
    micro_batch: int
    num_micro_batches: int

    @property
    def num_shards(self) -> int:
        """How many GPUs share one copy of weights, gradients and moments (context peers hold equal weights, so they
        share them too)."""
        return 1 if self.zero == 0 else self.mesh.dp_shard * self.mesh.cp

    @property
    def num_replicas(self) -> int:
        """How many such copies there are, each GPU's tensor and pipeline peers aside."""
        return self.mesh.dp * self.mesh.cp // self.num_shards

    @property
    def replicated_by_ddp(self) -> bool:
        """Whether DistributedDataParallel under autocast wraps the model, and not fully_shard."""
        return self.zero == 0 and self.mesh.tp == 1

    @property
    def synchronises_once(self) -> bool:
        """Whether weights are gathered and gradients reduced once a step, and whole in between: torch's pipelines do
        (torch.distributed.pipelining.stage, `backward_maybe_with_nosync`), other layouts for each micro-batch."""
        return self.mesh.pp > 1

    @property
    def num_stage_layers(self) -> int:
        """Layers of the fullest pipeline stage."""
        return -(-self.config.num_layers // self.mesh.pp)

    @property
    def num_stage_parameters(self) -> int:
        """Parameters of the fullest pipeline stage: its layers and, of more stages than one, one vocabulary matrix."""
        config = self.config
        if self.mesh.pp == 1:
            return config.num_parameters
        return self.num_stage_layers * config.num_layer_parameters + config.num_embedding_parameters + config.width

    @property
    def num_gpu_parameters(self) -> float:
        """Parameters that one GPU computes with. (Norms, which tensor peers do not split, are split here: less than
        one in ten thousand.)"""
        return self.num_stage_parameters / self.mesh.tp

    @property
    def tokens(self) -> int:
        """Positions of a micro-batch on one GPU, before tensor parallel splits anything."""
        return self.micro_batch * self.seq_len // self.mesh.cp


def planned_layout(table: TrainTable, config: ModelConfig) -> PlannedLayout:
    """The layout of a recipe; RecipeError where this model cannot be spread so."""
    mesh = table.mesh
    _check(table, config)
    slice_size = -(-table.global_batch // mesh.dp)
    micro_batch = min(table.micro_batch or LARGEST_MICRO_BATCH, slice_size)
    compute_bytes = _BYTES[table.dtype]
    return PlannedLayout(
        config=config,
        mesh=mesh,
        zero=table.zero,
        recompute=table.activation_checkpointing,
        compute_bytes=compute_bytes,
        weight_bytes=max(compute_bytes, 4),
        seq_len=table.seq_len,
        global_batch=table.global_batch,
        micro_batch=micro_batch,
        num_micro_batches=-(-slice_size // micro_batch),
    )


def _check(table: TrainTable, config: ModelConfig) -> None:
    mesh = table.mesh
    divided = {
        "seq_len": table.seq_len,
        "heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "hidden": config.hidden,
        "vocabulary": config.vocab_size,
    }
    for what, number in divided.items():
        if number % mesh.tp:
            raise RecipeError(f"train.parallel.tp = {mesh.tp}: it must divide the model's {what}, {number}")
    if table.seq_len % (mesh.cp * mesh.tp):
        raise RecipeError(f"train.parallel.cp = {mesh.cp}: with tp = {mesh.tp} it must divide seq_len, {table.seq_len}")
    if mesh.pp > config.num_layers:
        raise RecipeError(f"train.parallel.pp = {mesh.pp}: expected at most the model's layers, {config.num_layers}")
    if mesh.ep > 1:
        raise RecipeError(f"train.parallel.ep = {mesh.ep}: expected 1, the model has no experts")
