"""Memory of one GPU: the formulae of the papers, and what this trainer keeps, in four buckets. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trainer.planning.layout import Part, PlannedLayout, Recompute, Shards
from trainer.planning.schedules import PipelinePlan, alive_on_rank


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
    """Bytes of the fullest GPU at the fullest moment of a step; `rank` is its pipeline rank."""

    rank: int
    parameters: float
    gradients: float
    optimizer_states: float
    activations: float

    @property
    def total(self) -> float:
        """All four."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations


def memory(layout: PlannedLayout) -> Memory:
    """What the trainer keeps on the fullest GPU: weights, gradients and two moments in `weight_bytes` each (with
    bfloat16 the 16 bytes a parameter of ZeRO, sharded over `num_shards`), and what is gathered or kept in
    `compute_bytes`."""
    found = (states_of_rank(layout, rank, activations(layout, rank)) for rank in likely_ranks(layout))
    return max(found, key=lambda held: held.total)


def likely_ranks(layout: PlannedLayout) -> tuple[int, ...]:
    """Pipeline ranks of which one is the fullest: none after the second has more layers or more micro-batches under
    way, and only the last has the output matrix."""
    return tuple(range(layout.mesh.pp)) if layout.mesh.pp < 3 else (0, 1, layout.mesh.pp - 1)


def states_of_rank(layout: PlannedLayout, rank: int, kept_bytes: float) -> Memory:
    """What a GPU of this pipeline rank holds, beside activations of `kept_bytes`."""
    part = layout.ranks[rank]
    kept, states = sharded_bytes(layout, part)
    return Memory(
        rank=rank,
        parameters=kept + gathered_parameters(layout, part),
        gradients=kept + unsharded_gradients(layout, part),
        optimizer_states=states,
        activations=kept_bytes,
    )


def owned_parameters(layout: PlannedLayout, part: Part) -> tuple[float, float]:
    """Parameters with which a GPU computes a part of the model: those of all tokens, and routed experts."""
    return layout.num_parameters(part) / layout.mesh.tp, layout.num_expert_parameters(part) / layout.mesh.ep


def sharded_bytes(layout: PlannedLayout, part: Part) -> tuple[float, float]:
    """Bytes of weights (and as many of gradients) that a GPU holds for good, and of both moments."""
    return bytes_in_shards(owned_parameters(layout, part), layout.weight_bytes, layout.shards)


def bytes_in_shards(owned: tuple[float, float], weight_bytes: int, shards: Shards) -> tuple[float, float]:
    """The same of owned parameters."""
    whole, experts = owned
    return (
        weight_bytes * (whole / shards.weights + experts / shards.experts),
        2 * weight_bytes * (whole / shards.moments + experts / shards.expert_moments),
    )


def gathered_parameters(layout: PlannedLayout, part: Part) -> float:
    """Bytes of weights in `compute_bytes` beside the sharded ones.

    zero = 3: two layers (one computes while the next is gathered) and the output matrix; zero = 2 and pipelines: all;
    zero = 0 and 1: autocast's copies, none where the dtype is that of the weights."""
    if layout.replicated_by_ddp and layout.compute_bytes == layout.weight_bytes:
        return 0.0
    everything = sum(owned_parameters(layout, part))
    if layout.zero != 3 or layout.synchronises_once:
        return layout.compute_bytes * everything
    largest = max(layer_parameters(layout, part))
    gathered = 2 * largest + layout.config.num_embedding_parameters / layout.mesh.tp
    return layout.compute_bytes * min(gathered, everything)


_SPARSE: Final = Part(num_sparse=1)


def layer_parameters(layout: PlannedLayout, part: Part) -> tuple[float, float]:
    """Parameters with which a GPU computes a layer without, and one with experts; 0 where the part has none."""
    dense = layout.config.num_layer_parameters / layout.mesh.tp if part.num_dense else 0.0
    if not part.num_sparse:
        return dense, 0.0
    experts = layout.num_expert_parameters(_SPARSE) / layout.mesh.ep
    return dense, layout.num_parameters(_SPARSE) / layout.mesh.tp + experts


def unsharded_gradients(layout: PlannedLayout, part: Part) -> float:
    """Bytes of the largest group of gradients (a layer, or a vocabulary matrix) on its way to the shards: as backward
    makes it, and widened for the reduction. Pipelines hold all of them so. DistributedDataParallel reduces in place."""
    if layout.replicated_by_ddp:
        return 0.0
    if layout.synchronises_once:
        return layout.weight_bytes * sum(owned_parameters(layout, part))
    largest = max(*layer_parameters(layout, part), layout.config.num_embedding_parameters / layout.mesh.tp)
    return (layout.compute_bytes + layout.weight_bytes) * largest


def stream_bytes(layout: PlannedLayout) -> int:
    """Bytes of a number of the residual stream."""
    return layout.weight_bytes if layout.replicated_by_ddp else layout.compute_bytes


def layer_activations(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """Bytes that a layer keeps for backward of one micro-batch without recomputation.

    Counted tensor by tensor for RMSNorm, grouped-query attention without a score matrix, and SwiGLU: the inputs of
    both norms (split over tensor peers), their outputs (gathered), queries, keys, values, attention's output and its
    log-sum-exp, four of the hidden width (gate, silu of it, up, their product), and in float32 the sines and cosines of
    queries and keys and the norms' reciprocal roots. The heads' and the hidden width are split over tensor peers.
    Context parallel that gathers keeps the keys and values of the whole sequence besides. In a layer with experts
    (`sparse`) `expert_activations` stands in SwiGLU's place."""
    config, tp = layout.config, layout.mesh.tp
    heads = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    if layout.mesh.cp > 1 and layout.context.method == "gather":
        heads += 2 * config.head_dim * config.num_kv_heads * layout.mesh.cp
    hidden = 0.0 if sparse else config.width + 4 * config.hidden / tp
    computed = config.width + heads / tp + hidden
    float32 = 4 * (config.num_heads / tp + 2 * config.head_dim + 2)
    per_token = stream_bytes(layout) * 2 * config.width / tp + layout.compute_bytes * computed + float32
    return layout.tokens * per_token + (expert_activations(layout) if sparse else 0.0)


def expert_activations(layout: PlannedLayout) -> float:
    """Bytes that the experts of a layer keep: of the tokens' share of a tensor peer the norm's output and the router's
    scores in float32, and for each of the top-k copies, evenly spread, what is sent to its expert, four of the expert's
    hidden width, and the expert's output there and back."""
    experts, width = layout.shape.experts, layout.config.width
    assert experts is not None
    shared = 4 * experts.hidden * experts.num_shared
    sent = experts.top_k * (3 * width + 4 * experts.hidden)
    per_token = layout.compute_bytes * (width + shared + sent) + 4 * 2 * experts.num_experts
    return layout.tokens / layout.mesh.tp * per_token


def kept_activations(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """Bytes that a layer keeps for backward of one micro-batch, as `activation_checkpointing` says.

    full: its input. selective: also attention's output and every second matrix product, of the seven of a layer the
    larger choice: queries, values, gate, down (of experts, gate and down)."""
    if layout.recompute == "none":
        return layer_activations(layout, sparse=sparse)
    config, tp, experts = layout.config, layout.mesh.tp, layout.shape.experts
    kept = layout.tokens * stream_bytes(layout) * config.width / tp
    if layout.recompute == "selective":
        attention = config.num_heads * (layout.compute_bytes * config.head_dim + 4) / tp
        split = config.head_dim * (config.num_heads + config.num_kv_heads)
        if sparse and experts is not None:
            seen = experts.top_k + experts.num_shared
            products = (split + seen * (experts.hidden + config.width)) / tp
        else:
            products = (split + config.hidden) / tp + config.width
        kept += layout.tokens * (attention + layout.compute_bytes * products)
    return kept


def logit_bytes(layout: PlannedLayout) -> float:
    """Bytes of the loss at its fullest: logits, their log-softmax and its gradient in at least float32, and the
    gradient of the logits; the vocabulary is split over tensor peers."""
    wide = max(layout.compute_bytes, 4)
    narrow = layout.compute_bytes * (2 if layout.compute_bytes < wide else 1)
    return layout.tokens * layout.config.vocab_size / layout.mesh.tp * (narrow + 2 * wide)


def waiting_logit_bytes(layout: PlannedLayout) -> float:
    """Bytes of the loss of a micro-batch whose backward pass has not begun: logits and log-softmax."""
    wide = max(layout.compute_bytes, 4)
    return layout.tokens * layout.config.vocab_size / layout.mesh.tp * (layout.compute_bytes + wide)


def activations(layout: PlannedLayout, rank: int = 0) -> float:
    """Bytes of activations on a pipeline rank: of each stage as many micro-batches as its schedule has under way at
    once (its action table says how many), on the last stage the logits. With recomputation one layer at a time is whole
    again, after the logits."""
    dense = kept_activations(layout)
    sparse = kept_activations(layout, sparse=True) if layout.shape.experts else 0.0
    part = layout.ranks[rank]
    again = 0.0
    if layout.recompute != "none":
        again = layer_activations(layout, sparse=part.num_sparse > 0)
    if layout.mesh.pp == 1:
        return part.num_dense * dense + part.num_sparse * sparse + max(again, logit_bytes(layout))
    if layout.shape.experts is None:  # in layers, so that what was counted once serves every layout with these stages
        kept = dense * _most_alive(layout, rank, layout.split.layers)
    else:
        kept = _most_alive(
            layout, rank, tuple(stage.num_dense * dense + stage.num_sparse * sparse for stage in layout.stages)
        )
    if not part.head:
        return kept + again
    heads = _most_alive(layout, rank, layout.split.heads)
    return kept + (heads - 1) * waiting_logit_bytes(layout) + max(again, logit_bytes(layout))


def _most_alive(layout: PlannedLayout, rank: int, sizes: tuple[float, ...]) -> float:
    pp, pipeline = layout.mesh.pp, layout.pipeline
    num = layout.num_micro_batches
    # After its first passes a schedule has no more under way than before; only gpipe keeps all.
    if pipeline.schedule != "gpipe" and num > 4 * pp:
        num = 4 * pp
    return alive_on_rank(PipelinePlan(pipeline.schedule, pp, pipeline.num_virtual, num), rank, sizes)
