"""Memory of one GPU: what this trainer keeps, in four buckets. All in bytes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.model.config.description import PIECE, ModelConfig, vocabulary_parts
from trainer.planning.counts import ParameterCounts, num_embedding_parameters, num_latent, num_sparse_layers
from trainer.planning.layout import (
    Part,
    PlannedLayout,
    ShardCounts,
    layer_split,
    part_counts,
)
from trainer.planning.schedules import PipelinePlan, RankMemory, instants_of_ranks, round_size
from trainer.recipe_tables.parallelism import PipelineTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the fullest GPU at the fullest instant of a step; `rank` is its pipeline rank."""

    rank: int
    parameters: float
    gradients: float
    optimizer_states: float
    activations: float

    @property
    def total(self) -> float:
        """All four."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations


class Instant(NamedTuple):
    """Bytes at one instant of a step: of activations; of gradients beside their shards, and whether the
    shards have gradients of an earlier micro-batch, or of this one."""

    activations: float
    gradients: float
    sharded: bool


def memory(layout: PlannedLayout) -> Memory:
    """What the trainer keeps on the fullest GPU at the fullest instant: weights, gradients and moments in
    `weight_bytes` each (with bfloat16 the 16 bytes a parameter of ZeRO, over their shards), and what is
    gathered or kept in `compute_bytes`."""
    found = (memory_of_rank(layout, rank) for ranks in likely_ranks(layout) for rank in ranks)
    return max(found, key=lambda held: held.total)


def likely_ranks(layout: PlannedLayout) -> tuple[tuple[int, ...], ...]:
    """Pipeline ranks of which one is the fullest, those with equal stages together. Of these the first has
    the most micro-batches under way; but where backward is split, later ones hold more gradients until those
    of weights are computed, so that any may be the fullest."""
    alike = layout.split.alike
    return alike if layout.pipeline.splits_backward else tuple(ranks[:1] for ranks in alike)


def memory_of_rank(layout: PlannedLayout, rank: int) -> Memory:
    """What a GPU of this pipeline rank holds at its fullest instant."""
    part = layout.ranks[rank]
    kept = sharded_bytes(owned_parameters(layout, part), layout.weight_bytes, layout.shards)
    (found,) = instants(layout, [(rank,)])
    fullest = max(found, key=lambda one: one.activations + one.gradients + kept * one.sharded)
    return Memory(
        rank=rank,
        parameters=kept + gathered_parameters(layout, part),
        gradients=fullest.gradients + (kept if fullest.sharded else 0.0),
        optimizer_states=state_bytes(layout, part, layout.shards),
        activations=fullest.activations,
    )


def owned_parameters(layout: PlannedLayout, part: Part) -> ParameterCounts:
    """Parameters with which a GPU computes a part of the model."""
    split, whole, experts = part_counts(layout.config, part)
    return ParameterCounts(split / layout.mesh.tp, whole, experts / layout.mesh.ep)


def sharded_bytes(owned: ParameterCounts, weight_bytes: int, shards: ShardCounts) -> float:
    """Bytes that a GPU holds for good of the weights of owned parameters; as many of their gradients."""
    (split, whole, experts), (num_split, num_whole, num_experts) = owned, shards
    return weight_bytes * (split / num_split + whole / num_whole + experts / num_experts)


def state_bytes(layout: PlannedLayout, part: Part, shards: ShardCounts) -> float:
    """Bytes that a GPU holds of what the optimizer keeps for a part of the model: two moments, of matrices
    that are Muon's one, and the average of the weights. Norms and routers of a layer count as matrices."""
    owned, matrices = owned_parameters(layout, part), part._replace(embedding=0, head=0)
    states = (2 + layout.averages) * sharded_bytes(owned, layout.weight_bytes, shards)
    if layout.muon_rounds:
        states -= sharded_bytes(owned_parameters(layout, matrices), layout.weight_bytes, shards)
    return states


def gathered_parameters(layout: PlannedLayout, part: Part) -> float:
    """Bytes of weights in `compute_bytes` beside the sharded ones.

    zero = 3: two layers (one computes while the next is gathered, or `prefetch_layers`) and the output
    matrix; zero = 1 and 2 and pipelines: all; DistributedDataParallel: autocast's copies, none where the
    dtype is that of weights. The router, which is small, is gathered in `weight_bytes`; here it counts as the
    rest.

    Experts and shared experts are gathered apart from the rest of their layer, when it is their turn, and
    given back behind it (trainer.parallel.mesh, `_shard_experts`), and `prefetch_layers` leaves them out. Of
    the larger of both there are the buffer that was received and the weights that are copied out of it; or in
    backward both at once, one of them ahead of its turn."""
    if layout.replicated_by_ddp and layout.compute_bytes == layout.weight_bytes:
        return 0.0
    everything = sum(owned_parameters(layout, part))
    if layout.zero != 3 or layout.synchronises_once:
        return layout.compute_bytes * everything
    dense, sparse = layer_parameters(layout, part)
    layers = 1 + layout.prefetch_layers
    gathered = max(layers * dense.split, layers * sparse.split + 2 * max(sparse.whole, sparse.experts))
    gathered += num_embedding_parameters(layout.config) / layout.mesh.tp
    return layout.compute_bytes * min(gathered, everything)


def layer_parameters(layout: PlannedLayout, part: Part) -> tuple[ParameterCounts, ParameterCounts]:
    """Parameters with which a GPU computes a layer without, and one with experts; 0 where the part has
    none."""
    dense, sparse = Part(num_dense=min(1, part.num_dense)), Part(num_sparse=min(1, part.num_sparse))
    return owned_parameters(layout, dense), owned_parameters(layout, sparse)


def largest_group(layout: PlannedLayout, part: Part) -> float:
    """Parameters of the largest group whose gradients are reduced together: a layer, of a layer with experts
    these, the shared ones or the rest, or a vocabulary matrix."""
    dense, sparse = layer_parameters(layout, part)
    return max(dense.split, *sparse, num_embedding_parameters(layout.config) / layout.mesh.tp)


def stream_bytes(layout: PlannedLayout) -> int:
    """Bytes of a number of the residual stream."""
    return layout.weight_bytes if layout.replicated_by_ddp else layout.compute_bytes


def layer_activations(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """Bytes that a layer keeps for backward of one micro-batch without recomputation.

    Counted tensor by tensor for RMSNorm, grouped-query attention without a score matrix, and SwiGLU: the
    inputs of both norms (split over tensor peers), their outputs (gathered), queries, keys, values,
    attention's output and its log-sum-exp, four of the hidden width (gate, silu of it, up, their product),
    and in float32 the norms' reciprocal roots. The heads' and the hidden width are split over tensor peers.
    What backward makes again (`makes_again`) is not kept: the norms' outputs, silu and product. Context
    parallel that gathers keeps the keys and values of the whole sequence besides. In a layer with experts
    (`sparse`) `expert_activations` stands in SwiGLU's place.

    Norms behind attention and feed-forward keep their inputs too; those that multiply by 1 + weight keep inputs in
    float32. Norms of queries and keys keep these, of all heads together (written out) twice and
    in float32. Sinks keep attention's output as it is without them."""
    config, tp = layout.config, layout.mesh.tp
    pairs = config.num_kv_heads * (config.head_dim + config.value_dim)
    values = config.num_heads * config.value_dim
    heads = config.num_heads * config.head_dim + values + pairs + config.sinks * values
    if layout.mesh.cp > 1 and layout.context.method == "gather":
        heads += pairs * layout.mesh.cp
    normed = 0 if layout.makes_again else config.width
    of_hidden = 2 if layout.makes_again else gate_copies(config)
    hidden = 0.0 if sparse else normed + of_hidden * config.hidden / tp
    computed = normed + 2 * num_latent(config) + heads / tp + hidden
    num_norms = 4 if config.norms == "both" else 2
    float32 = 4 * (config.num_heads + num_norms) / tp
    norms = num_norms * config.width * norm_bytes(layout) / tp
    per_token = norms + layout.compute_bytes * computed + float32 + query_key_norms(layout) / tp
    return layout.tokens * per_token + (expert_activations(layout) if sparse else 0.0)


def norm_bytes(layout: PlannedLayout) -> int:
    """Bytes of a number of what a norm keeps of its input."""
    return max(4, stream_bytes(layout)) if layout.config.norm_kind == "one plus" else stream_bytes(layout)


def query_key_norms(layout: PlannedLayout) -> float:
    """Bytes that norms of queries and keys keep of a token."""
    config = layout.config
    normed = config.head_dim * (config.num_heads + config.num_kv_heads)
    if config.query_key_norm == "all heads":
        return 2.0 * max(4, layout.compute_bytes) * normed
    wide = 4 if config.norm_kind == "one plus" else 0
    return float(max(wide, layout.compute_bytes) * normed * (config.query_key_norm == "head"))


def gate_copies(config: ModelConfig) -> int:
    """Tensors of the hidden width that a gated feed-forward part keeps: gate, what is made of it, up, their product;
    and where both are clamped, three more on the way."""
    return 7 if config.gate.function == "clamped" else 4


def stage_activations(layout: PlannedLayout) -> float:
    """Bytes that all layers of a pipeline stage keep together of one micro-batch: cosines and sines of the
    rotary embedding, in float32, where backward does not make them again."""
    return 0.0 if layout.makes_again else layout.tokens * layout.config.head_dim * 4


def expert_activations(layout: PlannedLayout) -> float:
    """Bytes that the experts of a layer keep: of the tokens' share of a tensor peer the norm's output and the
    router's scores in float32, and for each of the top-k copies, evenly spread, what is sent to its expert,
    four of the expert's hidden width, and the expert's output there and back."""
    experts, width = layout.config.experts, layout.config.width
    assert experts is not None
    copies = gate_copies(layout.config)
    shared = copies * experts.hidden * experts.num_shared
    sent = experts.top_k * (3 * width + copies * experts.hidden)
    per_token = layout.compute_bytes * (width + shared + sent) + 4 * 2 * experts.num_experts
    return layout.tokens / layout.mesh.tp * per_token


def split_backward_bytes(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """Bytes that a layer whose backward pass is split holds for the gradients of its weights: those of its
    products' outputs, and what was computed again."""
    config, experts = layout.config, layout.config.experts
    outputs = config.head_dim * config.num_heads + config.width + num_latent(config)
    outputs += config.num_kv_heads * (config.head_dim + config.value_dim)
    if sparse and experts is not None:
        outputs += (experts.top_k + experts.num_shared) * 2 * experts.hidden
        outputs += (experts.top_k + (experts.num_shared > 0)) * config.width
    else:
        outputs += 2 * config.hidden + config.width
    again = layer_activations(layout, sparse=sparse) if layout.recompute != "none" else 0.0
    return layout.tokens * layout.compute_bytes * outputs / layout.mesh.tp + again


def kept_activations(layout: PlannedLayout, *, sparse: bool = False) -> float:
    """Bytes that a layer keeps for backward of one micro-batch, as `activation_checkpointing` says.

    full: its input. selective: also attention's output and the products that `trainer.parallel.recompute`
    keeps: queries, values, gate (of experts and shared ones, gate and down)."""
    if layout.recompute == "none":
        return layer_activations(layout, sparse=sparse)
    config, tp, experts = layout.config, layout.mesh.tp, layout.config.experts
    kept = layout.tokens * stream_bytes(layout) * config.width / tp
    if layout.recompute == "selective":
        attention = config.num_heads * (layout.compute_bytes * config.value_dim + 4) / tp
        split = config.head_dim * (config.num_heads + config.num_kv_heads)
        if config.latent is not None:
            split = tp * num_latent(config)
        if sparse and experts is not None:
            # Shared experts are one SwiGLU of so many times the width, with one output.
            hidden = (experts.top_k + experts.num_shared) * experts.hidden
            products = (split + hidden + (experts.top_k + (experts.num_shared > 0)) * config.width) / tp
        else:
            products = (split + config.hidden) / tp
        kept += layout.tokens * (attention + layout.compute_bytes * products)
    return kept


def loss_bytes(layout: PlannedLayout) -> float:
    """Bytes of the loss of a micro-batch at its fullest (trainer.model.loss), all in at least float32: a piece's
    logits over a tensor peer's vocabulary, the gradients of the output matrix and of the stream, which is
    gathered; and of the part of the vocabulary that is at work its logits' gradient in `compute_bytes` with the
    product to be added to the matrix's, or where logits are capped their tangents. Last, the matrix's gradient
    is there in the dtype in which it is handed on, too."""
    config, tp, narrow = layout.config, layout.mesh.tp, layout.compute_bytes
    wide = max(narrow, 4)
    positions = min(PIECE, layout.seq_len // layout.mesh.cp)
    vocabulary = config.vocab_size / tp
    matrix = vocabulary * config.width * wide
    stream = layout.tokens * config.width * (wide + narrow * (tp > 1))
    of_part: float = (positions * narrow + config.width * wide) if narrow < wide else 0
    of_part = max(of_part, positions * wide * (config.logit_cap is not None))
    piece = positions * vocabulary * wide + of_part * vocabulary / vocabulary_parts(config.vocab_size, tp)
    return matrix + stream + max(piece, matrix_gradient(layout) * (narrow < wide))


def matrix_gradient(layout: PlannedLayout) -> float:
    """Bytes of the output matrix's gradient that wait for backward."""
    num_bytes = layout.weight_bytes if layout.replicated_by_ddp else layout.compute_bytes
    return num_embedding_parameters(layout.config) / layout.mesh.tp * num_bytes


def waiting_gradients(layout: PlannedLayout) -> float:
    """Bytes of the gradients of a micro-batch whose loss is known, between its forward and backward pass."""
    return (
        matrix_gradient(layout) + layout.tokens * layout.config.width * layout.compute_bytes / layout.mesh.tp
    )


def instants(layout: PlannedLayout, groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[Instant, ...]]:
    """For each group of pipeline ranks with equal stages, the instants of a step of which one is the fullest
    on any of them: when a backward pass begins, and when the last gradients are on their way to their shards.

    Of a group's gradients (see `largest_group`) two copies are there at a time: as backward makes them, and
    widened for the reduction. Layouts that reduce once a step have all of them whole until then, and the
    widened group besides. DistributedDataParallel has buckets for all from its first step on, and reduces in
    place; where a step accumulates, its gradients stand beside the buckets until the last micro-batch."""
    if layout.mesh.pp > 1:
        yield from _instants_of_pipeline(layout, groups)
        return
    (part,) = layout.ranks
    again = _recomputed(layout, sparse=part.num_sparse > 0)
    loss = loss_bytes(layout)
    kept = stage_activations(layout) + part.num_dense * kept_activations(layout)
    if part.num_sparse:
        kept += part.num_sparse * kept_activations(layout, sparse=True)
    group, whole = largest_group(layout, part), sum(owned_parameters(layout, part))
    earlier = layout.num_micro_batches > 1
    if layout.replicated_by_ddp:
        beside = layout.weight_bytes * whole if earlier else 0.0
        yield (Instant(kept + max(again, loss), beside, True),)
    elif layout.synchronises_once and earlier:
        gradients = layout.weight_bytes * whole
        yield (
            Instant(kept + max(again, loss), gradients, False),
            Instant(0.0, gradients + layout.weight_bytes * group, False),
        )
    else:
        reducing = (layout.compute_bytes + layout.weight_bytes) * group
        yield (
            Instant(kept + loss, 0.0, earlier),
            Instant(kept + again, reducing, earlier),
            Instant(0.0, reducing, True),
        )


def _recomputed(layout: PlannedLayout, *, sparse: bool) -> float:
    """Bytes of a layer that backward makes again."""
    if layout.recompute != "none":
        return layer_activations(layout, sparse=sparse)
    if not layout.makes_again:
        return 0.0
    # First silu and the inner product, then the input, when gate and up are there no more.
    inner = 2 * layout.config.hidden / layout.mesh.tp
    return layout.tokens * layout.compute_bytes * max(inner, layout.config.width - inner)


def _instants_of_pipeline(
    layout: PlannedLayout, groups: Sequence[tuple[int, ...]]
) -> Iterator[tuple[Instant, ...]]:
    """Of each stage as many micro-batches as its schedule has under way at once (its action table says how
    many), on the last stage the loss; with recomputation one layer at a time is whole again. What a stage
    gave is let go when it is sent (trainer.parallel.pipeline, `_TimedStage`)."""
    config, pipeline, size = layout.config, layout.pipeline, layout.weight_bytes
    split, pp, num = layout.split, layout.mesh.pp, layout.num_micro_batches
    # After its first rounds a schedule has no more under way than before; only gpipe keeps all.
    if pipeline.schedule != "gpipe":
        num = min(num, 4 * round_size(pipeline.schedule, pp, num))
    plan = PipelinePlan(pipeline.schedule, pp, pipeline.num_virtual, num)
    (kept, between), ratios = _layer_units(layout)
    sizes = [sum(owned_parameters(layout, kind)) for kind in split.kinds]
    again = {
        sparse: _recomputed(layout, sparse=sparse) for sparse in {kind.num_sparse > 0 for kind in split.kinds}
    }
    for ranks in groups:
        part = split.ranks[ranks[0]]
        messages, of_layer = stage_messages(layout, part), again[part.num_sparse > 0]
        beside = messages + of_layer
        if part.head:
            waiting = _waiting_losses(config, pipeline, plan, ranks)
            beside = messages + waiting * waiting_gradients(layout) + max(of_layer, loss_bytes(layout))
        # Where there are no layers without experts, what one keeps makes no difference.
        found = _instants_in_layers(config, ratios if part.num_dense else (1.0, 1.0), pipeline, plan, ranks)
        held = [
            Instant(
                one.kept * kept + one.between * between + beside,
                sum(map(operator.mul, one.made, sizes)) * size,
                False,
            )
            for one in found
        ]
        whole = size * sum(owned_parameters(layout, part))
        yield (*held, Instant(messages, whole + size * largest_group(layout, part), False))


def _layer_units(layout: PlannedLayout) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bytes that a layer with experts keeps, or one without where there are none, with its share of what its
    stage keeps; and those that it holds between halves of a backward pass. Then what a layer without has of
    each."""
    config, pipeline = layout.config, layout.pipeline
    counts = ((True, num_sparse_layers(config)), (False, config.num_layers - num_sparse_layers(config)))
    kinds = [sparse for sparse, num in counts if num]
    of_stages = stage_activations(layout) * layout.mesh.pp * pipeline.num_virtual / config.num_layers
    kept = [kept_activations(layout, sparse=sparse) + of_stages for sparse in kinds]
    between = [1.0]  # any number: where backward is not split, nothing is ever between
    if pipeline.splits_backward:
        between = [split_backward_bytes(layout, sparse=sparse) for sparse in kinds]
    # Rounded, so that what layouts share is counted once: their tokens cancel.
    return (kept[0], between[0]), (round(kept[-1] / kept[0], 9), round(between[-1] / between[0], 9))


def stage_messages(layout: PlannedLayout, part: Part) -> float:
    """Bytes of what is on its way to a GPU from the stages before and after its own, as torch asks for it
    ahead: of a stage's two neighbours one message each; of several stages three; but where a loop closes,
    between the last rank and the first, a round's."""
    pipeline, pp = layout.pipeline, layout.mesh.pp
    num = 2 - part.embedding - part.head if pipeline.num_virtual == 1 else 3
    if pipeline.num_virtual > 1 and part.embedding != part.head:
        num = round_size(pipeline.schedule, pp, layout.num_micro_batches)
    return num * layout.tokens * layout.config.width / layout.mesh.tp * layout.compute_bytes


@functools.lru_cache(maxsize=1 << 16)
def _instants_in_layers(
    config: ModelConfig,
    ratios: tuple[float, float],
    pipeline: PipelineTable,
    plan: PipelinePlan,
    ranks: tuple[int, ...],
) -> tuple[RankMemory, ...]:
    """What is held in layers: counted once, it serves every layout with these stages. `ratios`: what a layer
    without experts counts of what is kept and of what is between."""
    split = layer_split(config, plan.pp, pipeline)
    kept, between = (
        [stage.num_sparse + ratio * stage.num_dense for stage in split.stages] for ratio in ratios
    )
    return instants_of_ranks(plan, ranks, kept, between, split.kind_of_stage)


@functools.lru_cache(maxsize=1 << 12)
def _waiting_losses(
    config: ModelConfig, pipeline: PipelineTable, plan: PipelinePlan, ranks: tuple[int, ...]
) -> float:
    """Micro-batches whose gradients wait while another's loss is computed, on a last stage."""
    heads = [stage.head for stage in layer_split(config, plan.pp, pipeline).stages]
    return max(instant.kept for instant in instants_of_ranks(plan, ranks, heads, heads, heads)) - 1
