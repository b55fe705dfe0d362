"""What one GPU sends in a step, over which link, and for how long: volumes in bytes, times in seconds.

Ranks are laid out as (pp, dp_replicate, dp_shard, cp, tp), tensor peers next to each other, nodes filled in that order.
Latency is left out: at the sizes of a large run bandwidth decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trainer.options import PlanTable
from trainer.planning.layout import PlannedLayout

Link = Literal["intra", "inter"]
_GIGABIT: Final = 1e9 / 8


def ring_bytes(size: float, num_gpus: int) -> float:
    """Bytes that a GPU sends in a ring all-gather or reduce-scatter of `size` bytes in all: (W−1)/W·M (Patarasuk and
    Yuan 2009, "Bandwidth optimal all-reduce algorithms", section 3)."""
    return size * (num_gpus - 1) / num_gpus


def all_reduce_bytes(size: float, num_gpus: int) -> float:
    """A reduce-scatter and an all-gather: 2·(W−1)/W·M (the same source)."""
    return 2 * ring_bytes(size, num_gpus)


def zero_volume(num_parameters: float, stage: Literal[0, 1, 2, 3]) -> float:
    """Parameters that a GPU sends in a step: 2Ψ for data parallelism and stages 1 and 2, 3Ψ for stage 3 (ZeRO,
    1910.02054, section 7)."""
    return (3 if stage == 3 else 2) * num_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of communication of a GPU in a step. `gbps`: gigabits a second and GPU, one way."""

    axis: str
    what: str
    num_gpus: int
    link: Link
    gbps: float
    num_bytes: float

    @property
    def seconds(self) -> float:
        """Time on the wire, hidden or not."""
        return self.num_bytes / (self.gbps * _GIGABIT)


def link_of(stride: int, num_gpus: int, plan: PlanTable) -> tuple[Link, float]:
    """The slowest link of a ring over `num_gpus` GPUs that lie `stride` apart, and its bandwidth in gigabits a second
    and GPU: between nodes each member has its own adapter, so the ring crosses with those of all members of a node."""
    if stride * num_gpus <= plan.gpus_per_node:
        return "intra", plan.intra_gbps
    members = max(1, plan.gpus_per_node // stride)
    return "inter", min(plan.intra_gbps, plan.inter_gbps * members)


def traffic(layout: PlannedLayout, plan: PlanTable) -> tuple[Traffic, ...]:
    """Everything a GPU sends in a step; axes of size 1 send nothing and are left out."""
    mesh = layout.mesh
    kinds = [
        ("tp", "layers' all-gathers and reduce-scatters", mesh.tp, 1, tensor_bytes(layout)),
        ("cp", "keys and values", mesh.cp, mesh.tp, context_bytes(layout)),
        ("dp_shard", "all-gather of parameters", layout.num_shards, mesh.tp, gather_bytes(layout)),
        ("dp_shard", "reduce-scatter of gradients", layout.num_shards, mesh.tp, reduce_bytes(layout)),
        (
            "dp_replicate",
            "all-reduce of gradients",
            layout.num_replicas,
            mesh.tp * layout.num_shards,
            replica_bytes(layout),
        ),
        (
            "pp",
            "activations and their gradients",
            mesh.pp,
            mesh.tp * mesh.cp * mesh.dp,
            pipeline_bytes(layout, plan.virtual_stages),
        ),
    ]
    found = []
    for axis, what, num_gpus, stride, num_bytes in kinds:
        if num_gpus > 1:
            link, gbps = link_of(stride, num_gpus, plan)
            if axis == "pp":  # neighbours send pairwise: each GPU over its own adapter
                gbps = min(gbps, plan.inter_gbps) if link == "inter" else gbps
            found.append(Traffic(axis=axis, what=what, num_gpus=num_gpus, link=link, gbps=gbps, num_bytes=num_bytes))
    return tuple(found)


def gather_bytes(layout: PlannedLayout) -> float:
    """All-gathers of parameters in `compute_bytes`: each micro-batch once for zero = 2, and again in backward for
    zero = 3 (1910.02054, section 7.2.2); once a step in pipelines."""
    size = layout.compute_bytes * layout.num_gpu_parameters
    times = 1 if layout.synchronises_once else layout.num_micro_batches * (2 if layout.zero == 3 else 1)
    return times * ring_bytes(size, layout.num_shards)


def reduce_bytes(layout: PlannedLayout) -> float:
    """Reduce-scatters of gradients in `weight_bytes`, each micro-batch (else accumulation would hold them whole); once
    a step in pipelines."""
    size = layout.weight_bytes * layout.num_gpu_parameters
    return (1 if layout.synchronises_once else layout.num_micro_batches) * ring_bytes(size, layout.num_shards)


def replica_bytes(layout: PlannedLayout) -> float:
    """The all-reduce of the shards' gradients over replicas, once a step."""
    size = layout.weight_bytes * layout.num_gpu_parameters / layout.num_shards
    return all_reduce_bytes(size, layout.num_replicas)


def tensor_bytes(layout: PlannedLayout) -> float:
    """Tensor parallel with sequence parallelism: in each layer two all-gathers and two reduce-scatters of the stream
    forward, as many backward (2205.05198, section 4.2.2), three more where the layer is computed again; and four for
    embedding and head."""
    size = layout.tokens * layout.config.width * layout.compute_bytes
    a_layer = 8 if layout.recompute == "none" else 11
    collectives = a_layer * layout.num_stage_layers + 4
    return layout.num_micro_batches * collectives * ring_bytes(size, layout.mesh.tp)


def context_bytes(layout: PlannedLayout) -> float:
    """All-gather of keys and values in forward and backward and the reduce-scatter of their gradients, each layer
    (Llama 3, 2407.21783, section 3.3.2: all-gather based context parallelism)."""
    config, mesh = layout.config, layout.mesh
    whole = layout.micro_batch * layout.seq_len * 2 * config.num_kv_heads * config.head_dim / mesh.tp
    size = whole * layout.compute_bytes
    return 3 * layout.num_micro_batches * layout.num_stage_layers * ring_bytes(size, mesh.cp)


def pipeline_bytes(layout: PlannedLayout, virtual_stages: int) -> float:
    """Activations to the next stage and gradients to the one before, once for each virtual stage (Narayanan et al.,
    2104.04473, section 3.2); tensor peers send a share each."""
    size = layout.tokens * layout.config.width * layout.compute_bytes / layout.mesh.tp
    return 2 * virtual_stages * layout.num_micro_batches * size
