"""Memory of one GPU: the formulae of the papers, and what this trainer keeps, in four buckets. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.planning.layout import PlannedLayout

Recompute = Literal["none", "selective", "full"]


def zero_bytes(num_parameters: float, num_gpus: int, stage: Literal[0, 1, 2, 3]) -> float:
    """Model states of one GPU in mixed precision with Adam: 2 bytes a parameter, 2 a gradient, 12 of states (float32
    weight, momentum, variance), of which the stage shards over `num_gpus` (ZeRO, 1910.02054, table 1, figure 1)."""
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    return num_parameters * ((16 - shared) + shared / num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptLayer:
    """A layer of the GPT of 2205.05198: sequence length s, micro-batch b, width h, attention heads a."""

    seq_len: int
    micro_batch: int
    width: int
    num_heads: int


def gpt_layer_activations(
    layer: GptLayer, *, tp: int = 1, sequence_parallel: bool = False, recompute: Recompute = "none"
) -> float:
    """Bytes that a GPT layer keeps for backward at 16 bits (Korthikanti et al., 2205.05198, table 2).

    sbh(10 + 24/t + 5as/(ht)); with sequence parallelism all of it is divided by t; selective recomputation drops
    attention's 5as/h; full recomputation keeps the layer's input, 2sbh."""
    sbh = layer.seq_len * layer.micro_batch * layer.width
    if recompute == "full":
        return 2.0 * sbh
    attention = 5 * layer.num_heads * layer.seq_len / layer.width if recompute == "none" else 0.0
    whole = 10 / tp if sequence_parallel else 10
    return sbh * (whole + 24 / tp + attention / tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the fullest GPU at the fullest moment of a step."""

    parameters: float
    gradients: float
    optimizer_states: float
    activations: float

    @property
    def total(self) -> float:
        """All four."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations


def memory(layout: PlannedLayout) -> Memory:
    """What the trainer keeps on one GPU: weights, gradients and two moments in `weight_bytes` each (with bfloat16 the
    16 bytes a parameter of ZeRO, sharded over `num_shards`), and what is gathered or kept in `compute_bytes`."""
    sharded = layout.num_gpu_parameters / layout.num_shards
    return Memory(
        parameters=layout.weight_bytes * sharded + gathered_parameters(layout),
        gradients=layout.weight_bytes * sharded + unsharded_gradients(layout),
        optimizer_states=2 * layout.weight_bytes * sharded,
        activations=activations(layout),
    )


def gathered_parameters(layout: PlannedLayout) -> float:
    """Bytes of weights in `compute_bytes` beside the sharded ones.

    zero = 3: two layers (one computes while the next is gathered) and the output matrix; zero = 2 and pipelines: all;
    zero = 0: autocast's copies, none where the dtype is that of the weights."""
    if layout.replicated_by_ddp and layout.compute_bytes == layout.weight_bytes:
        return 0.0
    if layout.zero != 3 or layout.synchronises_once:
        return layout.compute_bytes * layout.num_gpu_parameters
    config = layout.config
    gathered = 2 * config.num_layer_parameters + config.num_embedding_parameters
    return layout.compute_bytes * min(gathered / layout.mesh.tp, layout.num_gpu_parameters)


def unsharded_gradients(layout: PlannedLayout) -> float:
    """Bytes of the largest group of gradients (a layer, or a vocabulary matrix) on its way to the shards: as backward
    makes it, and widened for the reduction. Pipelines hold all of them so. DistributedDataParallel reduces in place."""
    if layout.replicated_by_ddp:
        return 0.0
    if layout.synchronises_once:
        return layout.weight_bytes * layout.num_gpu_parameters
    config = layout.config
    largest = max(config.num_layer_parameters, config.num_embedding_parameters) / layout.mesh.tp
    return (layout.compute_bytes + layout.weight_bytes) * largest


def layer_activations(layout: PlannedLayout) -> float:
    """Bytes that a layer keeps for backward of one micro-batch without recomputation.

    Counted tensor by tensor for RMSNorm, grouped-query attention without a score matrix, and SwiGLU: the inputs of
    both norms (split over tensor peers), their outputs (gathered), queries, keys, values, attention's output and its
    log-sum-exp, four of the hidden width (gate, silu of it, up, their product), and in float32 the sines and cosines of
    queries and keys and the norms' reciprocal roots. The heads' and the hidden width are split over tensor peers."""
    config, tp = layout.config, layout.mesh.tp
    stream_bytes = layout.weight_bytes if layout.replicated_by_ddp else layout.compute_bytes
    heads = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    computed = 2 * config.width + (heads + 4 * config.hidden) / tp
    float32 = 4 * (config.num_heads / tp + 2 * config.head_dim + 2)
    per_token = stream_bytes * 2 * config.width / tp + layout.compute_bytes * computed + float32
    return layout.tokens * per_token


def kept_activations(layout: PlannedLayout) -> float:
    """Bytes that a layer keeps for backward of one micro-batch, as `activation_checkpointing` says.

    full: its input. selective: also attention's output and every second matrix product, of the seven of a layer the
    larger choice: queries, values, gate, down."""
    if layout.recompute == "none":
        return layer_activations(layout)
    config, tp = layout.config, layout.mesh.tp
    stream_bytes = layout.weight_bytes if layout.replicated_by_ddp else layout.compute_bytes
    kept = layout.tokens * stream_bytes * config.width / tp
    if layout.recompute == "selective":
        attention = config.num_heads * (layout.compute_bytes * config.head_dim + 4) / tp
        split = config.head_dim * (config.num_heads + config.num_kv_heads) + config.hidden
        kept += layout.tokens * (attention + layout.compute_bytes * (split / tp + config.width))
    return kept


def logit_bytes(layout: PlannedLayout) -> float:
    """Bytes of the loss at its fullest: logits, their log-softmax and its gradient in at least float32, and the
    gradient of the logits; the vocabulary is split over tensor peers."""
    wide = max(layout.compute_bytes, 4)
    narrow = layout.compute_bytes * (2 if layout.compute_bytes < wide else 1)
    return layout.tokens * layout.config.vocab_size / layout.mesh.tp * (narrow + 2 * wide)


def activations(layout: PlannedLayout) -> float:
    """Bytes of activations on the fullest pipeline stage.

    In a 1F1B schedule the first stage has min(p, m) micro-batches under way and the last one (2205.05198, section
    4.2.3), which also has the logits. With recomputation one layer at a time is whole again, after the logits."""
    in_flight = min(layout.mesh.pp, layout.num_micro_batches)
    kept = layout.num_stage_layers * kept_activations(layout)
    again = layer_activations(layout) if layout.recompute != "none" else 0.0
    last = kept + max(again, logit_bytes(layout))
    return max(last, in_flight * kept + again)
